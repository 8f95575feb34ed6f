"""Fixtures and settings of every test."""

from hypothesis import settings

pytest_plugins = ["ringproof.rehearsal.fixtures"]

settings.register_profile("shared", deadline=None)  # a shared machine may stop for a while
settings.load_profile("shared")
