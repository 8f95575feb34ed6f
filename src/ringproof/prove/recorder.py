"""A pytest plugin that runs selected tests and records their results.

Loaded with ``-p ringproof.prove.recorder``. ``--ringproof-select FILE`` is a JSON object
``{"ids": [...], "quick": bool, "done": [...]}``: a test is run when an id names it, its function,
class or file, and it is not done already; with ``quick`` tests marked ``slow`` are skipped, as left
out. ``--ringproof-events FILE`` receives
one JSON object per line, flushed at once, so that a run that dies is told apart from one that ends.
``--ringproof-upstream NAME=SPEC`` tells tests where a checkout of an upstream is; a test that needs
one and is given none skips, with `UpstreamChoice`'s words as its reason. ``--ringproof-cache DIR``
is the cache in which such checkouts are looked for, and with ``--ringproof-offline`` tests download
nothing. The events:

    {"event": "collect", "id": FILE, "outcome": "failed" | "skipped", "detail": TEXT}
    {"event": "selected", "ids": [...]}
    {"event": "start", "id": NODE}
    {"event": "phase", "id": NODE, "when": "setup" | "call" | "teardown", "outcome": ...,
     "seconds": S, "detail": TEXT, "expected_failure": bool, "properties": [[NAME, VALUE], ...],
     "touches": [[EXECUTED, REPO, NAME, ROOT, [FUNCTION, ...]], ...]}
    {"event": "finish", "id": NODE}
    {"event": "end", "exit": N}
"""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import TextIO

import pytest

from ringproof.cards.proof import covers
from ringproof.prove.anchoring import CACHE_OPTION, OFFLINE_OPTION, UPSTREAM_OPTION
from ringproof.prove.imports import ImportedUpstreams
from ringproof.prove.judging import LEFT_OUT
from ringproof.prove.touches import Touch, collecting, watch

TOUCHES = "ringproof-touches"
"""Property of a test that carries what it touched of upstream from a worker."""

_TAIL_CHARACTERS = 4000
_OUTPUT_CHARACTERS = 1500


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    add = parser.getgroup("ringproof").addoption
    add("--ringproof-events", metavar="FILE", default=None, help="write events here")
    add("--ringproof-select", metavar="FILE", default=None, help="tests to run")
    where = "where a checkout of an upstream is, for tests that run its code"
    add(UPSTREAM_OPTION, metavar="NAME=SPEC", action="append", default=[], help=where)
    add(CACHE_OPTION, metavar="DIR", default=None, help="where fetched upstreams are")
    add(OFFLINE_OPTION, action="store_true", help="do not download anything")


def pytest_configure(config: pytest.Config) -> None:
    """Start recording; where tests are distributed, only the controlling process records."""
    events = config.getoption("--ringproof-events")
    if config.getoption("--ringproof-select") is not None:
        config.pluginmanager.register(_Touches())
    if events is not None and not hasattr(config, "workerinput"):
        stream = Path(events).open("a", encoding="utf-8")  # noqa: SIM115 - closed at session end
        config.pluginmanager.register(_Recorder(stream, str(config.rootpath)))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests that no proof names, and skip slow ones in a quick run."""
    selection = config.getoption("--ringproof-select")
    if selection is None:
        return
    wanted = json.loads(Path(selection).read_text("utf-8"))
    done = set(wanted.get("done", ()))
    named = [
        item
        for item in items
        if item.nodeid not in done and any(covers(one, item.nodeid) for one in wanted["ids"])
    ]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(named)])
    items[:] = named
    for item in named:
        if wanted["quick"] and item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason=LEFT_OUT), append=False)


class _Touches:
    """Attaches to each test what of upstream it and its fixtures touched."""

    def __init__(self) -> None:
        self._of_fixture: dict[object, list[Touch]] = {}
        self._imports = ImportedUpstreams()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Iterator[None]:
        with collecting() as found:
            code = getattr(fixturedef.func, "__code__", None)
            if code is not None:
                self._watch_imports(Path(code.co_filename), fixturedef.argname)
            result = yield
        self._of_fixture[fixturedef] = found
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        try:
            with collecting() as found:
                self._watch_imports(item.path, getattr(item, "originalname", None) or item.name)
                return (yield)
        finally:
            touches = {*found, *self._before(item)}
            rows = [list(astuple(touch)) for touch in sorted(touches)]
            item.user_properties.append((TOUCHES, rows))

    def _before(self, item: pytest.Item) -> Iterator[Touch]:
        known = getattr(item, "_fixtureinfo", None)
        for definitions in known.name2fixturedefs.values() if known else ():
            for definition in definitions:
                yield from self._of_fixture.get(definition, ())

    def _watch_imports(self, path: Path, function: str) -> None:
        """Watch the installed packages that a test or fixture can reach from its file's imports."""
        for package in self._imports.reached(path, function):
            installed = package.installed()
            if installed is not None:
                watch(*installed)


class _Recorder:
    """Writes the events. Paths below the repository root are made relative."""

    def __init__(self, stream: TextIO, root: str) -> None:
        self._stream = stream
        self._root = root

    def write(self, event: str, **fields: object) -> None:
        self._stream.write(json.dumps({"event": event, **fields}) + "\n")
        self._stream.flush()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.outcome != "passed":
            detail = self._detail(report)
            self.write("collect", id=report.nodeid, outcome=report.outcome, detail=detail)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.write("selected", ids=[item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self.write("selected", ids=list(ids))

    def pytest_unconfigure(self) -> None:
        self._stream.close()

    def _detail(self, report: pytest.CollectReport | pytest.TestReport) -> str:
        """Return the reason of a skip, or the end of the failure and of the test's output."""
        text = getattr(report, "wasxfail", None)
        if text is not None:
            return f"expected to fail: {text}"
        if isinstance(report.longrepr, tuple):
            return str(report.longrepr[2]).removeprefix("Skipped: ")
        text = str(report.longrepr or "")[-_TAIL_CHARACTERS:]
        output: Sequence[str] = [content for _, content in report.sections if content.strip()]
        for content in output:
            text += f"\n{content.rstrip()[-_OUTPUT_CHARACTERS:]}"
        text = text.replace(f"{self._root}/", "").strip()
        return text.encode("utf-8", "replace").decode("utf-8")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.write("start", id=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.write(
            "phase",
            id=report.nodeid,
            when=report.when,
            outcome=report.outcome,
            seconds=round(report.duration, 6),
            detail="" if report.outcome == "passed" else self._detail(report),
            expected_failure=hasattr(report, "wasxfail"),
            properties=[
                [str(name), _plain(value)]
                for name, value in report.user_properties
                if name != TOUCHES
            ],
            touches=next((rows for name, rows in report.user_properties if name == TOUCHES), []),
        )
        if report.when not in ("setup", "call", "teardown"):  # a worker died in this test
            self.write("finish", id=report.nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.write("finish", id=nodeid)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self.write("end", exit=int(exitstatus))


def _plain(value: object) -> float | int | str:
    """Return a recorded property for JSON: finite numbers unchanged, anything else as text."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
        return str(value)[:200].encode("utf-8", "replace").decode("utf-8")
    return int(value) if isinstance(value, numbers.Integral) else float(value)
