"""``ringproof train`` as a user runs it: on its own, under torchrun, stopped and resumed."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from ringproof.errors import InputError
from ringproof.harness.cluster import Cluster, RankContext
from ringproof.reference.training.agreement import OtherRankFailed, refuse_together
from ringproof.reference.training.assembly import assembly
from smoke.training_matrix import Spread, options_of

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
    assert [line[:8] for line in done.stdout.splitlines()] == [f"step {n}/3" for n in (1, 2, 3)]
    found = ringproof("logs", "parity", str(own), str(launched), "--tol", "0")
    assert found.returncode == 0, found.stdout


@pytest.mark.slow
def test_another_seed_is_another_run(tmp_path: Path) -> None:
    """Negative control of the comparison above and of the log."""
    logs = []
    for seed in ("0", "1"):
        logs.append(str(tmp_path / f"{seed}.jsonl"))
        done = ringproof("train", "--steps", "2", *SHORT, "--seed", seed, "--log", logs[-1])
        assert done.returncode == 0, done.stderr
    assert ringproof("logs", "parity", *logs, "--tol", "1e-3").returncode == 1


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_a_run_that_diverges_stops_and_keeps_the_last_sound_checkpoint(tmp_path: Path) -> None:
    log, kept = tmp_path / "run.jsonl", tmp_path / "kept"
    saving = ("--save", str(kept), "--save-every", "1", "--log", str(log))
    lost = ("--learning-rate", "1e6", "--steps", "9")
    done = ringproof("train", "--dp", "2", *SHORT, "--dtype", "float32", *lost, *saving)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "no finite number in step" in done.stderr
    assert done.stderr.count("\n") == 1
    last = steps(log)[-1]  # the step is reported, and is not kept
    assert not math.isfinite(last["loss"] + last["grad_norm"])
    assert (kept / "latest").read_text() == f"step-{last['step'] - 1:06}\n"


def rank_one_refuses(rank: RankContext) -> None:
    def read() -> int:
        if rank.rank == 1:
            raise InputError("b.txt", 3, "cannot be read", "leave it out")
        return rank.rank

    assert dist.group.WORLD is not None
    refuse_together(read, dist.group.WORLD)


def rank_one_breaks(rank: RankContext) -> str:
    """A rank that meets what nobody expects, and what the others learn of it."""

    def read() -> None:
        if rank.rank == 1:
            raise MemoryError("no room for a batch")

    assert dist.group.WORLD is not None
    try:
        refuse_together(read, dist.group.WORLD)
    except (MemoryError, OtherRankFailed) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def nobody_refuses(rank: RankContext) -> int:
    assert dist.group.WORLD is not None
    return refuse_together(lambda: rank.rank, dist.group.WORLD)


def test_what_one_rank_refuses_all_refuse(cluster: Cluster) -> None:
    """So it ends as one line: a rank that refused alone would be a failure with a traceback."""
    with pytest.raises(InputError, match=r"^b.txt: cannot be read \(got 3\); leave it out$"):
        cluster.run(rank_one_refuses, world_size=3)
    assert cluster.run(nobody_refuses, world_size=3).values == (0, 1, 2)


def test_what_one_rank_raises_ends_all(cluster: Cluster) -> None:
    told = "OtherRankFailed: rank 1 raised MemoryError: no room for a batch"
    found = cluster.run(rank_one_breaks, world_size=3).values
    assert found == (told, "MemoryError: no room for a batch", told)


def limits(rank: RankContext, *, seconds: float | None) -> list[float]:
    """The limits of the collectives of every group that a run makes."""
    options = options_of("qwen3-tiny", Spread({"cp": 2, "pp": 2}))
    timeout = None if seconds is None else timedelta(seconds=seconds)
    with assembly(options, rank.device, timeout):
        made = [g for g in distributed_c10d._world.pg_map if g is not dist.group.WORLD]
        backends = [g._get_backend(torch.device("cpu")) for g in made]
        return [backend.options._timeout.total_seconds() for backend in backends]


def groups_made(rank: RankContext) -> list[tuple[str, tuple[int, ...]]]:
    """Every group that this rank makes for Dynamic CP on two, also those it is no member of."""
    made, new_group = [], dist.new_group

    def noted(ranks: list[int], **options: Any) -> dist.ProcessGroup:
        made.append((str(options["group_desc"]), tuple(ranks)))
        return new_group(ranks, **options)

    dist.new_group = noted
    try:
        with assembly(options_of("qwen3-tiny", Spread({"cp": 2, "pp": 2})), rank.device, None):
            return made
    finally:
        dist.new_group = new_group


def test_each_group_is_made_once(cluster: Cluster) -> None:
    """One for each axis that is used, for CP size 1 and for the shared embedding."""
    for made in cluster.run(groups_made, world_size=4).values:
        assert len(set(made)) == len(made)
        cp = [ranks for description, ranks in made if len(ranks) == 2 and "CP" in description]
        assert sorted(set(cp)) == sorted(cp), "CP and DPxCP are the same ranks"
        assert {description for description, _ in made} == {
            "TENSOR_MODEL_PARALLEL_GROUP",
            "PIPELINE_MODEL_PARALLEL_GROUP",
            "DATA_PARALLEL_GROUP_WITH_CP",
            "EMBEDDING_GROUP",
            "DYNAMIC_DP_CP_GROUP_1",
        }


def test_the_timeout_is_that_of_every_group(cluster: Cluster) -> None:
    """Under torchrun nobody else notices that ranks wait for each other."""
    for found in cluster.run(limits, world_size=4, seconds=77).values:
        assert len(found) > 4
        assert set(found) == {77.0}
    assert 77.0 not in cluster.run(limits, world_size=4, seconds=None).values[0]
