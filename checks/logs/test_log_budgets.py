"""A log of a few megabytes costs seconds and megabytes, whatever it holds."""

from __future__ import annotations

import gzip
import time
from pathlib import Path

import pytest

from checks.logs.diagnose_run import traceback
from checks.logs.test_diagnose import UNKNOWN, cause, read
from ringproof.errors import InputError
from ringproof.logs.diagnosis import errors, recorder
from ringproof.logs.diagnosis.cause import diagnose
from ringproof.logs.diagnosis.single import shown_alone
from ringproof.logs.groups.expectation import Expectation
from ringproof.logs.groups.judge import read_groups
from ringproof.logs.groups.output import MAX_RANKS, as_json
from ringproof.logs.lines import PIECE_BYTES
from ringproof.logs.training.quantities import Columns
from ringproof.logs.training.shaped import ShapeReader


@pytest.mark.slow
def test_of_many_errors_without_traceback_only_the_first_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "MOST_WEAK", 100)
    looked: list[str] = []
    original = errors.LogReader._errors

    def counted(reader: errors.LogReader, said: errors._Said, line: errors.Line) -> object:
        looked.append(said.body)
        return original(reader, said, line)

    monkeypatch.setattr(errors.LogReader, "_errors", counted)
    many = [f"ValueError: number {number} is odd" for number in range(100_000)]  # three blocks
    assert cause(read(tmp_path, [*many, *traceback(UNKNOWN)]))[0] == "mycode.BadError"
    assert len(looked) < 50_000, "the lines of the first block, and the traceback"
    alone = "  what():  CUDA error: an illegal memory access was encountered"
    assert cause(read(tmp_path, [*many, alone]))[0] == "illegal-memory-access"


def test_a_report_does_not_name_every_rank_of_absurd_groups(tmp_path: Path) -> None:
    name = "group=CONTEXT_PARALLEL_GROUP backend=gloo"
    lines = [
        f"[ringproof census] rank=0/1048576 {name} ranks=0-{size - 1} place=0/{size}"
        for size in range(MAX_RANKS // 2, MAX_RANKS // 2 + 5)
    ]
    (tmp_path / "run.log").write_text("\n".join(lines))
    found = as_json(read_groups([str(tmp_path / "run.log")], Expectation()))
    assert sum(len(group["ranks"]) for group in found["groups"]) <= MAX_RANKS
    assert len(found["groups"]) + found["groups_omitted"] == 5


@pytest.mark.parametrize(
    "line",
    ["loss: " + "1" * 7900 + "x", "loss: 1." + "1" * 7900 + "x", "loss: 0 Step " + "=" * 7900],
)
def test_the_time_for_a_line_grows_with_its_length(line: str) -> None:
    reader = ShapeReader(Columns())
    start = time.process_time()
    for _ in range(4):
        reader.take(f"step: 1 {line}".encode()[:8000])
    assert time.process_time() - start < 0.5, "it took more than a second for each line"


@pytest.mark.parametrize(
    "part", ["a", "a.", "/", "a.h:1", "what(): ", "NVRM: Xid (", "process rank 1 "]
)
def test_the_time_for_an_error_grows_with_its_length(part: str) -> None:
    """Repeated beginnings of what is looked for, in the longest piece of a line that is read."""
    line = part * (2 * PIECE_BYTES // len(part)) + " Check failed: x"
    start = time.process_time()
    shown_alone(line, "run.log", "")
    assert time.process_time() - start < 1, "it took from two seconds to a minute"


def test_a_small_archive_of_a_large_dump_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "LARGEST_BYTES", 1 << 20)
    path = tmp_path / "nccl_trace_rank_3"
    path.write_bytes(gzip.compress(b"\x80\x04" + bytes(8 << 20)))
    with pytest.raises(InputError, match="above 1,048,576 bytes"):
        diagnose([str(path)])
