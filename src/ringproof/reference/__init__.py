"""The runnable reference implementation: what the skill cards describe."""
