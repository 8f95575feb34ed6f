"""``ringproof logs watch``: the follower of files, what is said, exit codes, JSON and page."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from checks.logs.parity_run import iteration_line, write_csv, write_jsonl, write_megatron
from ringproof.cli.logs import app
from ringproof.cli.logs_watch_plot import plot, screen
from ringproof.errors import InputError
from ringproof.logs.lines import Origin
from ringproof.logs.training.series import Columns
from ringproof.logs.watching.following import BLOCK_BYTES, Follower
from ringproof.logs.watching.watch import (
    MOST_POINTS,
    WATCHED,
    Curve,
    Point,
    StepReader,
    Watch,
)

ROWS = [(step, 2.0 + 1 / step, 0.5) for step in range(1, 61)]
NAN = float("nan")


def watch(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["watch", *map(str, arguments)])


def state(*arguments: object) -> Any:
    result = watch(*arguments, "--once", "--json", "-")
    return json.loads(result.stdout)


def findings(path: Path, *more: object) -> list[tuple[str, int]]:
    return [(found["kind"], found["step"]) for found in state(path, *more)["findings"]]


def json_lines(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_each_format_is_read(tmp_path: Path) -> None:
    for made in (
        write_jsonl(tmp_path / "a.jsonl", ROWS),
        write_megatron(tmp_path / "a.log", ROWS),
        write_csv(tmp_path / "a.csv", ROWS),
    ):
        told = state(made)
        assert (told["step"], told["lines"], told["loss_finite"]) == (60, 60, True), made
        assert told["latest"]["loss"] == pytest.approx(ROWS[-1][1], rel=1e-6)
        assert told["latest"]["grad_norm"] == 0.5
        assert told["findings"] == []
        assert len(told["curves"]["loss"]) == 60


def test_what_a_line_has_beside_the_loss(tmp_path: Path) -> None:
    latest = state(write_megatron(tmp_path / "a.log", ROWS))["latest"]
    assert latest["step_seconds"] == pytest.approx(0.1234)
    assert latest["tflops_per_gpu"] == 12.3
    told = state(write_jsonl(tmp_path / "a.jsonl", ROWS))["cp_histogram"]
    assert told == {"counted": "sequences by CP size", "counts": {"1": 120}}


def test_cp_sizes_of_transformer_engine_are_counted(tmp_path: Path) -> None:
    log = write_megatron(tmp_path / "a.log", ROWS)
    assert state(log)["cp_histogram"]["counts"] == {}
    engine = (
        "DEBUG:DotProductAttention:Running with config={'transformer_engine_version': '2.20.2', "
        "'context_parallel': %s, 'cp_comm_type': 'p2p', 'cp_size': %d}\n"
    )
    with log.open("a") as stream:
        stream.write(engine % (True, 4) + engine % (True, 4) + engine % (False, 1))
    told = state(log)["cp_histogram"]
    assert told["counts"] == {"1": 1, "4": 2}
    assert "Transformer Engine" in told["counted"]


@pytest.mark.parametrize("bad", [NAN, float("inf")])
def test_a_loss_that_is_not_finite_fails_and_is_said_once(tmp_path: Path, bad: float) -> None:
    rows = [(step, bad if step > 40 else loss, norm) for step, loss, norm in ROWS]
    log = write_jsonl(tmp_path / "a.jsonl", rows)
    result = watch(log, "--once")
    assert result.exit_code == 1
    assert result.stdout.count("loss-not-finite at step 41") == 1
    assert result.stdout.count("finding:") == 1
    assert watch(write_jsonl(log, ROWS), "--once").exit_code == 0


def test_a_loss_that_megatron_leaves_out_is_not_finite(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    for losses in ([2.0, 2.0, None], [None, None]):  # also where no line had one
        lines = [iteration_line(step, loss, 0.5) for step, loss in enumerate(losses, 1)]
        log.write_text("\n".join(lines) + "\n")
        assert watch(log, "--once").exit_code == 1
        assert findings(log) == [("loss-not-finite", losses.index(None) + 1)]
    log.write_text(iteration_line(1, None, 0.5, skipped=1) + "\n")  # a skipped step has no loss
    assert findings(log) == []


def test_a_restart_that_trains_again_heals(tmp_path: Path) -> None:
    rows = [(1, 2.0, 1.0), (2, 2.0, 1.0), (3, NAN, 1.0), (2, 2.0, 1.0), (3, 2.0, 1.0)]
    result = watch(write_jsonl(tmp_path / "a.jsonl", rows), "--once")
    assert result.exit_code == 0
    assert "restart at step 2: step 2 again after step 3" in result.stdout
    told = state(tmp_path / "a.jsonl")
    assert [point[0] for point in told["curves"]["loss"]] == [1, 2, 3]


@pytest.mark.parametrize(
    ("step", "change", "expected"),
    [
        (30, {"loss": 2.6}, [("loss-spike", 30)]),
        (30, {"loss": 2.15}, []),  # less than 10%
        (10, {"loss": 2.6}, []),  # too few before
        (30, {"grad_norm": float("inf")}, [("grad-norm-not-finite", 30)]),
        (30, {"step_seconds": 0.21}, [("slow", 30)]),
        (30, {"step_seconds": 0.19}, []),
        (1, {"step_seconds": 9.0}, []),  # warm-up
    ],
)
def test_findings(
    tmp_path: Path, step: int, change: dict[str, float], expected: list[tuple[str, int]]
) -> None:
    rows = [
        {"step": n, "loss": 2.0 + 0.001 * (n % 3), "grad_norm": 1.0, "step_seconds": 0.1}
        for n in range(1, 61)
    ]
    rows[step - 1].update(change)
    log = json_lines(tmp_path / "a.jsonl", rows)
    assert findings(log) == expected
    assert watch(log, "--once").exit_code == 0


def test_missing_steps_are_said(tmp_path: Path) -> None:
    every_tenth = [row for row in ROWS if row[0] == 1 or row[0] % 10 == 0]
    for rows, expected in (
        ([row for row in ROWS if not 20 < row[0] < 31], [("missing", 31)]),
        (every_tenth, []),
        ([*ROWS[:2], *ROWS[9::10]], []),
    ):
        assert findings(write_jsonl(tmp_path / "a.jsonl", rows)) == expected


def test_warm_up_is_not_in_the_curve_of_the_iteration_time(tmp_path: Path) -> None:
    rows = [{"step": n, "loss": 2.0, "step_seconds": 9.0 / n} for n in range(1, 4)]
    curves = state(json_lines(tmp_path / "a.jsonl", rows))["curves"]
    assert [point[0] for point in curves["step_seconds"]] == [2, 3]
    assert [point[0] for point in curves["loss"]] == [1, 2, 3]


def test_a_step_in_the_logs_of_two_ranks_counts_once(tmp_path: Path) -> None:
    logs = [write_megatron(tmp_path / f"rank-{rank}", ROWS) for rank in range(2)]
    (tmp_path / "rank-2").write_text("no step here\n")
    told = state(*logs, tmp_path / "rank-2")
    assert (told["lines"], told["findings"]) == (60, [])


def test_an_unfinished_last_line_counts_only_where_it_can_be_whole(tmp_path: Path) -> None:
    table = write_csv(tmp_path / "a.csv", ROWS[:3])
    table.write_text(table.read_text() + "4,2.2")  # of 2.25
    assert state(table)["step"] == 3
    lines = write_jsonl(tmp_path / "a.jsonl", ROWS[:3])
    lines.write_text(lines.read_text().rstrip("\n"))
    assert state(lines)["step"] == 3
    lines.write_text(lines.read_text()[:-20])
    assert state(lines)["step"] == 2


def test_a_file_that_was_emptied_under_its_writer_is_read(tmp_path: Path) -> None:
    log = write_jsonl(tmp_path / "a.jsonl", ROWS[:3])
    log.write_bytes(b"\0" * 5000 + log.read_bytes().splitlines()[-1] + b"\n")
    assert state(log)["lines"] == 1


def test_the_page_is_whole_and_escapes_names(tmp_path: Path) -> None:
    log = write_jsonl(tmp_path / "<b>.jsonl", [*ROWS, (61, NAN, 1.0)])
    page = watch(log, "--once", "--html", "-").stdout
    assert page.startswith("<!doctype html>")
    assert page.rstrip().endswith("</html>")
    assert "&lt;b&gt;.jsonl" in page
    assert "<b>" not in page
    assert 'http-equiv="refresh"' not in page
    assert page.count("<svg") == 2
    assert 'class="first"' in page  # the step without a finite loss
    assert "loss-not-finite at step 61" in page


def test_the_plot_shows_the_peak_where_it_is() -> None:
    points = [Point(n, n, v, v) for n, v in enumerate([0.0] * 10 + [1.0] + [0.0] * 9)]
    lines = plot(points, 20, 4)
    assert lines[0].split()[0] == "1"
    assert lines[3].split()[0] == "0"
    drawn = [place for place, letter in enumerate(lines[0][11:]) if letter != "\u2800"]
    assert 9 <= min(drawn) <= max(drawn) <= 11
    flat = plot([Point(1, 1, 3.0, 3.0)], 20, 4)
    assert any(letter > "\u2800" for line in flat[:4] for letter in line[11:])


@pytest.mark.parametrize("height", [12, 20, 40])
def test_the_screen_fits_the_terminal(tmp_path: Path, height: int) -> None:
    seen = Watch()
    reader = StepReader(Origin("log", "LOG"), Columns(WATCHED), seen.engine_sizes)
    for number in range(1, 60):
        row = {"step": number, "loss": 9.0 if number == 40 else 1.0, "grad_norm": 1.0,
               "step_seconds": 0.1, "cp_histogram": {"1": 3, "4": 1}}  # fmt: skip
        for step in reader.take(json.dumps(row).encode()):
            seen.take("log", step)
    console = Console(width=70, height=height, file=io.StringIO())
    with console.capture() as taken:
        console.print(screen(seen, ["log"], 70, height))
    lines = taken.get().splitlines()
    assert len(lines) <= height
    assert max(map(len, lines)) <= 70
    assert "step 59" in lines[1]
    assert any("CP 4" in line and line.endswith(" 59") for line in lines)
    assert "loss-spike at step 40" in lines[-1]
    assert sum(line in ("loss", "grad norm") for line in lines) == (0 if height == 12 else 2)


class Following:
    """``logs watch`` in a process of its own, whose output is read while it runs."""

    def __init__(self, *arguments: object, stdin: int | None = subprocess.DEVNULL) -> None:
        command = [sys.executable, "-m", "ringproof", "logs", "watch", *map(str, arguments)]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=stdin, stdout=pipe, stderr=subprocess.STDOUT, env=environment, text=True
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(iter(self.process.stdout.readline, ""))

    def until(self, text: str, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not any(text in line for line in list(self.lines)):
            assert time.monotonic() < deadline, self.lines
            time.sleep(0.05)

    def end(self, seconds: float = 60) -> int:
        code = self.process.wait(seconds)
        self._reader.join(seconds)
        return code


def append(path: Path, *lines: str) -> None:
    with path.open("a") as stream:
        stream.writelines(line + "\n" for line in lines)


def test_a_growing_log_is_followed(tmp_path: Path) -> None:
    log, page, data = tmp_path / "run.log", tmp_path / "run.html", tmp_path / "run.json"
    following = Following(log, "--until-step", 9, "--html", page, "--json", data)
    following.until("waiting for")
    append(log, "a preamble", iteration_line(1, 2.0, 0.5))
    following.until("step 1  loss 2")
    line = iteration_line(2, 1.9, 0.5)
    with log.open("a") as stream:
        stream.write(line[:90])
    time.sleep(1)
    assert not any("step 2" in line for line in following.lines)
    append(log, line[90:])
    following.until("step 2  loss 1.9")
    log.rename(tmp_path / "run.log.1")  # rotation
    append(log, iteration_line(3, 1.8, 0.5))
    following.until("step 3  loss 1.8")
    following.until("replaced or emptied")
    log.write_text(iteration_line(4, 1.7, 0.5)[:50] + "\n" + iteration_line(4, 1.7, 0.5) + "\n")
    following.until("step 4  loss 1.7")
    append(log, iteration_line(9, 1.6, 0.5))
    assert following.end() == 0, following.lines
    assert json.loads(data.read_text())["step"] == 9
    assert "step 9" in page.read_text()


def test_a_silent_log_is_said_once_and_the_timeout_fails(tmp_path: Path) -> None:
    log = write_jsonl(tmp_path / "a.jsonl", ROWS)
    following = Following(log, "--stalled", 0.5, "--timeout", 2.5)
    assert following.end() == 1
    said = [line for line in following.lines if "stalled" in line]
    assert len(said) == 1, following.lines
    assert "after step 60" in said[0]


def test_an_interrupt_ends_with_one_line(tmp_path: Path) -> None:
    log, data = tmp_path / "a.jsonl", tmp_path / "state.json"
    log.write_text("a preamble\n")
    following = Following(log, "--json", data)
    following.until("waiting for a step: none in")
    write_jsonl(log, ROWS)
    following.until("step 60")
    following.process.send_signal(signal.SIGINT)
    assert following.end() == 130
    assert following.lines[-1].startswith("interrupted by SIGINT: ")
    assert len(following.lines) == 4, following.lines  # also that the file was written anew
    assert json.loads(data.read_text())["step"] == 60


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    following = Following("-", stdin=subprocess.PIPE)
    stdin = following.process.stdin
    assert stdin is not None
    stdin.write(iteration_line(1, 2.0, 0.5) + "\n")
    stdin.flush()
    following.until("step 1")
    stdin.write(iteration_line(2, None, 0.5))  # without a line end
    stdin.close()
    assert following.end() == 1
    following.until("loss-not-finite at step 2")


def test_a_terminal_shows_plots_and_gets_its_cursor_back(tmp_path: Path) -> None:
    log = write_jsonl(tmp_path / "a.jsonl", ROWS)
    master, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 80, 0, 0))
    command = [sys.executable, "-m", "ringproof", "logs", "watch", str(log), "--once"]
    process = subprocess.Popen(
        command, stdin=terminal, stdout=terminal, env={**os.environ, "TERM": "xterm"}
    )
    os.close(terminal)
    said = b""
    with contextlib.suppress(OSError):  # Linux says so at the end of a terminal
        while data := os.read(master, 65536):
            said += data
    os.close(master)
    assert process.wait(60) == 0
    text = said.decode()
    assert any("\u2801" <= letter <= "\u28ff" for letter in text)
    assert "step 60" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1


LONG = "x" * 400
SCENARIOS: dict[str, list[tuple[str, str, list[bytes | None]]]] = {
    "a line is given once and only when it is complete": [
        ("append", "one\ntw", [b"one"]),
        ("append", "", []),
        ("append", "o\nthr", [b"two"]),
    ],
    "a file is waited for": [("remove", "", []), ("append", "one\n", [b"one"])],
    "a truncated file begins anew": [
        ("append", "a long first line\nrest", [b"a long first line"]),
        ("write", "new\n", [b"rest", None, b"new"]),
    ],
    "a file that was written anew and is longer begins anew": [
        ("append", "old\n", [b"old"]),
        ("write", "other and longer\n", [None, b"other and longer"]),
        ("append", "appended\n", [b"appended"]),  # the control: what only grows does not
    ],
    "a file cut to its first lines begins anew": [
        ("append", f"{LONG}\nsecond\n", [LONG.encode(), b"second"]),
        ("write", f"{LONG}\n", [None, LONG.encode()]),
    ],
    "a rotated file is read to its end first": [
        ("append", "one\n", [b"one"]),
        ("rotate", "two\n", [b"two"]),
        ("append", "four\n", [None, b"four"]),
    ],
}


def change(log: Path, operation: str, text: str) -> None:
    """Do to a log what its writer, or logrotate, does."""
    if operation == "remove":
        log.unlink()
        return
    with log.open("w" if operation == "write" else "a") as stream:
        stream.write(text)
    if operation == "rotate":
        log.rename(log.with_name("log.1"))


@pytest.mark.parametrize("name", SCENARIOS)
def test_lines_that_follow(tmp_path: Path, name: str) -> None:
    log = tmp_path / "log"
    log.touch()
    follower = Follower(str(log), "LOG")
    for operation, text, expected in SCENARIOS[name]:
        change(log, operation, text)
        assert list(follower.lines()) == expected
        assert follower.waiting is (operation == "remove")
    rest = b"thr" if "complete" in name else b""
    assert [follower.unfinished(), follower.unfinished()] == [rest, b""]
    follower.close()


def test_what_is_written_just_before_a_rotation_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    change(log, "append", "one\n")
    follower = Follower(str(log), "LOG")
    replaced = follower._replaced

    def after_a_late_line() -> bool:
        if not log.with_name("log.1").exists():
            change(log, "rotate", "late\n")
            change(log, "append", "new\n")
        return replaced()

    monkeypatch.setattr(follower, "_replaced", after_a_late_line)
    assert list(follower.lines()) == [b"one", b"late", None, b"new"]


def test_a_line_without_an_end_does_not_fill_memory(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * (5 * BLOCK_BYTES))
    pieces = list(Follower(str(log), "LOG").lines())
    assert len(pieces) >= 2
    assert max(len(piece or b"") for piece in pieces) <= 2 * BLOCK_BYTES


def test_what_cannot_be_followed_is_refused(tmp_path: Path) -> None:
    packed = tmp_path / "log"
    packed.write_bytes(b"\x1f\x8b\x08\x00")
    for place in (tmp_path, packed):
        with pytest.raises(InputError):
            list(Follower(str(place), "LOG").lines())


def test_a_long_curve_is_bounded_and_keeps_its_peak() -> None:
    curve = Curve()
    for step in range(1, 100_001):
        curve.add(step, 9.0 if step == 54_321 else 1.0)
    assert len(curve.points) <= MOST_POINTS
    assert max(point.high for point in curve.points) == 9.0
    assert sum(point.count for point in curve.points) == 100_000
    assert all(a.last + 1 == b.first for a, b in zip(curve.points, curve.points[1:], strict=False))
    curve.cut(50_000)
    assert max(point.high for point in curve.points) == 1.0
