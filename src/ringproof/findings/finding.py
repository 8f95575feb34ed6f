"""The types of a rule, a finding and a report, which the checks of ringproof return."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Rule:
    """One thing that can be wrong.

    Attributes:
        id: Two letters and three digits: ``RP`` lint, ``RA`` anchors, ``RF`` fences, ``RD`` drift.
        level: ``error`` or ``warning``, either of which fails a run; ``note`` does not.
        remedy: One sentence: what to do about it; empty where the finding says it.
    """

    id: str
    name: str
    level: Level
    what: str
    remedy: str = ""

    @property
    def page(self) -> str:
        """The page of ``docs/`` that explains it, without its suffix."""
        return "lint" if self.id.startswith("RP") else "anchors"


@dataclass(frozen=True)
class Finding:
    """One broken rule at one place. Its level is the rule's.

    Attributes:
        path: The file: relative to the working directory where it lies inside, with slashes.
        message: One line; what is wrong and what to do. Every character of it can be seen.
        end_line: The last line of the place; ``None`` where one line is named.
        identity: What stays the same when lines move, such as ``SKILL/ANCHOR``; the message's
            place is taken by it when runs are compared. Empty: nothing does.
    """

    rule: str
    path: str
    line: int
    message: str
    end_line: int | None = None
    details: tuple[str, ...] = ()
    identity: str = ""


@dataclass(frozen=True)
class Report:
    """What one run of one command found.

    Attributes:
        rules: All that were looked for, each once; every finding has one of them.
    """

    rules: tuple[Rule, ...]
    findings: tuple[Finding, ...]
    summary: tuple[str, ...]
    silenced: tuple[Finding, ...] = ()

    def rule(self, finding: Finding) -> Rule:
        """The rule that a finding breaks."""
        return next(rule for rule in self.rules if rule.id == finding.rule)

    @property
    def failed(self) -> bool:
        """Whether anything was found that is more than a note."""
        return any(self.rule(finding).level != "note" for finding in self.findings)

    @property
    def counts(self) -> Mapping[Rule, int]:
        """How often each broken rule was broken, in the rules' order."""
        found = Counter(finding.rule for finding in self.findings)
        return {rule: found[rule.id] for rule in self.rules if found[rule.id]}
