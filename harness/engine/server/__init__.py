"""An OpenAI-compatible server over the native engine."""
