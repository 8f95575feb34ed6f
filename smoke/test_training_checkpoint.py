"""Save, stop, resume: the run that never stopped, to the last bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringproof.errors import InputError
from ringproof.harness.cluster import Cluster, RankFailure
from ringproof.reference.topology.layout import RankLayout
from smoke import training_resume
from smoke.training_steps import Run

pytestmark = pytest.mark.slow  # `make test` has no time for them

RUNS = [
    pytest.param(Run(layout=RankLayout(dp=2)), id="replicated"),
    pytest.param(Run(layout=RankLayout(dp=2), sharded=True), id="fsdp"),
    pytest.param(Run(layout=RankLayout(pp=2)), id="pp2"),
    pytest.param(
        Run(layout=RankLayout(pp=2, tp=2, cp=2), vpp=2, sharded=True, mtp=1, dtype="float32"),
        id="fsdp-pp2-vpp2-tp2-cp2",
        marks=pytest.mark.slow,
    ),
]


def go(cluster: Cluster, run: Run, folder: Path, **arguments: Any) -> Any:
    options = {"until": 6, "save_at": -1, "load": False, **arguments}
    world = run.layout.world_size
    return cluster.run(
        training_resume.resume, world_size=world, run=run, folder=str(folder), **options
    ).values


def same(ours: Any, theirs: Any) -> bool:
    """Bitwise, from the fourth step on: losses, norms, random draws; and the parameters."""
    return all(
        a["losses"] == b["losses"][3:]
        and a["norms"] == b["norms"][3:]
        and a["draws"] == b["draws"][3:]
        and a["parameters"].keys() == b["parameters"].keys()
        and all(
            array.tobytes() == b["parameters"][name][1].tobytes()
            for name, (_, array) in a["parameters"].items()
        )
        for a, b in zip(ours, theirs, strict=True)
    )


@pytest.mark.parametrize("run", RUNS)
def test_resuming_continues_bitwise(cluster: Cluster, run: Run, tmp_path: Path) -> None:
    whole = go(cluster, run, tmp_path)
    go(cluster, run, tmp_path, until=4, save_at=3)
    resumed = go(cluster, run, tmp_path, load=True)
    assert [value["start"] for value in resumed] == [3] * run.layout.world_size
    assert same(resumed, whole)


@pytest.mark.parametrize("forgotten", ["exp_avg_sq", "parameter", "step", "random"])
def test_the_proof_notices_what_is_not_restored(
    cluster: Cluster, tmp_path: Path, forgotten: str
) -> None:
    """Negative control: a part of the state starts anew."""
    run = Run(layout=RankLayout(dp=2))
    whole = go(cluster, run, tmp_path)
    go(cluster, run, tmp_path, until=4, save_at=3)
    resumed = go(cluster, replace(run, fault=f"forget-{forgotten}"), tmp_path, load=True)
    assert not same(resumed, whole)


def test_replicated_tensors_are_written_once(cluster: Cluster, tmp_path: Path) -> None:
    """A checkpoint of two domain ranks is as large as that of one, but for random states."""
    sizes = []
    for dp, folder in ((1, tmp_path / "one"), (2, tmp_path / "two")):
        go(cluster, Run(layout=RankLayout(dp=dp)), folder, until=1, save_at=0)
        sizes.append(sum(file.stat().st_size for file in folder.rglob("*.distcp")))
    assert sizes[0] > 1_000_000
    assert sizes[1] < 1.02 * sizes[0]


def test_another_layout_is_refused_by_name(cluster: Cluster, tmp_path: Path) -> None:
    go(cluster, Run(layout=RankLayout(tp=2)), tmp_path, until=1, save_at=0)
    with pytest.raises(InputError, match=r"^tp: .*was saved with 2 .got 1.; resume with the same"):
        go(cluster, Run(layout=RankLayout(dp=2)), tmp_path, load=True)


@pytest.mark.parametrize(
    "moment",
    ["writing", *(pytest.param(m, marks=pytest.mark.slow) for m in ("naming", "renaming"))],
)
def test_a_killed_save_never_counts(cluster: Cluster, tmp_path: Path, moment: str) -> None:
    """Killed in the second save, the run goes on with the first; the next save succeeds."""
    run = Run(layout=RankLayout(dp=2))
    go(cluster, run, tmp_path, until=3, save_at=2)
    with pytest.raises(RankFailure, match=r"killed|signal|died"):
        go(cluster, replace(run, fault=f"killed-{moment}"), tmp_path, load=True, save_at=4)
    assert (tmp_path / "latest").read_text().strip() == "step-000002"
    resumed = go(cluster, run, tmp_path, until=5, save_at=4, load=True)
    assert resumed[0]["start"] == 2
    assert (tmp_path / "latest").read_text().startswith("step-000004")
    assert not list(tmp_path.glob(".*"))


def test_a_damaged_checkpoint_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    run = Run(layout=RankLayout(dp=2))
    go(cluster, run, tmp_path, until=1, save_at=0)
    for file in tmp_path.rglob("*.distcp"):
        file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(InputError, match="is damaged"):
        go(cluster, run, tmp_path, load=True)


@pytest.mark.parametrize("content", [None, "../elsewhere", "step-000007"])
def test_a_wrong_latest_is_refused(cluster: Cluster, tmp_path: Path, content: str | None) -> None:
    run = Run(layout=RankLayout(dp=2))
    if content is not None:
        (tmp_path / "latest").write_text(content)
    with pytest.raises(InputError, match=r"^resume: "):
        go(cluster, run, tmp_path, load=True)


def test_an_unwritable_folder_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"^save: cannot be written"):
        go(cluster, Run(layout=RankLayout(dp=2)), tmp_path / "file", until=1, save_at=0)
