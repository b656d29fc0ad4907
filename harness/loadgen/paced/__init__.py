"""A server that generates nothing, at a pace it keeps and records: the truth that load generators are held to."""
