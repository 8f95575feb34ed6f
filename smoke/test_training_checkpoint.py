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
from ringproof.errors import InputError
from ringproof.reference.topology.layout import RankLayout
from ringproof.reference.training import checkpoint
from ringproof.reference.training.assembly import Assembly, assembly
from smoke.training_steps import Run, step, whole

pytestmark = pytest.mark.slow  # `make test` has no time for them

DP2 = Run(layout=RankLayout(dp=2))
RUNS = {
    "replicated": DP2,
    "fsdp": replace(DP2, sharded=True),
    "pp2": Run(layout=RankLayout(pp=2)),
    "fsdp-pp2-vpp2-tp2-cp2": Run(
        layout=RankLayout(pp=2, tp=2, cp=2), vpp=2, sharded=True, mtp=1, dtype="float32"
    ),
}
# Function that is replaced by SIGKILL, and on which rank.
KILLED = {
    "writing": (checkpoint.torch, "save", 1),
    "renaming": (Path, "rename", 0),
    "naming": (checkpoint, "_flush", 0),
}


def resume(
    rank: RankContext, *, run: Run, folder: str, until: int, save_at: int, load: bool
) -> dict[str, Any]:
    """Train up to a step; save before one of them, or start from the newest checkpoint."""
    torch.manual_seed(rank.rank)
    with _broken(rank, run.fault), assembly(run.options, rank.device) as parts:
        start = checkpoint.load(Path(folder), parts) if load else 0
        steps = []
        for index in range(start, until):
            if index == save_at:
                checkpoint.save(Path(folder), parts, index)
            done = step(run, parts, index)
            steps.append((done["losses"], done["norms"], torch.rand(1).item()))
        return {"start": start, "steps": steps, "parameters": whole(parts)}


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

    if fault == "forget random":
        change = mock.patch.object(checkpoint, "_set_random_state")
    elif kind == "forget":
        change = mock.patch.object(checkpoint, "_tensors", forgetful)
    elif kind == "killed" and rank.rank == KILLED[what][2]:
        owner, name, _ = KILLED[what]
        change = mock.patch.object(
            owner, name, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
        )
    else:
        yield
        return
    with change:
        yield


def go(cluster: Cluster, run: Run, folder: Path, **arguments: Any) -> Any:
    options = {"until": 6, "save_at": -1, "load": False, **arguments}
    world = run.layout.world_size
    return cluster.run(resume, world_size=world, run=run, folder=str(folder), **options).values


def same(ours: Any, theirs: Any) -> bool:
    """Bitwise, from the fourth step on: losses, norms, random draws; and the parameters."""
    return all(
        a["steps"] == b["steps"][3:]
        and a["parameters"].keys() == b["parameters"].keys()
        and all(
            array.tobytes() == b["parameters"][name][1].tobytes()
            for name, (_, array) in a["parameters"].items()
        )
        for a, b in zip(ours, theirs, strict=True)
    )


@pytest.mark.parametrize("name", RUNS)
def test_resuming_continues_bitwise(cluster: Cluster, name: str, tmp_path: Path) -> None:
    run = RUNS[name]
    whole_run = go(cluster, run, tmp_path)
    go(cluster, run, tmp_path, until=4, save_at=3)
    resumed = go(cluster, run, tmp_path, load=True)
    assert [value["start"] for value in resumed] == [3] * run.layout.world_size
    assert same(resumed, whole_run)


def test_the_proof_notices_what_is_not_restored(cluster: Cluster, tmp_path: Path) -> None:
    """Negative control: a part of the state starts anew."""
    whole_run = go(cluster, DP2, tmp_path)
    go(cluster, DP2, tmp_path, until=4, save_at=3)
    for forgotten in ("exp_avg_sq", "parameter", "step", "random"):
        resumed = go(cluster, replace(DP2, fault=f"forget {forgotten}"), tmp_path, load=True)
        assert not same(resumed, whole_run), forgotten


def test_replicated_tensors_are_written_once(cluster: Cluster, tmp_path: Path) -> None:
    """A checkpoint of two domain ranks is as large as that of one, but for random states."""
    sizes = []
    for dp, folder in ((1, tmp_path / "one"), (2, tmp_path / "two")):
        go(cluster, Run(layout=RankLayout(dp=dp)), folder, until=1, save_at=0)
        sizes.append(sum(file.stat().st_size for file in folder.rglob("*.pt")))
    assert sizes[0] > 1_000_000
    assert sizes[1] < 1.02 * sizes[0]


def test_another_layout_is_refused_by_name(cluster: Cluster, tmp_path: Path) -> None:
    go(cluster, Run(layout=RankLayout(tp=2)), tmp_path, until=1, save_at=0)
    with pytest.raises(
        InputError, match=r"^tp: .*was saved with 2, and this run has 1; resume with the same"
    ):
        go(cluster, DP2, tmp_path, load=True)


@pytest.mark.parametrize("moment", KILLED)
def test_a_killed_save_never_counts(cluster: Cluster, tmp_path: Path, moment: str) -> None:
    """Killed in the second save, the run goes on with the first; the next save succeeds."""
    go(cluster, DP2, tmp_path, until=3, save_at=2)
    with pytest.raises(RankFailure, match=r"killed|signal|died"):
        go(cluster, replace(DP2, fault=f"killed {moment}"), tmp_path, load=True, save_at=4)
    assert (tmp_path / "latest").read_text().strip() == "step-000002"
    resumed = go(cluster, DP2, tmp_path, until=5, save_at=4, load=True)
    assert resumed[0]["start"] == 2
    assert (tmp_path / "latest").read_text().startswith("step-000004")
    assert not list(tmp_path.glob(".*"))


def test_a_damaged_checkpoint_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    go(cluster, DP2, tmp_path, until=1, save_at=0)
    for file in tmp_path.rglob("*.pt"):
        file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(InputError, match="is damaged"):
        go(cluster, DP2, tmp_path, load=True)


@pytest.mark.parametrize("content", [None, "../elsewhere", "step-000007"])
def test_a_wrong_latest_is_refused(cluster: Cluster, tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "latest").write_text(content)
    with pytest.raises(InputError, match=r"^resume: "):
        go(cluster, DP2, tmp_path, load=True)


def test_an_unwritable_folder_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"^save: .* cannot be written"):
        go(cluster, DP2, tmp_path / "file", until=1, save_at=0)
