"""The runs with traces: whatever happens in them, the verdict is not lost, and no file stays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from ringproof.rehearsal.locate import locating, saying
from ringproof.rehearsal.locate.reading import RunTrace
from ringproof.rehearsal.locate.result import WrongPlace
from ringproof.rehearsal.protocol.program import Program, Upstream
from ringproof.rehearsal.protocol.reports import Failure, Iteration, RankReport
from ringproof.rehearsal.protocol.trace import MOST_BYTES
from ringproof.rehearsal.runs.outcome import Outcome, UpstreamFails

PROGRAM = Program(Upstream(Path("m"), "m", Path("e"), "e", None), "s.py", (), 1)


def running(folder: Path, *ends: Exception | Failure | None) -> Callable[[Program, Path], Outcome]:
    """Return a function that writes a file for each run, and ends it as given."""
    left = iter(ends)

    def run(_: Program, place: Path) -> Outcome:
        place.mkdir(parents=True)
        (place / "trace-0.bin").write_bytes(b"1")
        assert [one.name for one in folder.iterdir()] == [place.name], "those before are removed"
        end = next(left)
        if isinstance(end, Exception):
            raise end
        return Outcome((), end, 0.0, 0, place)

    return run


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (
            UpstreamFails(Failure("import", -1, "ServerDied: ended by signal SIGKILL")),
            "the reference with traces did not end well: ServerDied: ended by signal SIGKILL",
        ),
        (Failure("raised", 0, "no"), "the reference with traces did not end well: no"),
        (OSError(28, "No space left"), "the search failed with OSError: [Errno 28] No space left"),
        (MemoryError(), "the search failed with MemoryError"),
        (RecursionError("deep"), "the search failed with RecursionError: deep"),
    ],
)
def test_a_run_that_fails_is_a_reason(tmp_path: Path, end: Exception | Failure, why: str) -> None:
    folder = tmp_path / "trace"
    with mock.patch.object(locating, "read_run", return_value=RunTrace(())):
        found = locating.locate(running(folder, None, end), PROGRAM, PROGRAM, 1, folder)
    assert (found.culprit, found.reason, found.steps) == (None, why, (1,))
    assert not folder.exists()


def test_a_rank_that_wrote_no_trace_is_a_reason(tmp_path: Path) -> None:
    folder = tmp_path / "trace"
    found = locating.locate(running(folder, None), PROGRAM, PROGRAM, 1, folder)
    assert found.reason == "the run with traces did not end well"


def test_a_run_that_ends_before_its_model_is_called_is_a_reason(tmp_path: Path) -> None:
    folder, early = tmp_path / "trace", Failure("raised", 0, "TypeError: cu_seqlens is None")
    with mock.patch.object(locating, "read_run", return_value=RunTrace(())):
        found = locating.locate(running(folder, early), PROGRAM, PROGRAM, 1, folder)
    assert found.reason == f"the run with traces did not end well: {early.message}"


def test_files_are_removed_as_soon_as_they_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "trace"
    ends = running(folder, None, None, None)
    place = WrongPlace(None, "found")
    with (
        mock.patch.object(locating, "read_run", return_value=RunTrace(())),
        mock.patch.object(locating, "located", return_value=place) as last,
    ):
        assert locating.locate(ends, PROGRAM, PROGRAM, 1, folder) == place
    assert last.call_count == 1


def test_all_runs_together_write_less_than_their_limit(tmp_path: Path) -> None:
    folder, written = tmp_path / "trace", []

    def run(program: Program, place: Path) -> Outcome:
        assert program.trace is not None
        written.append(program.ranks * program.trace.most_bytes)
        return Outcome((), None, 0.0, 0, place)

    wide = replace(PROGRAM, ranks=64)
    with mock.patch.object(locating, "read_run", return_value=RunTrace(())):
        locating.locate(run, wide, replace(PROGRAM, ranks=16), 1, folder)
    assert len(written) == 3 and 1e9 < sum(written) <= MOST_BYTES


def logged(loss: float, norm: float = 1.0) -> Outcome:
    steps = (Iteration(1, {"lm loss": loss}, norm, 0.1),)
    return Outcome((RankReport(0, None, steps),), None, 0.0, 0, Path("logs"))


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (logged(5.0), ""),
        (logged(5.000001), ""),
        (logged(5.001), "the loss of step 1 was 5 and then 5.001"),
        (logged(5.0, 1.5), "the gradient norm of step 1 was 1 and then 1.5"),
    ],
)
def test_a_run_that_does_not_repeat_itself_is_a_race(
    tmp_path: Path, second: Outcome, said: str
) -> None:
    runs = iter((second, logged(5.0), logged(5.0)))
    with (
        mock.patch.object(locating, "read_run", return_value=RunTrace(())),
        mock.patch.object(locating, "located", return_value=WrongPlace(None, "all agree")),
    ):
        found = locating.locate(
            lambda *_: next(runs), PROGRAM, PROGRAM, 1, tmp_path, before=logged(5.0)
        )
    assert found.unstable == said
    sentence = saying.sentence(found)
    assert sentence.endswith("not located: all agree")
    assert sentence.startswith("a race or chance is at work") is bool(said)
