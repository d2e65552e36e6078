"""kvwatch: what the KV tiers of an LLM server are really doing, and why first tokens are late."""

__version__ = "0.1.0"
