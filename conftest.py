"""Fixtures that any test may ask for."""

pytest_plugins = ["ringproof.rehearsal.fixtures"]
