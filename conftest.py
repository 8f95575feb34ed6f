"""Fixtures and settings of every test."""

from hypothesis import settings

# Programs and modules that import Megatron, which is in the process of a rank only.
collect_ignore_glob = ["src/ringproof/rehearsal/wheels/*.py"]

pytest_plugins = ["ringproof.rehearsal.fixtures"]

settings.register_profile("shared", deadline=None)  # a shared machine may stop for a while
settings.load_profile("shared")
