"""Agent skills for context parallelism, each statement proven by something that runs."""

__version__ = "0.2.0"
