"""The lines of upstream that doctor is held against: their commits, and what doctor knows of them.

Options that name upstream's repositories are those of ``ringproof.rehearsal.fixtures``.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

import pytest

from checks.skills.shared import REPOSITORY
from ringproof.cards import Card, find_cards, load_card
from ringproof.doctor.lines import Stack, stack_named
from ringproof.rehearsal.fixtures import SessionServers
from ringproof.rehearsal.protocol.program import Upstream
from ringproof.stack.products import BRIDGE, ENGINE

COMMITS = {
    "dev": "d48bd6be0a85cc0d6d3cc71e8750cf357cc6bdb1",
    "main": "d98e8a64ddf34856e74b24714e3bedb2f5a39553",
    "r0.19": "f8837c04ef6cbef6cdefb8de001aad63178aebbf",
    "release": "55ac7082517c3878ae653c07c09c534b8aed49f6",
    "pr5618": "292388f6e432fe8228a79eeccd86290552f032ea",
    "pr6479": "986bf457874162909e1ee3ef1b59062b97fa44d5",
}
PRODUCTS = {"bridge": BRIDGE, "te": ENGINE}
TRAINED = ("dev", "main", "r0.19", "release")
"""Lines that run on the released Transformer Engine."""


@functools.cache
def cards() -> Mapping[str, Card]:
    """Return the cards of the skills."""
    return {name: load_card(path) for name, path in find_cards(REPOSITORY / "skills").items()}


def stack_at(key: str) -> Stack:
    """Return a line of upstream by its name, and lines of other products after a ``+``.

    What stands after a ``+`` may be the version of a product as well: ``main+bridge=0.4.2``.
    """
    name, *more = key.split("+")
    stack = stack_named(name, cards(), "--line")
    given = dict(part.split("=") for part in more if "=" in part)
    versions = {PRODUCTS[product]: version for product, version in given.items()}
    others = frozenset(part for part in more if "=" not in part)
    return replace(stack, lines=stack.lines | others, versions={**stack.versions, **versions})


def upstream_at(stage: SessionServers, line: str) -> Upstream:
    """Return Megatron-LM at the commit of a line; skip where it cannot run."""
    for name in ("six", "regex") if line == "release" else ():
        pytest.importorskip(name, reason="0.16.1's program imports it: pip install six regex")
    return stage.upstream(f"NVIDIA/Megatron-LM@{COMMITS[line]}")
