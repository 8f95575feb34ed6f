"""A pytest plugin that runs tests with edited files of upstream.

Loaded with ``-p ringproof.refuting.planting``. ``--ringproof-edits FILE`` is a JSON object
``{"ids": [...], "edits": {KEY: {PATH: TEXT}}}``: trees of upstream whose `tree_key` it has give
these texts for these files. Their origin is another one, so that what is unpacked of them is kept
apart. The tests that the ids name run in the order of the ids, until one fails in its call.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from ringproof.cards.proof import covers
from ringproof.refuting.editing import EDITS_OPTION, tree_key
from ringproof.upstream.git import GitTree
from ringproof.upstream.tree import UpstreamTree, WheelTree


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the option."""
    add = parser.getgroup("ringproof").addoption
    add(EDITS_OPTION, metavar="FILE", default=None, help="edited files of upstream, and tests")


def pytest_configure(config: pytest.Config) -> None:
    """Put the edits in place for the session."""
    path = config.getoption(EDITS_OPTION)
    if path is not None:
        planted = json.loads(Path(path).read_text("utf-8"))
        config.pluginmanager.register(_FirstFailure(planted["ids"]))
        places = ExitStack()
        places.enter_context(edited_trees(planted["edits"]))
        config.add_cleanup(places.close)


@contextmanager
def edited_trees(edits: Mapping[str, Mapping[str, str]]) -> Iterator[None]:
    """Let trees of upstream that are opened inside have edited files."""
    kinds: tuple[Any, ...] = (GitTree, WheelTree)
    reading: Any = UpstreamTree
    read, made = reading.read, [(kind, kind.__init__) for kind in kinds]

    def edited_read(tree: UpstreamTree, path: str) -> bytes:
        text = edits.get(tree_key(tree), {}).get(path)
        return read(tree, path) if text is None else text.encode()

    def edited_init(make: Any) -> Any:
        def init(tree: UpstreamTree, *arguments: Any, **named: Any) -> None:
            make(tree, *arguments, **named)
            files = edits.get(tree_key(tree))
            if files is not None:
                digest = hashlib.sha256(json.dumps([*files.items()]).encode()).hexdigest()
                tree.origin += f"+edited-{digest[:20]}"

        return init

    reading.read = edited_read
    for kind, make in made:
        kind.__init__ = edited_init(make)
    try:
        yield
    finally:
        reading.read = read
        for kind, make in made:
            kind.__init__ = make


class _FirstFailure:
    """Selects and orders tests, and ends the session at the first that fails in its call."""

    def __init__(self, ids: list[str]) -> None:
        self._ids = ids
        self._session: pytest.Session | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Leave only tests that an id names, in the order of the ids."""
        self._session = session
        named = [[item for item in items if covers(one, item.nodeid)] for one in self._ids]
        chosen = list(dict.fromkeys(item for own in named for item in own))
        config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
        items[:] = chosen

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """End the session after a failure."""
        if report.when == "call" and report.failed and self._session is not None:
            self._session.shouldstop = "a proof went red"
