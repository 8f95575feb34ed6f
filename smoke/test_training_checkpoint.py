"""Save, stop, resume: the run that never stopped, to the last bit."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from ringproof.cluster import Cluster, RankContext, RankFailure
from ringproof.reference.training import checkpoint
from ringproof.reference.training.assembly import Assembly
from ringproof.reference.training.options import KeepingOptions, TrainOptions
from smoke import trials
from smoke.training_matrix import ONE_RANK, SPREADS, Spread, Trace, options_of

pytestmark = pytest.mark.slow  # `make test` has no time for them

DP2 = SPREADS["DP 2"]
EIGHT = Spread({"pp": 2, "tp": 2, "cp": 2}, {"vpp": 2, "fully_sharded": True})
SPREAD = {
    "replicated": DP2,
    "fsdp": SPREADS["FSDP2 on 2"],
    "pp2": SPREADS["PP 2"],
    "fsdp-pp2-vpp2-tp2-cp2 in float32": replace(EIGHT, model={"mtp": 1, "dtype": "float32"}),
}
# Function that is replaced by SIGKILL, and on which rank.
KILLED = {
    "writing": (checkpoint, "_write_file", 1),
    "renaming": (Path, "rename", 0),
    "naming": (checkpoint, "_flush", 0),
}


def run(rank: RankContext, *, options: TrainOptions, fault: str) -> Trace:
    """Train. A resumed run starts with another random state than it has to continue with."""
    torch.manual_seed(rank.rank + 100 * options.keeping.resume)
    with _broken(rank, fault):
        return trials.train(rank, options=options)


@contextmanager
def _broken(rank: RankContext, fault: str) -> Iterator[None]:
    """``forget PART``: what is loaded of it is dropped. ``killed WHERE``: SIGKILL of one rank."""
    kind, _, what = fault.partition(" ")
    tensors = checkpoint._tensors

    def forgetful(parts: Assembly) -> dict[str, torch.Tensor]:
        return {
            key: value.clone() if what in key.split(".") else value
            for key, value in tensors(parts).items()
        }

    change: Any = mock.patch.object(checkpoint, "_tensors", forgetful)
    if fault == "forget random":
        change = mock.patch.object(checkpoint, "_set_random_state")
    elif kind == "killed" and rank.rank == KILLED[what][2]:
        owner, name, _ = KILLED[what]
        change = mock.patch.object(
            owner, name, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
        )
    elif kind != "forget":
        yield
        return
    with change:
        yield


def go(
    cluster: Cluster, spread: Spread, folder: Path, *, fault: str = "", steps: int = 4, **more: Any
) -> Trace:
    """Train with a checkpoint after every second step; what rank 0 measured."""
    options = options_of("qwen3-tiny", spread, steps=steps)
    keeping = KeepingOptions(save=str(folder), save_every=2, **more)
    options = replace(options, keeping=keeping)
    values = cluster.run(run, world_size=spread.ranks, options=options, fault=fault).values
    return values[0]


def resume(cluster: Cluster, spread: Spread, folder: Path, fault: str = "") -> Trace:
    """Go on after the second step, as if the run had ended there."""
    (folder / "latest").write_text("step-000002\n")
    return go(cluster, spread, folder, fault=fault, resume=True)


def same(one: Path, other: Path) -> bool:
    """Whether two checkpoints are the same: parameters, moments, and random states of all ranks."""
    names = [sorted(path.name for path in folder.glob("*.tensors")) for folder in (one, other)]
    assert names[0] == names[1] != []
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in names[0])


@pytest.mark.parametrize("name", SPREAD)
def test_resuming_continues_bitwise(cluster: Cluster, name: str, tmp_path: Path) -> None:
    whole = go(cluster, SPREAD[name], tmp_path)
    resumed = resume(cluster, SPREAD[name], tmp_path)
    assert len(whole.steps) == 4
    assert resumed.steps == whole.steps[2:]
    assert same(tmp_path / "step-000004", tmp_path / "step-000004.1")


def test_the_proof_notices_what_is_not_restored(cluster: Cluster, tmp_path: Path) -> None:
    """Negative control: a part of the state starts anew."""
    go(cluster, DP2, tmp_path)
    for number, forgotten in enumerate(("exp_avg_sq", "parameter", "step", "random"), 1):
        resume(cluster, DP2, tmp_path, f"forget {forgotten}")
        assert not same(tmp_path / "step-000004", tmp_path / f"step-000004.{number}"), forgotten


def test_replicated_tensors_are_written_once(cluster: Cluster, tmp_path: Path) -> None:
    """A checkpoint of two domain ranks is as large as that of one, but for random states."""
    sizes = []
    for spread, folder in ((ONE_RANK, tmp_path / "one"), (DP2, tmp_path / "two")):
        go(cluster, spread, folder, steps=1)
        sizes.append(sum(file.stat().st_size for file in folder.rglob("*.tensors")))
    assert sizes[0] > 1_000_000
    assert sizes[1] < 1.02 * sizes[0]


def test_what_cannot_be_saved_or_resumed_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    go(cluster, SPREADS["TP 2"], tmp_path / "kept", steps=1)
    (tmp_path / "file").write_text("")
    said = go(cluster, DP2, tmp_path / "kept", steps=1, resume=True).refused
    assert said[0] == "tp" and "was saved with 2, and this run has 1; resume with" in said[1]
    said = go(cluster, DP2, tmp_path / "file", steps=1).refused
    assert said[0] == "save" and "cannot be written" in said[1]
    (tmp_path / "kept" / "latest").write_text("../elsewhere")
    assert go(cluster, DP2, tmp_path / "kept", steps=1, resume=True).refused[0] == "resume"


@pytest.mark.parametrize("moment", KILLED)
def test_a_killed_save_never_counts(cluster: Cluster, tmp_path: Path, moment: str) -> None:
    """Killed in the second save, the run goes on with the first; the next save succeeds."""
    go(cluster, DP2, tmp_path)
    with pytest.raises(RankFailure, match=r"killed|signal|died"):
        resume(cluster, DP2, tmp_path, f"killed {moment}")
    assert (tmp_path / "latest").read_text().strip() == "step-000002"
    assert len(go(cluster, DP2, tmp_path, resume=True).steps) == 2
    assert (tmp_path / "latest").read_text().startswith("step-000004")
    assert not list(tmp_path.glob(".*"))
