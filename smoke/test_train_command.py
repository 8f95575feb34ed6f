"""``ringproof train`` as a user runs it: on its own, under torchrun, stopped and resumed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SHORT = (
    *("--data", "synthetic", "--global-batch", "4", "--dtype", "float64"),
    *("--max-length", "64", "--max-tokens-per-rank", "64"),
)


def ringproof(*arguments: str, launcher: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *launcher, "ringproof", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)


def steps(path: Path) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return [record for record in records if record["kind"] == "step"]


def test_ranks_are_started_and_say_the_same_as_torchruns(tmp_path: Path) -> None:
    own, launched = tmp_path / "own.jsonl", tmp_path / "launched.jsonl"
    arguments = ("train", "--cp", "2", "--steps", "3", *SHORT)
    done = ringproof(*arguments, "--log", str(own), "--json", "-")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == 3  # and nothing else
    launcher = ("torch.distributed.run", "--nproc-per-node", "2", "-m")
    # torchrun takes --log for an abbreviation of its own options.
    done = ringproof(*arguments, "--log-file", str(launched), launcher=launcher)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("step ") == 3
    found = ringproof("logs", "parity", str(own), str(launched), "--tol", "0")
    assert found.returncode == 0, found.stdout


def test_another_seed_is_another_run(tmp_path: Path) -> None:
    """Negative control of the comparison above and of the log."""
    logs = []
    for seed in ("0", "1"):
        logs.append(str(tmp_path / f"{seed}.jsonl"))
        done = ringproof("train", "--steps", "2", *SHORT, "--seed", seed, "--log", logs[-1])
        assert done.returncode == 0, done.stderr
    assert ringproof("logs", "parity", *logs, "--tol", "1e-3").returncode == 1


def test_a_run_that_was_stopped_goes_on_to_the_last_bit(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    common = ("train", "--cp", "2", *SHORT, "--evaluate-every", "2")
    assert ringproof(*common, "--steps", "4", "--log", str(whole)).returncode == 0
    saving = (*common, "--save", str(tmp_path / "kept"), "--save-every", "2", "--log", str(parts))
    assert ringproof(*saving, "--steps", "4").returncode == 0
    (tmp_path / "kept" / "latest").write_text("step-000002\n")
    done = ringproof(*saving, "--steps", "4", "--resume")
    assert done.returncode == 0, done.stderr
    again = steps(parts)
    assert [record["step"] for record in again] == [1, 2, 3, 4, 3, 4]
    for record, wanted in zip(again[-2:], steps(whole)[-2:], strict=True):
        assert record["loss"] == wanted["loss"]
        assert record["grad_norm"] == wanted["grad_norm"]
    refused = ringproof(*saving, "--steps", "4", "--resume", "--seed", "1")
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: --seed: ")
    assert refused.stderr.count("\n") == 1


def test_megatrons_lines_are_read_by_the_log_tools(tmp_path: Path) -> None:
    ours, megatrons = tmp_path / "run.jsonl", tmp_path / "run.log"
    common = ("train", "--steps", "3", *SHORT)
    assert ringproof(*common, "--log", str(ours)).returncode == 0
    done = ringproof(*common, "--log", str(megatrons), "--log-format", "megatron")
    assert done.returncode == 0, done.stderr
    found = ringproof("logs", "parity", str(ours), str(megatrons), "--tol", "1e-6", "--json", "-")
    assert found.returncode == 0, found.stdout + found.stderr


def test_torchrun_with_another_number_of_ranks_is_refused() -> None:
    launcher = ("torch.distributed.run", "--nproc-per-node", "2", "-m")
    done = ringproof("train", "--cp", "4", "--steps", "1", *SHORT, launcher=launcher)
    assert done.returncode != 0
    assert "torchrun made 2 ranks" in done.stderr
