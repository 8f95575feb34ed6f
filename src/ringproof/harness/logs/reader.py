"""Reads a run's log files, one after the other, and judges them together."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO

from ringproof.errors import InputError
from ringproof.harness.logs.facts import Facts, Ledgers, collect
from ringproof.harness.logs.findings import Expectation, cautions, findings
from ringproof.harness.logs.lines import LogScan
from ringproof.harness.logs.opening import opened, unreadable
from ringproof.harness.logs.verdict import Decision, decide

_FIELD = "FILE"


@dataclass(frozen=True)
class FileCount:
    """One file as read: bytes are those of the text, so after decompression."""

    path: str
    bytes_read: int
    lines: int


@dataclass(frozen=True)
class GroupsReport:
    """What the logs of one run say about its context parallelism.

    Attributes:
        findings: What speaks against the run; empty where all agrees.
        warnings: What the reader of the verdict should know.
    """

    facts: Facts
    decision: Decision
    expectation: Expectation
    findings: tuple[str, ...]
    warnings: tuple[str, ...]
    files: tuple[FileCount, ...]

    @property
    def as_expected(self) -> bool | None:
        """Whether nothing differs from what was expected; ``None`` where nothing was."""
        return not self.findings if self.expectation.given else None


def read_groups(
    paths: Sequence[str], expectation: Expectation, *, stdin: BinaryIO | None = None
) -> GroupsReport:
    """Read the files in one pass each and judge them as one run.

    ``-`` names ``stdin``. gzip is known by its first bytes. A file named twice is read
    once.

    Raises:
        InputError: a file that is missing, unreadable, no file, or no gzip data.
    """
    ledgers = Ledgers()
    counts: list[FileCount] = []
    notes: list[str] = []
    for path in dict.fromkeys(paths):
        with opened(_FIELD, path, what="log file of a run", stdin=stdin) as stream:
            count, note = _read_file(path, stream, ledgers)
        counts.append(count)
        notes.extend(note)
    facts = collect(ledgers)
    decision = decide(facts)
    return GroupsReport(
        facts,
        decision,
        expectation,
        findings(facts, decision, expectation),
        (*cautions(facts, decision), *notes),
        tuple(counts),
    )


def _read_file(path: str, stream: BinaryIO, ledgers: Ledgers) -> tuple[FileCount, list[str]]:
    scan = LogScan(stream)
    notes = []
    try:
        for line in scan:
            ledgers.read(path, line.number, line.text)
    except gzip.BadGzipFile as error:
        raise InputError(_FIELD, path, f"not gzip data: {error}", "rename or unpack it") from error
    except (EOFError, zlib.error) as error:
        notes.append(f"{path}: the compressed data is damaged ({error}); read up to there")
    except OSError as error:
        raise unreadable(_FIELD, path, error) from error
    if scan.bytes_read == 0:
        notes.append(f"{path} is empty")
    elif scan.looks_binary:
        notes.append(f"{path} looks binary or UTF-16, not like a text log")
    return FileCount(path, scan.bytes_read, scan.lines), notes
