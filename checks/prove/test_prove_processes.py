"""A run that hangs, dies or is interrupted ends in time and leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from checks.prove.miniature import Miniature, claim, miniature
from smoke.processes import assert_gone, running

# Each test writes the pids of itself and of what it starts, one of them in a session of its own.
HANGING = """
import os, subprocess, sys, tempfile, time
from pathlib import Path

def _start(new_session):
    code = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(600)"
    return subprocess.Popen([sys.executable, "-c", code], start_new_session=new_session).pid

def test_first():
    pass

def test_hang():
    pids = [os.getpid(), _start(False), _start(True)]
    tempfile.mkdtemp()
    Path("pids.part").write_text(" ".join(map(str, pids)))
    Path("pids.part").rename("pids")
    time.sleep(600)

def test_last():
    pass

def test_leaves_something_behind():
    Path("pids").write_text(str(_start(False)))

def test_dies():
    os._exit(7)
"""


def _repository(tmp_path: Path, *names: str) -> Miniature:
    repository = miniature(tmp_path)
    repository.file("checks/test_hang.py", HANGING)
    repository.card(claims=[claim(name, f"checks/test_hang.py::test_{name}") for name in names])
    return repository


def _listen() -> None:
    """What a terminal starts hears Ctrl-C and its end; what nohup or a script starts does not."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _pids(repository: Miniature, seconds: float = 30.0) -> list[int]:
    path = repository.root / "pids"
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, "the hanging test never started"
        time.sleep(0.05)
    return [int(word) for word in path.read_text().split()]


@pytest.mark.slow
def test_a_hanging_test_is_stopped_by_the_time_limit(tmp_path: Path) -> None:
    repository = _repository(tmp_path, "first", "hang", "last")
    code, claims, whole = repository.verdicts("--timeout", "8")
    assert code == 1
    assert {name: item["verdict"] for name, item in claims.items()} == {
        "first": "proven",
        "hang": "refuted",
        "last": "not-here",
    }
    assert "stopped after 8 s" in claims["last"]["reason"]
    assert any("not every test was run" in problem for problem in whole["problems"])
    assert len(_pids(repository)) == 3
    assert_gone(tuple(_pids(repository)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "codes"),
    [(signal.SIGINT, {1, 130}), (signal.SIGTERM, {143}), (signal.SIGHUP, {129})],
)
def test_an_interrupted_run_leaves_nothing(
    tmp_path: Path, number: signal.Signals, codes: set[int]
) -> None:
    repository, scratch = _repository(tmp_path, "hang"), tmp_path / "scratch"
    scratch.mkdir()
    process = subprocess.Popen(
        repository.command(),
        cwd=repository.root,
        env={**os.environ, "TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=_listen,
    )
    pids = _pids(repository)
    assert list(scratch.rglob("tmp*")), "otherwise this test sees nothing"
    assert [running(pid) for pid in pids] == [True] * 3, "otherwise this test sees nothing"
    process.send_signal(number)
    output, _ = process.communicate(timeout=30)
    assert process.returncode in codes
    assert b"Traceback" not in output
    assert_gone(tuple(pids))
    assert not (repository.root / "build/prove/demo.json").exists(), "no half evidence"
    assert list(scratch.iterdir()) == []


def test_tests_end_with_a_run_that_is_killed(tmp_path: Path) -> None:
    repository = _repository(tmp_path, "hang")
    with subprocess.Popen(repository.command(), cwd=repository.root) as process:
        started = _pids(repository)
        process.kill()
    assert_gone(tuple(started))


def test_what_a_test_leaves_in_its_group_is_ended(tmp_path: Path) -> None:
    repository = _repository(tmp_path, "leaves_something_behind")
    assert repository.prove().returncode == 0
    assert_gone(tuple(_pids(repository)))


def _with_one_that_dies(tmp_path: Path) -> Miniature:
    repository = _repository(tmp_path, "first", "dies")
    repository.file("checks/test_later.py", "def test_later(): pass\n")
    repository.card(
        claims=[
            claim("first", "checks/test_hang.py::test_first"),
            claim("dies", "checks/test_hang.py::test_dies"),
            claim("later", "checks/test_later.py"),
        ]
    )
    return repository


def test_a_test_that_takes_pytest_with_it_is_named(tmp_path: Path) -> None:
    code, claims, _ = _with_one_that_dies(tmp_path).verdicts("--jobs", "1")
    assert code == 1
    assert claims["first"]["verdict"] == "proven"
    assert claims["dies"]["verdict"] == "refuted"
    assert "exit code 7" in claims["dies"]["reason"]
    assert claims["later"]["verdict"] == "not-here"


@pytest.mark.slow
def test_a_test_that_takes_its_worker_with_it_leaves_the_others(tmp_path: Path) -> None:
    code, claims, whole = _with_one_that_dies(tmp_path).verdicts("--jobs", "2")
    assert code == 1
    assert {name: item["verdict"] for name, item in claims.items()} == {
        "first": "proven",
        "dies": "refuted",
        "later": "proven",
    }
    assert "crashed" in claims["dies"]["reason"]
    assert not any("not every test" in problem for problem in whole["problems"])
