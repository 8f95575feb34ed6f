"""Errors of one kind on any number of ranks."""

from __future__ import annotations

from dataclasses import dataclass, field

from ringproof.logs.diagnosis.errors import TIMEOUT, RankError
from ringproof.logs.diagnosis.symptoms import Symptom

MOST_EVIDENCE = 3
KINDS = ("exception", "nan", "hang", "follow-up")
"""Kinds of errors, those that come first in a diagnosis first."""


@dataclass
class SharedError:
    """Errors of one kind on any number of ranks.

    Attributes:
        symptom: Entry of the index, or ``None`` for an error that it does not know.
        candidates: Entries that its words fit, of which the facts of the run choose one.
        who: Ranks that have it; ``waits`` are the ranks by what they wait in, for timeouts.
        group: Group that they wait in, and ``absent`` the ranks that seem to be missing there.
    """

    symptom: Symptom | None
    evidence: list[RankError] = field(default_factory=list)
    who: set[str] = field(default_factory=set)
    waits: dict[str, set[str]] = field(default_factory=dict)
    count: int = 0
    last: RankError | None = None
    candidates: tuple[Symptom, ...] = ()
    group: str = ""
    absent: tuple[int, ...] = ()

    @property
    def first(self) -> RankError:
        """The first of its errors."""
        return self.evidence[0]

    @property
    def kind(self) -> str:
        """Kind, with all that stops a rank by itself as ``exception``."""
        kind = self.symptom.kind if self.symptom else "exception"
        return kind if kind in KINDS else "exception"

    def add(self, event: RankError) -> None:
        """Take an error; those with a traceback are better evidence than those without."""
        if self.evidence and self.first.weak and not event.weak:
            self.evidence.clear()
            self.who.clear()
        alike = not self.evidence or self.first.weak == event.weak
        if len(self.evidence) < MOST_EVIDENCE and alike:
            self.evidence.append(event)
        self.count += 1
        self.last = event
        if alike and not (event.who == event.file and self._named_in(event.file)):
            self.who.add(event.who)
        if event.error == TIMEOUT:
            self.waits.setdefault(event.message, set()).add(event.who)

    def _named_in(self, file: str) -> bool:
        """Whether another line of a log, which says whose it is, shows the same."""
        return any(one.file == file and one.who != file for one in self.evidence)
