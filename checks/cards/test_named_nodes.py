"""Every test that a card names is one that pytest collects."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from checks.running import ran
from ringproof.cards import ProofKind, load_card, statements

ROOT = Path(__file__).parents[2]


def named() -> set[str]:
    """Node ids of all proofs of the cards."""
    cards = [load_card(path) for path in sorted((ROOT / "cards").glob("*/card.yaml"))]
    proofs = (proof for card in cards for one in statements(card) for proof in one.proofs)
    return {proof.target for proof in proofs if proof.kind is ProofKind.PYTEST}


def missing(nodes: set[str], collected: set[str]) -> list[str]:
    """Return the nodes that are neither collected nor a file or function of what is."""
    functions = {node.split("[")[0] for node in collected}
    return sorted(nodes - collected - functions - {node.split("::")[0] for node in functions})


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_every_node_that_a_card_names_is_collected() -> None:
    nodes = named()
    assert len(nodes) > 300
    files = sorted({node.split("::")[0] for node in nodes})
    words = (sys.executable, "-m", "pytest", "--collect-only", "-q", "-o", "addopts=", *files)
    environment = {name: at for name, at in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = ran(*words, cwd=ROOT, timeout=300, env=environment)  # `-v` there changes the list
    assert done.returncode == 0, done.stdout[-2000:]
    collected = {line for line in done.stdout.splitlines() if "::" in line}
    assert missing(nodes, collected) == []
    renamed = {"checks/skills/test_engine_attention.py::test_of_another_name"}
    assert missing(nodes | renamed, collected) == [*renamed], "the control"
