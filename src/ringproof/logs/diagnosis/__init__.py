"""Finds the first cause in the logs of a failed or slow run, and the pitfall that explains it."""
