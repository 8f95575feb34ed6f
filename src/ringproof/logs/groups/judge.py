"""Read a run's log files, and judge them together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, BinaryIO

from ringproof.logs.groups.decision import Decision, decide
from ringproof.logs.groups.expectation import Expectation
from ringproof.logs.groups.findings import RunFinding, findings
from ringproof.logs.groups.observed import LogFacts
from ringproof.logs.lines import Scan, opened
from ringproof.logs.parsing import NEEDLES
from ringproof.logs.rendering import rendered_lines


@dataclass(frozen=True)
class GroupsReport:
    """What the logs of one run say about its context parallelism.

    Attributes:
        files: Path, lines and bytes of each file; bytes are those of the text, once unpacked.
    """

    facts: LogFacts
    decision: Decision
    expectation: Expectation
    findings: tuple[RunFinding, ...]
    warnings: tuple[str, ...]
    files: tuple[dict[str, Any], ...]

    @property
    def as_expected(self) -> bool | None:
        """Whether nothing differs from what was expected; ``None`` where nothing was."""
        return not self.findings if self.expectation.given else None


def read_groups(
    paths: Sequence[str], expectation: Expectation, *, stdin: BinaryIO | None = None
) -> GroupsReport:
    """Read the files in one pass each and judge them as one run; ``-`` names ``stdin``.

    Raises:
        InputError: A file is missing, unreadable, not a file, or not gzip data.
    """
    facts = LogFacts()
    counts: list[dict[str, Any]] = []
    notes: list[str] = []
    for path in dict.fromkeys(paths):
        with opened("FILE", path, what="log file of a run", stdin=stdin) as log:
            scan = Scan(log.blocks(), NEEDLES)
            for line in scan:
                facts.read(path, line.number, line.text)
        counts.append({"path": path, "bytes": log.bytes_read, "lines": scan.lines})
        notes += log.notes()
    decision = decide(facts)
    found = findings(facts, decision, expectation)
    warnings = (*cautions(facts, decision), *notes)
    return GroupsReport(facts, decision, expectation, found, warnings, tuple(counts))


def cautions(facts: LogFacts, decision: Decision) -> list[str]:
    """Return every warning, the verdict's own first."""
    seen = facts.flat.size
    if seen is None and decision.level_sizes and None not in decision.level_sizes:
        seen = prod(size or 0 for size in decision.level_sizes)
    return rendered_lines("groups_cautions.txt", facts=facts, decision=decision, cp_size=seen)
