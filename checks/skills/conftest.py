"""Upstream's own code, for tests that run it: never kept here, read out of a checkout if given."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from checks.skills.shared import REPOSITORY, spec_of
from ringproof.cards import Card, load_card
from ringproof.prove.anchoring import CACHE_OPTION, UPSTREAM_OPTION, given_tree
from ringproof.rehearsal.fixtures import SessionServers
from ringproof.rehearsal.protocol.program import Upstream
from ringproof.upstream.tree import UpstreamTree, UpstreamUnavailable

Given = Callable[[str], UpstreamTree]


@pytest.fixture(scope="session")
def dynamic_upstream(request: pytest.FixtureRequest) -> Given:
    """By the upstream's key in the dynamic CP card; skips where no checkout was given.

    With one: ``pytest -p ringproof.prove.recorder
    --ringproof-upstream NVIDIA/Megatron-LM=git:PATH``, or ``ringproof prove --upstream ...``.
    """
    entries = request.config.getoption(UPSTREAM_OPTION, default=None) or []
    cache = request.config.getoption(CACHE_OPTION, default=None)
    card = load_card(REPOSITORY / "cards" / "dynamic-context-parallel" / "card.yaml")

    def tree(name: str) -> UpstreamTree:
        try:
            return given_tree(entries, card, name, cache=cache)
        except UpstreamUnavailable as error:
            pytest.skip(str(error))

    return tree


@pytest.fixture(scope="session")
def upstream_of(stage: SessionServers) -> Callable[[str], Upstream]:
    """Megatron-LM at the version that the dynamic CP card names, by key, on ranks without GPUs."""
    card = load_card(REPOSITORY / "cards" / "dynamic-context-parallel" / "card.yaml")

    def upstream(name: str) -> Upstream:
        return stage.upstream(spec_of(card, name))

    return upstream


@pytest.fixture(scope="session")
def dev_upstream(upstream_of: Callable[[str], Upstream]) -> Upstream:
    """Megatron-LM's dev branch on Transformer Engine's release."""
    return upstream_of("megatron-lm-dev")


@pytest.fixture(scope="module")
def text(request: pytest.FixtureRequest) -> str:
    """The text of the skill that the module's ``SKILL`` names."""
    return str((request.module.SKILL / "SKILL.md").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def card(request: pytest.FixtureRequest) -> Card:
    """The card of the skill that the module's ``SKILL`` names."""
    return load_card(REPOSITORY / "cards" / request.module.SKILL.name / "card.yaml")


@pytest.fixture(scope="session")
def graph_line(stage: SessionServers) -> Callable[[str], Upstream]:
    """Megatron-LM at the version that the graph card names, by key, on the engine of its line."""
    card = load_card(REPOSITORY / "cards" / "dynamic-cp-cuda-graphs" / "card.yaml")
    slots = spec_of(card, "transformer-engine-pr3353")

    def upstream(name: str) -> Upstream:
        megatron = spec_of(card, name)
        if name == "megatron-lm-pr6479":
            return stage.upstream(megatron, slots)
        return stage.upstream(megatron)

    return upstream
