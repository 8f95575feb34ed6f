"""Fixtures and settings of every test."""

from hypothesis import settings

pytest_plugins = ["ringproof.rehearsal.fixtures"]

# Modules that import Megatron or verl, which only the processes of ranks have; `--doctest-modules`
# would import them here.
collect_ignore_glob = [
    "src/ringproof/rehearsal/wheels/*.py",
    "src/ringproof/rehearsal/verl/ranks/*",
]

settings.register_profile("shared", deadline=None)  # a shared machine may stop for a while
settings.load_profile("shared")
