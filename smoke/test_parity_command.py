"""``ringproof parity`` as a user runs it: on its own, under torchrun, and with bad input."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from smoke.processes import called, log_verdict, ringproof

SHAPE = (
    *("--seq-len", "256", "--heads", "8", "--kv-heads", "4", "--head-dim", "16"),
    *("--dtype", "float64", "--causal"),
)
HIERARCHICAL = ["--comm", "a2a+p2p", "--hcp", "2,2"]


parity = partial(ringproof, "parity", "attention")


def assert_exact(result: dict[str, Any]) -> None:
    assert result["pass"] is True
    assert result["world"] == 4
    assert set(result["max_abs_error"]) == {"out", "lse", "dq", "dk", "dv"}
    assert max(result["max_abs_error"].values()) <= 1e-10


def test_the_acceptance_command_prints_json_and_nothing_else() -> None:
    done = parity(*HIERARCHICAL, "--ranks", "4", *SHAPE, "--json", "-")
    assert done.returncode == 0, done.stderr
    assert_exact(json.loads(done.stdout))


@pytest.mark.slow
def test_the_same_under_torchrun(tmp_path: Path) -> None:
    launcher = ("torch.distributed.run", "--nproc-per-node", "4", "-m")
    log = tmp_path / "ranks.log"
    done = parity(*HIERARCHICAL, *SHAPE, "--json", "-", "--rank-log", str(log), launcher=launcher)
    assert done.returncode == 0, done.stderr
    assert_exact(json.loads(done.stdout))
    found = log_verdict(tmp_path, log.read_text(), "--expect", "hierarchical", "--hcp", "2,2")
    assert found.exit_code == 0
    assert found.report["proof"] == "traffic"


@pytest.mark.slow
@pytest.mark.parametrize("comm", ["p2p", "a2a"])
def test_a_flat_run_is_not_taken_for_a_hierarchical_one(tmp_path: Path, comm: str) -> None:
    log = tmp_path / "ranks.log"
    done = parity("--comm", comm, "--ranks", "2", "--rank-log", str(log))
    assert done.returncode == 0, done.stderr
    assert "PASS" in done.stdout
    found = log_verdict(tmp_path, log.read_text(), "--expect", "hierarchical")
    assert (found.verdict, found.exit_code) == ("flat", 1)


@pytest.mark.slow
def test_a_log_starts_anew(tmp_path: Path) -> None:
    """An older run in the same file must not speak for this one."""
    log = tmp_path / "ranks.log"
    for arguments in ((*HIERARCHICAL, "--ranks", "4"), ("--comm", "p2p", "--ranks", "2")):
        assert parity(*arguments, "--rank-log", str(log)).returncode == 0
    found = log_verdict(tmp_path, log.read_text(), "--expect", "hierarchical")
    assert (found.verdict, found.exit_code) == ("flat", 1)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--comm", "a2a+p2p", "--hcp", "2,3", "--ranks", "4"], "--hcp"),
        (["--comm", "a2a+p2p", "--hcp", "2,x"], "--hcp"),
        (["--comm", "a2a+p2p", "--ranks", "4"], "--hcp"),
        (["--comm", "a2a+p2p", "--hcp", "2,2,2"], "--hcp"),
        (["--comm", "p2p", "--hcp", "2,2"], "--hcp"),
        (["--comm", "a2a", "--ranks", "4", "--kv-heads", "3"], "--kv-heads"),
        (["--comm", "a2a", "--ranks", "4", "--kv-heads", "2"], "--kv-heads"),
        (["--ranks", "4", "--seq-len", "250"], "--seq-len"),
        (["--ranks", "-1"], "--ranks"),
        (["--comm", "smoke-signals"], "--comm"),
        (["--dtype", "int8"], "--dtype"),
        (["--seq-len", "200000"], "--seq-len"),
        (["--rank-log", "/nonexistent/folder/log"], "--rank-log"),
        (["--json", "/nonexistent/folder/out.json"], "--json"),
        (["--backend", "smoke"], "--backend"),
        (["--timeout", "nan"], "--timeout"),
        (["--seed", str(2**70)], "--seed"),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, list) else None,
)
def test_bad_input_is_one_line_and_exit_code_two(
    arguments: list[str],
    named: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code, output, errors = called(capsys, monkeypatch, "parity", "attention", *arguments)
    assert code == 2
    assert errors.startswith(f"error: {named}: ")
    assert errors.count("\n") == 1
    assert output == ""
