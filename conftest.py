"""Fixtures and settings of every test."""

from hypothesis import settings

# Programs and modules that import Megatron, which is in the process of a rank only.
collect_ignore_glob = ["src/ringproof/rehearsal/wheels/*.py"]

pytest_plugins = ["ringproof.rehearsal.fixtures"]

# Modules for ranks that have imported verl; `--doctest-modules` would import them here.
collect_ignore_glob = ["src/ringproof/rehearsal/verl/ranks/*"]

settings.register_profile("shared", deadline=None)  # a shared machine may stop for a while
settings.load_profile("shared")
