"""Upstream checkouts that a user gave, for tests that run upstream's own code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ringproof.harness.cards.model import Card
from ringproof.harness.proofs.anchoring import refuse_other_version
from ringproof.harness.upstreams.choice import UpstreamChoice, parse_overrides
from ringproof.harness.upstreams.tree import UpstreamTree

UPSTREAM_OPTION = "--ringproof-upstream"
"""How `prove` hands them to pytest: ``NAME=SPEC``, as often as needed; see `recorder`."""


def given_tree(entries: Sequence[str], card: Card, name: str) -> UpstreamTree:
    """Open an upstream repository of a card at the commit that the card names.

    Args:
        entries: Entries ``NAME=SPEC`` that the user gave.
        name: Key of the upstream in the card.

    Raises:
        UpstreamUnavailable: No checkout was given. The message names the one that is needed.
        InputError: The given tree is not a repository, or is at another commit.
    """
    upstream = card.upstreams[name]
    choice = UpstreamChoice(
        parse_overrides(entries, option=UPSTREAM_OPTION), cache=Path(), offline=True
    )
    tree = choice.open(name, upstream)
    refuse_other_version(name, choice.spec(name, upstream) or "", upstream, tree)
    return tree


def unpack(tree: UpstreamTree, under: str, folder: Path) -> None:
    """Write the files whose path starts with ``under`` to a folder, so that they can be run."""
    for path in tree.paths(under):
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(tree.read(path))
