"""``ringproof parity`` as a user runs it: on its own, under torchrun, and with bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from smoke.log_verdict import log_verdict

SHAPE = [
    "--seq-len",
    "256",
    "--heads",
    "8",
    "--kv-heads",
    "4",
    "--head-dim",
    "16",
    "--dtype",
    "float64",
    "--causal",
]
HIERARCHICAL = ["--comm", "a2a+p2p", "--hcp", "2,2"]


def ringproof(*arguments: str, launcher: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *launcher, "ringproof", "parity", "attention", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)


def assert_exact(result: dict[str, Any]) -> None:
    assert result["pass"] is True
    assert result["world"] == 4
    assert set(result["max_abs_error"]) == {"out", "lse", "dq", "dk", "dv"}
    assert max(result["max_abs_error"].values()) <= 1e-10


def test_the_acceptance_command_prints_json_and_nothing_else() -> None:
    done = ringproof(*HIERARCHICAL, "--nproc", "4", *SHAPE, "--json", "-")
    assert done.returncode == 0, done.stderr
    assert_exact(json.loads(done.stdout))


def test_the_same_under_torchrun(tmp_path: Path) -> None:
    launcher = ("torch.distributed.run", "--nproc-per-node", "4", "-m")
    log = tmp_path / "ranks.log"
    done = ringproof(
        *HIERARCHICAL, *SHAPE, "--json", "-", "--rank-log", str(log), launcher=launcher
    )
    assert done.returncode == 0, done.stderr
    assert_exact(json.loads(done.stdout))
    found = log_verdict(tmp_path, log.read_text(), "--expect", "hierarchical", "--hcp", "2,2")
    assert found.exit_code == 0
    assert found.report["proof"] == "traffic"


@pytest.mark.parametrize(
    ("comm", "verdict"),
    [pytest.param("p2p", "flat", marks=pytest.mark.slow), ("a2a", "flat")],
)
def test_a_flat_run_is_not_taken_for_a_hierarchical_one(
    tmp_path: Path, comm: str, verdict: str
) -> None:
    log = tmp_path / "ranks.log"
    done = ringproof("--comm", comm, "--nproc", "2", "--rank-log", str(log))
    assert done.returncode == 0, done.stderr
    assert "PASS" in done.stdout
    found = log_verdict(tmp_path, log.read_text(), "--expect", "hierarchical")
    assert (found.verdict, found.exit_code) == (verdict, 1)


@pytest.mark.slow
def test_a_log_starts_anew(tmp_path: Path) -> None:
    """An older run in the same file must not speak for this one."""
    log = tmp_path / "ranks.log"
    for arguments in ((*HIERARCHICAL, "--nproc", "4"), ("--comm", "p2p", "--nproc", "2")):
        assert ringproof(*arguments, "--rank-log", str(log)).returncode == 0
    found = log_verdict(tmp_path, log.read_text(), "--expect", "hierarchical")
    assert (found.verdict, found.exit_code) == ("flat", 1)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--comm", "a2a+p2p", "--hcp", "2,3", "--nproc", "4"], "--hcp"),
        (["--comm", "a2a+p2p", "--hcp", "2,x"], "--hcp"),
        (["--comm", "a2a+p2p", "--nproc", "4"], "--hcp"),
        (["--comm", "a2a+p2p", "--hcp", "2,2,2"], "--hcp"),
        (["--comm", "p2p", "--hcp", "2,2"], "--hcp"),
        (["--comm", "a2a", "--nproc", "4", "--kv-heads", "3"], "--kv-heads"),
        (["--comm", "a2a", "--nproc", "4", "--kv-heads", "2"], "--kv-heads"),
        (["--nproc", "4", "--seq-len", "250"], "--seq-len"),
        (["--nproc", "-1"], "--nproc"),
        (["--comm", "smoke-signals"], "--comm"),
        (["--dtype", "int8"], "--dtype"),
        (["--seq-len", "200000"], "--seq-len"),
        (["--rank-log", "/nonexistent/folder/log"], "--rank-log"),
        (["--json", "/nonexistent/folder/out.json"], "--json"),
        (["--backend", "smoke"], "backend"),
        (["--timeout", "nan"], "timeout"),
        (["--seed", str(2**70)], "--seed"),
        (["--kv-replication", "2"], "--kv-replication"),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, list) else None,
)
def test_bad_input_is_one_line_and_exit_code_two(arguments: list[str], named: str) -> None:
    done = ringproof(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {named}: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
