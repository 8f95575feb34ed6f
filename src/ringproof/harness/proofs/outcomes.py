"""Results of tests, read from the events that `recorder` writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from ringproof.harness.cards.proof import covers


class TestState(str, Enum):
    """Result of a test, or why it was not started."""

    __test__ = False

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    LEFT_OUT = "left out"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class TestOutcome:
    """Result of one test.

    Attributes:
        seconds: Time of set-up, call and tear-down together.
        detail: Reason of the skip, or end of the failure; empty if passed.
        properties: Values that the test recorded by ``record_property``, in order.
    """

    __test__ = False

    id: str
    state: TestState
    seconds: float = 0.0
    detail: str = ""
    properties: tuple[tuple[str, float | int | str], ...] = ()


@dataclass(frozen=True)
class CollectProblem:
    """A file or class whose tests were not listed, because of an error or a skip."""

    id: str
    failed: bool
    detail: str


@dataclass(frozen=True)
class SuiteResult:
    """Result of one pytest run.

    Attributes:
        tests: Every test that a proof names, by node id.
        problems: Files that could not be collected.
        incomplete: Why some selected tests were not run; empty if all were.
    """

    tests: Mapping[str, TestOutcome]
    problems: tuple[CollectProblem, ...] = ()
    incomplete: str = ""

    def covered_by(self, proof_id: str) -> tuple[TestOutcome, ...]:
        """Return the tests that a node id names, in the order in which they ran."""
        return tuple(test for test in self.tests.values() if covers(proof_id, test.id))


@dataclass
class _Running:
    seconds: float = 0.0
    state: TestState = TestState.PASSED
    detail: str = ""
    properties: tuple[tuple[str, float | int | str], ...] = ()
    finished: bool = False


@dataclass
class EventLog:
    """Collects events into a `SuiteResult`, and is the source of live progress."""

    selected: tuple[str, ...] | None = None
    left_out: tuple[str, ...] = ()
    ended: bool = False
    finished: int = 0
    failed: int = 0
    current: str = ""
    _running: dict[str, _Running] = field(default_factory=dict)
    _problems: dict[str, CollectProblem] = field(default_factory=dict)

    def feed(self, line: str) -> None:
        """Read one line. Incomplete lines are ignored."""
        try:
            event = json.loads(line)
            kind = event["event"]
        except (ValueError, KeyError, TypeError):
            return
        if kind == "selected":
            self.selected = tuple(event["ids"])
            self.left_out = tuple(event["left_out"])
        elif kind == "collect":
            failed = event["outcome"] == "failed"
            self._problems[event["id"]] = CollectProblem(event["id"], failed, event["detail"])
        elif kind == "start":
            self.current = event["id"]
            self._running[event["id"]] = _Running()
        elif kind == "phase":
            self._phase(event)
        elif kind == "finish":
            self._finish(event["id"])
        elif kind == "end":
            self.ended = True

    def _phase(self, event: Mapping[str, object]) -> None:
        running = self._running.setdefault(str(event["id"]), _Running())
        running.seconds += float(str(event["seconds"]))
        properties = event["properties"]
        if isinstance(properties, list):
            running.properties = tuple((name, value) for name, value in properties)
        state = TestState(str(event["outcome"]))
        if event["expected_failure"]:
            # An expected failure means that the property does not hold, so it is not a proof.
            state = TestState.FAILED
        if state is TestState.PASSED or running.state is TestState.FAILED:
            return
        where = "" if event["when"] == "call" else f"in {event['when']}: "
        skipped = state is TestState.SKIPPED
        running.state = state
        running.detail = str(event["detail"]) if skipped else f"{where}{event['detail']}"

    def _finish(self, node_id: str) -> None:
        running = self._running.setdefault(node_id, _Running())
        running.finished = True
        self.finished += 1
        self.failed += running.state is TestState.FAILED

    def result(self, ended: str) -> SuiteResult:
        """Return the result of all events.

        Args:
            ended: How the process ended, for tests that were running: ``timed out after 5 s``.
        """
        selected = self.selected or ()
        tests: dict[str, TestOutcome] = {}
        for node_id in (*self._running, *selected, *self.left_out):
            tests.setdefault(node_id, self._outcome(node_id, ended))
        cut = [test for test in tests.values() if test.state is TestState.NOT_RUN]
        died = [node for node, running in self._running.items() if not running.finished]
        incomplete = ended if cut or died or self.selected is None or not self.ended else ""
        return SuiteResult(MappingProxyType(tests), tuple(self._problems.values()), incomplete)

    def _outcome(self, node_id: str, ended: str) -> TestOutcome:
        if node_id in self.left_out:
            return TestOutcome(node_id, TestState.LEFT_OUT)
        running = self._running.get(node_id)
        if running is None:
            return TestOutcome(node_id, TestState.NOT_RUN, detail=ended)
        if not running.finished:
            detail = f"{ended} while this test was running\n{running.detail}".strip()
            state = TestState.FAILED
            return TestOutcome(node_id, state, running.seconds, detail, running.properties)
        return TestOutcome(
            node_id, running.state, running.seconds, running.detail, running.properties
        )
