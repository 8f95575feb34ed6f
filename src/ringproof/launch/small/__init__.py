"""A launch made small enough for a laptop, and its reference without context parallelism."""
