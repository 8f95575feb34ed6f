"""Fixtures and settings of every test."""

from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import settings

from ringproof.cards.loading import find_cards, load_card
from ringproof.cards.proof import covers
from ringproof.cards.statements import statements

pytest_plugins = ["ringproof.rehearsal.fixtures"]

settings.register_profile("shared", deadline=None)  # a shared machine may stop for a while
settings.load_profile("shared")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare what `make test` asks for."""
    parser.addoption(
        "--without-proofs",
        action="store_true",
        help="leave out the tests that a card names as proofs, which `make prove` runs",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the proofs of the cards, so that they run once where tests and proofs both do."""
    if not config.getoption("--without-proofs"):
        return
    of_file = defaultdict(set)
    for card in map(load_card, find_cards(Path(config.rootpath) / "skills").values()):
        for proof in (proof for one in statements(card) for proof in one.proofs):
            of_file[proof.file].add(proof.target)  # anchors name no test
    kept, left_out = [], []
    for item in items:
        proofs = of_file[item.nodeid.partition("::")[0]]
        covered = any(covers(one, item.nodeid) for one in proofs)
        (left_out if covered else kept).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept
