"""Tests of a release, run once more on another commit of upstream, in a rank that imported it.

Called by `ringproof.rehearsal.fixtures.Stage.call` on one rank. Tests that start ranks themselves
are left out: they take the commit as a parameter.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest


class Outcomes:
    """A plugin of pytest that keeps the worst outcome of each test function, with its reason."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if "stage" not in getattr(item, "fixturenames", ())]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.partition("::")[2].partition("[")[0]
        if not report.passed:
            self.found[name] = f"{report.outcome}: {report.longreprtext[-600:]}"
        elif report.when == "call":
            self.found.setdefault(name, "passed")


def outcomes(files: Sequence[str]) -> dict[str, str]:
    """Run test files where upstream's commit is imported; return outcomes by test function."""
    kept = Outcomes()
    pytest.main(["-q", "-p", "no:cacheprovider", "--noconftest", *files], plugins=[kept])
    return kept.found
