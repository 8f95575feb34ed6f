"""The records of a run: a file that rank 0 writes, and lines of progress."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime, timedelta
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringproof.cluster import RankContext
from ringproof.errors import InputError, shown
from ringproof.reference.training.records import Record, RunRecord, json_line

if TYPE_CHECKING:
    from ringproof.reference.training.options import TrainOptions

FORMATS = ("jsonl", "megatron")
PROGRESS = "[ringproof train] "
"""Prefix of a line of progress among the other lines of a rank."""


@dataclass(frozen=True)
class LogFile:
    """A log of one run.

    Attributes:
        path: Absolute path, since ranks may have another current folder; empty for no log.
        format: One of `FORMATS`.
        append: Whether an earlier part of the same run stays.
    """

    path: str
    format: str
    append: bool

    def begin(self) -> None:
        """Empty the file, or end its last line, before the first step; on one rank."""
        if self.path and self.append:
            _end_last_line(Path(self.path))
        elif self.path and Path(self.path).is_file():
            Path(self.path).open("wb").close()

    def add(self, line: str) -> None:
        """Append one line, whole or not at all.

        Raises:
            InputError: There is no room for it, or the file cannot be written any more.
        """
        if not self.path:
            return
        try:
            with Path(self.path).open("ab", buffering=0) as stream:
                _write_whole(stream, f"{line}\n".encode())
        except OSError as error:
            sentence = f"{shown(self.path)} cannot be written ({error.strerror})"
            raise InputError("--log", f"{sentence}; name a place that has room") from error


def _write_whole(stream: FileIO, data: bytes) -> None:
    """Append bytes to a file; where they do not fit, the file is as long as before."""
    size = os.fstat(stream.fileno()).st_size
    written = 0
    try:
        while written < len(data):
            written += stream.write(data[written:])
    except OSError:
        if written:
            os.ftruncate(stream.fileno(), size)
        raise


def _end_last_line(path: Path) -> None:
    """End the last line of a killed run, so that the first one of this run is separate."""
    if not path.is_file():  # a pipe or a device has no past
        return
    with path.open("rb+") as stream:
        if stream.seek(0, os.SEEK_END):
            stream.seek(-1, os.SEEK_END)
            if stream.read() != b"\n":
                stream.write(b"\n")


def on_rank(
    rank: RankContext, *, options: TrainOptions, file: LogFile, timeout: float, mark: str | None
) -> dict[str, Any]:
    """Train on one rank, report, and return the summary of the run.

    Args:
        rank: This rank.
        options: Options of the run.
        file: Its log.
        timeout: Timeout of a collective in seconds.
        mark: Prefix of a line of progress; ``None`` for no such lines.

    Raises:
        InputError: See `ringproof.reference.training.trainer.train`.
    """
    from ringproof.reference.graphs.tape.backend import choose_backend  # imports torch
    from ringproof.reference.training.trainer import train

    steps = options.optimiser.steps

    def say(line: str) -> None:
        if line and mark is not None and rank.rank == 0:
            print(mark + line, flush=True)

    def report(record: Record) -> None:
        if rank.rank == 0:
            _keep(record, file, steps)
        say(record.progress_line(steps))

    backend = None
    if options.graphs.graphs == "bank":
        backend = choose_backend(options.graphs.graph_backend, rank.device)
    limit = timedelta(seconds=timeout)
    summary = train(options, rank.device, report, backend=backend, timeout=limit)
    if summary.steps == summary.resumed_at:
        say(f"already at step {summary.steps} of {steps}: nothing to do")
    return summary.as_json()


def _keep(record: Record, file: LogFile, steps: int) -> None:
    if isinstance(record, RunRecord):
        file.begin()
    jsonl = file.format == "jsonl"
    line = json_line(record) if jsonl else record.megatron_line(steps, datetime.now())
    if line:
        file.add(line)
