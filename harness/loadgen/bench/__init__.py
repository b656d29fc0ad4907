"""Our load generator beside others on the paced server: how far each is from the truth, and what it costs."""
