"""Fixtures and settings of every test."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from ringproof.cards.loading import find_cards, load_card
from ringproof.cards.proof import covers
from ringproof.cards.statements import statements

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import Scheduling

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


SERVERS = ("checks/rehearsal/", "checks/skills/")
"""Folders whose tests share servers with imported upstreams, each of which takes seconds."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    """Divide files among the processes, so that each starts other servers and fixtures."""
    if config.getvalue("dist") != "load":
        return None
    from xdist.scheduler import LoadFileScheduling

    class _ByServers(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "servers" if nodeid.startswith(SERVERS) else super()._split_scope(nodeid)

    return _ByServers(config, log)
