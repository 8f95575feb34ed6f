"""``ringproof train`` as a user runs it: on its own, under torchrun, stopped and resumed.

What it refuses and what it says of its graphs is shown in this process, on workers that are there.
"""

from __future__ import annotations

import json
import math
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from ringproof.cli import train as command
from ringproof.cluster import Cluster, RankContext, RankRefusal
from ringproof.errors import InputError
from ringproof.reference.training.agreement import refuse_together
from ringproof.reference.training.assembly import assembly
from smoke import cases
from smoke.processes import TORCHRUN_2, ringproof
from smoke.training_command import Command
from smoke.training_matrix import Spread, options_of

SHORT = (
    *("--data", "synthetic", "--global-batch", "4", "--dtype", "float64"),
    *("--max-length", "64", "--max-tokens-per-rank", "64"),
)


@pytest.fixture
def train(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, cluster: Cluster
) -> Command:
    return Command(capsys, monkeypatch, cluster)


def steps(path: Path) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return [record for record in records if record["kind"] == "step"]


@pytest.mark.slow
def test_ranks_are_started_and_say_the_same_as_torchruns(tmp_path: Path) -> None:
    own, launched = tmp_path / "own.jsonl", tmp_path / "launched.jsonl"
    arguments = ("train", "--cp", "2", "--steps", "3", *SHORT)
    done = ringproof(*arguments, "--log", str(own), "--json", "-")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == 3  # and nothing else
    # torchrun takes --log for an abbreviation of its own options.
    done = ringproof(*arguments, "--log-file", str(launched), launcher=TORCHRUN_2)
    assert done.returncode == 0, done.stderr
    assert [line[:8] for line in done.stdout.splitlines()] == [f"step {n}/3" for n in (1, 2, 3)]
    found = ringproof("logs", "parity", str(own), str(launched), "--tol", "0")
    assert found.returncode == 0, found.stdout


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_to_the_last_bit(train: Command, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    common = ("--cp", "2", "--evaluate-every", "2", "--steps", "4")
    assert train(*common, "--log", str(whole))[0] == 0
    saving = (*common, "--save", str(tmp_path / "kept"), "--save-every", "2", "--log", str(parts))
    assert train(*saving)[0] == 0
    (tmp_path / "kept" / "latest").write_text("step-000002\n")
    code, _, errors = train(*saving, "--resume")
    assert code == 0, errors
    again = steps(parts)
    assert [record["step"] for record in again] == [1, 2, 3, 4, 3, 4]
    for record, wanted in zip(again[-2:], steps(whole)[-2:], strict=True):
        assert record["loss"] == wanted["loss"]
        assert record["grad_norm"] == wanted["grad_norm"]
    assert train.refusal(*saving, "--resume", "--seed", "1").startswith("--seed: ")


@pytest.mark.slow
def test_megatrons_lines_are_read_by_the_log_tools(train: Command, tmp_path: Path) -> None:
    ours, megatrons = tmp_path / "run.jsonl", tmp_path / "run.log"
    assert train("--steps", "3", "--log", str(ours))[0] == 0
    assert train("--steps", "3", "--log", str(megatrons), "--log-format", "megatron")[0] == 0
    found = ringproof("logs", "parity", str(ours), str(megatrons), "--tol", "1e-6", "--json", "-")
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.slow
def test_torchrun_with_another_number_of_ranks_is_refused() -> None:
    done = ringproof("train", "--cp", "4", "--steps", "1", *SHORT, launcher=TORCHRUN_2)
    assert done.returncode != 0
    assert "torchrun made 2 ranks" in done.stderr


def test_a_run_that_diverges_stops_and_keeps_the_last_sound_checkpoint(
    train: Command, tmp_path: Path
) -> None:
    log, kept = tmp_path / "run.jsonl", tmp_path / "kept"
    saving = ("--save", str(kept), "--save-every", "1", "--log", str(log))
    lost = ("--dtype", "float32", "--learning-rate", "1e6", "--steps", "9")
    assert "is not a finite number (step" in train.refusal("--dp", "2", *lost, *saving)
    last = steps(log)[-1]  # the step is reported, and is not kept
    assert not math.isfinite(last["loss"] + last["grad_norm"])
    assert (kept / "latest").read_text() == f"step-{last['step'] - 1:06}\n"


def together(rank: RankContext, *, how: str) -> int | str:
    """Rank 1 may fail; what the others learn of an exception that nobody expects."""

    def read() -> int:
        if rank.rank == 1:
            cases.fail(how)
        return rank.rank

    try:
        return refuse_together(read)
    except InputError:
        raise
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.slow
def test_what_one_rank_refuses_all_refuse(cluster: Cluster) -> None:
    """So it ends as one line: a rank that refused alone would be a failure with a traceback."""
    with pytest.raises(InputError, match=r"^b.txt: it cannot be read; leave it out$"):
        cluster.run(together, world_size=3, how="refused")
    assert cluster.run(together, world_size=3, how="").values == (0, 1, 2)


def test_what_one_rank_raises_ends_all(cluster: Cluster) -> None:
    told = "OtherRankFailed: rank 1 raised ValueError: the real cause"
    found = cluster.run(together, world_size=3, how="raised").values
    assert found == (told, "ValueError: the real cause", told)


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
    options = options_of("qwen3-tiny", Spread({"cp": 2, "pp": 2}))
    with (
        mock.patch.object(dist, "new_group", side_effect=dist.new_group) as new_group,
        assembly(options, rank.device, None),
    ):
        calls = new_group.call_args_list
        return [(call.kwargs["group_desc"], tuple(call.args[0])) for call in calls]


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


@pytest.mark.slow
def test_what_one_rank_refuses_alone_is_one_line(
    train: Command, monkeypatch: pytest.MonkeyPatch, cluster: Cluster
) -> None:
    """The others wait for it and are stopped. Whoever runs cases still learns which rank it was."""
    alone: dict[str, Any] = {"culprits": [1], "how": "refused"}
    monkeypatch.setattr(command, "on_rank", partial(cases.fail_on, **alone))
    said = "b.txt: it cannot be read; leave it out (rank 1 says so)"
    assert train.refusal("--cp", "3") == said
    with pytest.raises(RankRefusal, match=r"rank 1 failed first: InputError: b\.txt.*was stopped"):
        cluster.run(cases.fail_on, world_size=3, **alone)


@pytest.mark.slow
def test_what_nobody_expects_keeps_its_traceback(
    train: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control."""
    monkeypatch.setattr(command, "on_rank", partial(cases.fail_on, culprits=[1], how="raised"))
    code, _, errors = train("--cp", "3")
    assert code == 1
    assert errors.startswith("error: rank 1 failed first: ValueError")
    assert "Traceback" in errors


@pytest.mark.slow
def test_a_folder_with_checkpoints_is_not_begun_in(train: Command, tmp_path: Path) -> None:
    """Nor is what is there touched. A resumption that has nothing to do says so, and one with more
    steps than the learning rate was made for says why not.
    """
    kept = tmp_path / "kept"
    save = ("--save", str(kept))
    code, output, errors = train(*save)
    assert (code, errors) == (0, "")
    assert "already" not in output
    before = sorted(kept.rglob("*"))
    assert f"--save: '{kept}' has checkpoints of a run; go on with --resume" in (
        train.refusal(*save)
    )
    code, output, errors = train(*save, "--resume")
    assert (code, output) == (0, "already at step 1 of 1: nothing to do\n"), errors
    assert train.refusal(*save, "--resume", "--steps", "2") == (
        "--steps: the checkpoint in kept was saved with 1, on which the learning rate of its steps "
        "depends, and this run has 2; resume with the same, or begin anew in another folder"
    )
    assert sorted(kept.rglob("*")) == before


def test_without_a_checkpoint_there_is_nothing_to_resume(train: Command, tmp_path: Path) -> None:
    said = train.refusal("--save", str(tmp_path), "--resume")
    assert said.startswith("--resume: there is no finished checkpoint in ")


BANK = ("--graphs", "bank", "--graph-warmup", "1")
ON_RANKS = [
    pytest.param(
        ("--cp", "2", "--graph-rows", "16"),
        "--graph-rows: the longest sequence has 32 rows on each of 2 CP ranks, and the graphs",
        marks=pytest.mark.slow,
    ),
    pytest.param(
        ("--cp", "2", "--graph-sequences", "1"),
        "--graph-sequences: a pack of CP size 1 has 4 entries, a dummy included, and the graphs 1",
        marks=pytest.mark.slow,
    ),
    pytest.param(
        ("--pp", "2", "--graph-slots", "1"),
        "--graph-slots: a plan of 3 microbatches has 2 in flight, and 1 have a slot; raise it",
        marks=pytest.mark.slow,
    ),
    pytest.param(
        ("--backend", "gloo", "--graph-backend", "cuda"),
        "--graph-backend: ",
        id="no GPU, or none that the model is on",
    ),
]
"""Options, and the beginning of what is said; what is refused before: checks/training."""


@pytest.mark.parametrize(("options", "said"), ON_RANKS)
def test_what_only_ranks_can_find_is_refused_by_all(
    train: Command, options: tuple[str, ...], said: str
) -> None:
    assert train.refusal(*BANK, *options).startswith(said)


@pytest.mark.slow
def test_a_run_says_what_it_captured_and_replayed(train: Command, tmp_path: Path) -> None:
    """The options of the refusals above, where they fit. Padded sequences fit, too."""
    log = tmp_path / "run.jsonl"
    fitting = ("--cp", "2", "--graph-rows", "64", "--graph-sequences", "9", "--force-cp", "2,1")
    code, output, errors = train(*BANK, *fitting, "--log", str(log), "--json", f"{log}.json")
    assert code == 0, errors
    first, step, last = output.splitlines()
    assert first.startswith("graphs: tape, layer  CP 1 2  1 slot  8 entries a rank, 16 in all")
    assert "step 1/1" in step
    assert last == "graphs replayed: CP 1:2 2:2  eager 0"
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert [record["kind"] for record in records] == ["run", "graphs", "step", "graph_totals"]
    result = json.loads(Path(f"{log}.json").read_text())
    assert (result["graphs"], result["graph_totals"]) == (records[1], records[3])
    assert result["graph_totals"]["replays"] == records[2]["graph_replays"]
    assert train(*BANK, "--schedule", "padded")[0] == 0


@pytest.mark.slow
def test_a_size_that_never_came_up_is_named(train: Command) -> None:
    """Sequences of 32 fit one rank, so no step needs two; with longer ones steps do."""
    short = ("--cp", "2", "--data", "synthetic:mean=8", "--max-length", "16")
    _, output, _ = train(*BANK, *short)
    assert "CP size 2 was never replayed" in output.splitlines()[-1]
    _, output, _ = train(*BANK, "--cp", "2", "--force-cp", "2,1")
    assert "never" not in output


def test_a_megatron_log_has_its_steps_only(train: Command, tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    assert train(*BANK, "--log", str(log), "--log-format", "megatron")[0] == 0
    assert log.read_text().count("\n") == log.read_text().count("iteration  ") == 1


def test_without_graphs_nothing_is_said_of_them(train: Command) -> None:
    code, output, _ = train()
    assert code == 0
    assert output.startswith("step 1/1")
    assert "graph" not in output
