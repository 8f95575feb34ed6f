"""Upstream's own code, for tests that run it: never kept here, read out of a checkout if given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from checks.skills.fresh_process import REPOSITORY
from ringproof.harness.cards import load_card
from ringproof.harness.proofs.given import UPSTREAM_OPTION, given_tree, unpack
from ringproof.harness.upstreams.tree import UpstreamTree, UpstreamUnavailable

Given = Callable[[str], UpstreamTree]


@pytest.fixture(scope="session")
def dynamic_upstream(request: pytest.FixtureRequest) -> Given:
    """By the upstream's key in the dynamic CP card; skips where no checkout was given.

    With one: ``pytest -p ringproof.harness.proofs.recorder
    --ringproof-upstream NVIDIA/Megatron-LM=git:PATH``, or ``ringproof prove --upstream ...``.
    """
    entries = request.config.getoption(UPSTREAM_OPTION, default=None) or []
    card = load_card(REPOSITORY / "skills" / "dynamic-context-parallel" / "card.yaml")

    def tree(name: str) -> UpstreamTree:
        try:
            return given_tree(entries, card, name)
        except UpstreamUnavailable as error:
            pytest.skip(str(error))

    return tree


@pytest.fixture(scope="session")
def dev_folder(dynamic_upstream: Given) -> Iterator[Path]:
    """Megatron-LM's dev branch, as a folder to put on the path of a fresh interpreter."""
    tree = dynamic_upstream("megatron-lm-dev")
    with TemporaryDirectory(prefix="ringproof-upstream-") as folder:
        unpack(tree, "megatron/", Path(folder))
        yield Path(folder)
