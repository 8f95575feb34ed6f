"""What the machine cannot do is refused before anything starts; ranks have a limit of their own."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import typer

from ringproof import budget
from ringproof.budget import Estimate, EstimatePart, Machine, check_seconds
from ringproof.cli import main as command
from ringproof.cluster import Cluster, RankContext, RankFailure
from ringproof.errors import InputError

SMALL = Machine(cores=2, free=24_000_000_000)
SETTINGS = ",".join(str(4096 * factor) for factor in range(1, 31))
REFUSED = {
    "train --cp 512": r"--cp: 512 makes 512 ranks, and the limit is 32, 16 for each of 2 cores",
    "train --dp 64": r"--dp: 64 makes 64 ranks, and the limit is 32",
    "parity attention --ranks 64": r"--ranks: 64 makes 64 ranks, and the limit is 32",
    "train --mtp 1000000": r"--max-tokens-per-rank: with .* needs about .* and 24.0 GB are free",
    "train --graphs bank --graph-slots 1000000": r"--max-tokens-per-rank: .* GB are free",
    "train --graphs bank --max-tokens-per-rank 65536 --max-length 65536": "--max-tokens-per-rank",
    "parity attention --head-dim 1000000": r"--head-dim: .* GB are free",
    "parity attention --heads 1000000": r"--heads: .* GB are free",
    "plan --ranks 8 --max-tokens-per-rank 4096 --graphs --batches 1000 "
    "--lengths lognormal:mean=512,max=4096,n=100000": r"--batches: '1,000' takes about 1,001 s",
    f"plan sweep --ranks 8 --max-tokens-per-rank {SETTINGS} --cp-sizes pow2 "
    "--lengths lognormal:mean=512,max=4096,n=300000": "--max-tokens-per-rank: .*about 360 s",
}


class _Started(Exception):
    """Work began."""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of two cores, on which nothing can start."""

    def start(*_: object, **__: object) -> None:
        raise _Started

    monkeypatch.setattr(Machine, "here", classmethod(lambda _: SMALL))
    monkeypatch.setattr(Cluster, "_start", start)


def run(words: str) -> None:
    typer.main.get_command(command.app).main(shlex.split(words), standalone_mode=False)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("words", REFUSED)
def test_what_the_machine_cannot_do_is_refused(words: str) -> None:
    with pytest.raises(InputError, match=REFUSED[words]) as refused:
        run(words)
    assert "--force" in str(refused.value)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    "words",
    [
        "train --cp 512 --force --force-cp 1",
        "parity attention --ranks 64 --force",
        "train",
        "train --dp 8",
        "train --graphs bank --cp 2",
        "train --recompute --graphs bank",
        "parity attention --ranks 8",
    ],
)
def test_the_rest_and_what_is_forced_starts(words: str) -> None:
    with pytest.raises(_Started):
        run(words)


def test_the_largest_case_of_conform_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    few = Machine(cores=0.25, free=SMALL.free)
    monkeypatch.setattr(Machine, "here", classmethod(lambda _: few))
    with pytest.raises(InputError, match=r"--case: .* makes 8 ranks, and the limit is 4"):
        run("conform --upstream none")
    with pytest.raises(InputError, match="--upstream"):
        run("conform --upstream none --force")


def test_the_largest_part_is_named() -> None:
    parts = (EstimatePart("--a", 1, 10**9), EstimatePart("--b", 2, 10**12))
    with pytest.raises(InputError, match="--b: with 2 the command"):
        Estimate(1, parts, "--ranks", 1).check(SMALL)
    Estimate(1, parts[:1], "--ranks", 1).check(SMALL)
    with pytest.raises(InputError, match="takes about 11 s"):
        check_seconds("--measure", 5, 11, 10)
    check_seconds("--measure", 5, 9, 10)


def test_limits_of_a_control_group_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of the group around that of the process counts, too."""
    monkeypatch.setattr(budget, "CGROUP", tmp_path)
    monkeypatch.setattr(budget, "OWN_CGROUPS", tmp_path / "own")
    before = Machine.here()
    (tmp_path / "slice" / "job").mkdir(parents=True)
    rows = {"max": "5000", "current": "1500", "stat": "anon 1\ninactive_file 500"}
    for name, text in rows.items():
        (tmp_path / "slice" / f"memory.{name}").write_text(f"{text}\n")
    (tmp_path / "slice" / "job" / "memory.max").write_text("max\n")
    (tmp_path / "own").write_text("0::/slice/job\n")
    assert Machine.here() == Machine(before.cores, 4000)
    (tmp_path / "cpu.max").write_text("25000 100000\n")
    assert Machine.here().cores == 0.25


def _take(_: RankContext, *, count: int) -> int:
    import torch

    return torch.ones(count, dtype=torch.uint8).numel()


def test_a_rank_has_a_memory_limit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machine, "here", classmethod(lambda _: Machine(2, 2 << 30)))
    with Cluster(2) as cluster:
        assert cluster.run(_take, count=1 << 20).values == (1 << 20, 1 << 20)
        with pytest.raises(RankFailure, match=r"rank [01] reached its memory limit of 1\.1 GB"):
            cluster.run(_take, count=2 << 30)
