"""Where the records of a run go: a file that rank 0 writes, and lines for whoever watches."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ringproof.errors import InputError
from ringproof.harness.cluster import RankContext
from ringproof.reference.training.options import TrainOptions
from ringproof.reference.training.records import (
    EvaluationRecord,
    Record,
    RunRecord,
    StepRecord,
    json_line,
)

FORMATS = ("jsonl", "megatron")
_PROGRESS = "[ringproof train] "


@dataclass(frozen=True)
class LogFile:
    """A log of one run.

    Args:
        path: Empty: none is kept.
        format: One of :data:`FORMATS`.
    """

    path: str
    format: str

    @classmethod
    def opened(cls, path: str, kind: str, *, append: bool, first: bool) -> LogFile:
        """Start the file, before any rank does.

        Args:
            path: Empty for none.
            kind: One of :data:`FORMATS`.
            append: Whether an earlier part of the same run stays.
            first: Whether this process is the one that starts it.

        Raises:
            InputError: An unknown format, or a file that cannot be written.
        """
        if kind not in FORMATS:
            raise InputError("--log-format", kind, "unknown", f"use one of {', '.join(FORMATS)}")
        file = cls(str(Path(path).absolute()) if path else "", kind)
        if path and first:
            try:
                with Path(path).open("a" if append else "w", encoding="utf-8"):
                    pass
            except OSError as error:
                raise InputError("--log", path, str(error.strerror), "name another") from error
        return file

    def add(self, line: str) -> None:
        """Append one line, whole."""
        if self.path:
            with Path(self.path).open("a", encoding="utf-8") as stream:
                stream.write(line + "\n")

    @staticmethod
    def is_progress(line: str) -> bool:
        """Whether a rank's line is meant for whoever watches."""
        return line.startswith(_PROGRESS)

    @staticmethod
    def text(line: str) -> str:
        """What such a line says."""
        return line[len(_PROGRESS) :]


def on_rank(rank: RankContext, *, options: TrainOptions, file: LogFile) -> dict[str, Any]:
    """The case: train, report, and return what the run came to."""
    from ringproof.reference.training.trainer import train  # imports torch

    steps = options.optimiser.steps

    def report(record: Record) -> None:
        if rank.rank != 0:
            return
        if line := _file_line(record, file.format, steps):
            file.add(line)
        if line := _progress_line(record, steps):
            print(_PROGRESS + line, flush=True)

    return asdict(train(options, rank.device, report))


def _file_line(record: Record, kind: str, steps: int) -> str:
    if kind == "jsonl":
        return json_line(record)
    if isinstance(record, StepRecord):
        return record.megatron_line(steps, datetime.now())
    return record.megatron_line() if isinstance(record, EvaluationRecord) else ""


def _progress_line(record: Record, steps: int) -> str:
    if isinstance(record, RunRecord):
        return ""
    if isinstance(record, StepRecord):
        return record.progress_line(steps)
    return record.progress_line()
