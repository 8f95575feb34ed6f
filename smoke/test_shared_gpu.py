"""NCCL ranks that share GPUs: which one each gets, what NCCL is told, and that they communicate.

Without a GPU: the choice, the variables, and the refusal. What communicates runs here over gloo.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from ringproof.cluster import (
    Cluster,
    ClusterOptions,
    RankContext,
    RankFailure,
    drop,
    run_launched,
    worker,
)
from ringproof.cluster.case import Assignment
from ringproof.cluster.gpus import choose_backend, gpu_of
from ringproof.errors import InputError
from ringproof.reference.attention.case import ParityCase
from ringproof.reference.attention.communicator import Communicator, wait
from ringproof.reference.attention.names import COMM_TYPES
from smoke import cases
from smoke.conftest import needs_gpu

WORLDS = [2, 4, 8]
NCCL = ("NCCL_HOSTID", "NCCL_NET", "NCCL_MNNVL_ENABLE")


def place(rank: RankContext) -> tuple[str, str, str | None]:
    """Backend, device, and the host that NCCL believes this rank to be on."""
    dist.barrier()
    return rank.backend, str(rank.device), os.environ.get("NCCL_HOSTID")


def communicate(rank: RankContext) -> dict[str, bool]:
    """Whether each operation that the reference uses gives what it should."""
    world, size = Communicator(dist.group.WORLD), rank.world_size
    own = torch.full((size, 3), float(rank.rank + 1), dtype=torch.float64, device=rank.device)
    ranks = torch.arange(1, size + 1, dtype=torch.float64, device=rank.device)
    summed = own.clone()
    dist.all_reduce(summed)
    arrived = torch.empty_like(own)
    wait(world.shift(own, arrived, tag=1))
    gathered = own.new_empty(size, own.numel())
    wait(world.start_all_gather(own, gathered))
    objects: list[int | None] = [None] * size
    dist.all_gather_object(objects, rank.rank)
    scattered = world.reduce_scatter(own * ranks[:, None])
    return {
        "all_reduce": bool((summed == ranks.sum()).all()),
        "ring": bool((arrived == (rank.rank - 1) % size + 1).all()),
        "all_gather": torch.equal(gathered, ranks[:, None].expand_as(gathered)),
        "reduce_scatter": bool((scattered == ranks.sum() * (rank.rank + 1)).all()),
        "objects": objects == list(range(size)),
    }


def on_one_host(rank: RankContext) -> None:
    """The same, but for NCCL all ranks are on one host: it has not started yet."""
    os.environ["NCCL_HOSTID"] = "one-host"
    communicate(rank)


@pytest.mark.parametrize(
    ("asked", "ranks", "gpus", "share", "chosen"),
    [
        ("auto", 2, 2, False, "nccl"),
        ("auto", 2, 1, False, "gloo"),
        ("auto", 2, 1, True, "nccl"),
        ("auto", 2, 0, True, "gloo"),
        ("nccl", 8, 1, True, "nccl"),
        ("nccl", 8, 8, False, "nccl"),
        ("gloo", 8, 8, False, "gloo"),
    ],
)
def test_the_backend(asked: str, ranks: int, gpus: int, share: bool, chosen: str) -> None:
    assert choose_backend(asked, ranks, gpus, share=share) == chosen


def test_without_sharing_the_refusal_names_it() -> None:
    with pytest.raises(
        InputError, match=r"2 ranks, and there are 1; .*share GPUs \(--share-gpus\)"
    ):
        choose_backend("nccl", 2, 1, share=False)


@pytest.mark.parametrize("share", [False, True])
def test_there_is_nothing_to_share_without_a_gpu(share: bool) -> None:
    with pytest.raises(InputError, match=r"GPU for each of 2 ranks, and there are 0; use gloo$"):
        choose_backend("nccl", 2, 0, share=share)
    with pytest.raises(InputError, match=r"share_gpus: gloo uses no GPUs"):
        ClusterOptions(backend="gloo", share_gpus=True)


def test_gpus_in_turn() -> None:
    assert [gpu_of(rank, 3) for rank in range(8)] == [0, 1, 2, 0, 1, 2, 0, 1]


class Host:
    """A host with so many GPUs; notes what a rank asks of it."""

    def __init__(self, gpus: int) -> None:
        self.gpus = gpus
        self.devices: list[torch.device] = []
        self.told: dict[str, str | None] = {}

    def join(self, *_: Any, **__: Any) -> None:
        """In place of ``init_process_group``: what NCCL would read from now on."""
        self.told = {name: os.environ.get(name) for name in NCCL}


@pytest.fixture
def host(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    made = Host(request.param)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: made.gpus)
    monkeypatch.setattr(torch.cuda, "set_device", made.devices.append)
    monkeypatch.setattr(dist, "init_process_group", made.join)
    with mock.patch.dict(os.environ):
        for name in NCCL:
            os.environ.pop(name, None)
        yield made


def join(rank: int, world_size: int, *, sharing: int, backend: str = "nccl") -> Any:
    assignment = Assignment(
        payload=b"",
        world_size=world_size,
        backend=backend,
        store_path=os.devnull,
        timeout_seconds=1.0,
        module_path=(),
        sharing=sharing,
    )
    return worker._join(rank, assignment)


@pytest.mark.parametrize("host", [2], indirect=True)
def test_a_rank_that_shares_is_a_host_of_its_own(host: Host) -> None:
    found = set()
    for rank in range(4):
        context = join(rank, 4, sharing=4)
        assert context.device == torch.device("cuda", rank % 2) == host.devices[-1]
        assert host.told["NCCL_NET"] == "Socket"
        found.add(host.told["NCCL_HOSTID"])
    assert len(found) == 4


@pytest.mark.parametrize("host", [1], indirect=True)
def test_a_case_of_fewer_ranks_leaves_the_host_as_it_is(host: Host) -> None:
    """NCCL reads its variables once, so they depend on the cluster, not on the case."""
    join(0, 1, sharing=8)
    assert host.told["NCCL_HOSTID"] is not None


@pytest.mark.parametrize(("host", "sharing"), [(4, 4), (4, 0)], indirect=["host"])
def test_with_gpus_enough_nccl_is_told_nothing(host: Host, sharing: int) -> None:
    assert join(3, 4, sharing=sharing).device == torch.device("cuda", 3)
    assert host.told == dict.fromkeys(NCCL)


@pytest.mark.parametrize("host", [1], indirect=True)
def test_without_sharing_a_rank_is_refused(host: Host) -> None:
    with pytest.raises(InputError, match="let ranks share GPUs"):
        join(0, 2, sharing=0)
    assert join(0, 2, sharing=0, backend="auto").device == torch.device("cpu")
    assert host.devices == []
    assert host.told == dict.fromkeys(NCCL)


@pytest.mark.parametrize("host", [1], indirect=True)
def test_ranks_of_a_launcher_share_too(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    with mock.patch.object(dist, "get_world_size", side_effect=RuntimeError("joined")):
        options = ClusterOptions(backend="nccl", share_gpus=True)
        with pytest.raises(RuntimeError, match="joined"):
            run_launched(place, options, {})
    assert host.told["NCCL_HOSTID"]
    assert host.devices == [torch.device("cuda", 0)]


@pytest.mark.parametrize(
    ("backend", "device", "told"), [("nccl", "cuda:1", [1]), ("gloo", "cpu", None)]
)
def test_nccl_need_not_guess_the_device_of_a_barrier(
    backend: str, device: str, told: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    barriers: list[Any] = []
    monkeypatch.setattr(dist, "barrier", lambda *, device_ids: barriers.append(device_ids))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: barriers.append("destroyed"))
    worker._leave(RankContext(1, 2, backend, torch.device(device)))
    assert barriers == [told, "destroyed"]


def test_what_is_to_be_communicated(cluster: Cluster) -> None:
    """So that the tests below do not rot where there is no GPU."""
    outcome = cluster.run(communicate, world_size=4)
    assert all(value and all(value.values()) for value in outcome.values)


def attention_on(cluster: Cluster, comm_type: str) -> list[dict[str, Any]]:
    """Parity over four ranks, in double precision and in that of flash attention."""
    sizes = (2, 2) if comm_type == "a2a+p2p" else ()
    wanted = [
        ParityCase(world=4, comm_type=comm_type, hierarchical_sizes=sizes, kv_heads=4, dtype=dtype)
        for dtype in ("float64", "bfloat16")
    ]
    found: list[dict[str, Any]] = cluster.run(cases.parity, world_size=4, cases=wanted).values[0]
    assert [one["case"]["dtype"] for one in found] == ["float64", "bfloat16"]
    return found


def test_attention_of_the_ranks(cluster: Cluster) -> None:
    assert all(one["pass"] for one in attention_on(cluster, "p2p"))


@needs_gpu
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("comm_type", COMM_TYPES)
def test_attention_on_shared_gpus_is_exact(comm_type: str, gpu_cluster: Cluster) -> None:
    found = attention_on(gpu_cluster, comm_type)
    assert {(one["backend"], one["device"]) for one in found} == {("nccl", "cuda")}
    assert all(one["pass"] for one in found)


@needs_gpu
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("world_size", WORLDS)
def test_ranks_on_shared_gpus_communicate(world_size: int, gpu_cluster: Cluster) -> None:
    placed = gpu_cluster.run(place, world_size=world_size).values
    gpus = torch.cuda.device_count()
    assert [value[:2] for value in placed] == [
        ("nccl", f"cuda:{rank % gpus}") for rank in range(world_size)
    ]
    outcome = gpu_cluster.run(communicate, world_size=world_size)
    assert all(value and all(value.values()) for value in outcome.values)


@needs_gpu
@pytest.mark.timeout(300)
def test_ranks_of_one_host_are_refused_by_nccl() -> None:
    """Negative control: the host id is what lets them share."""
    ranks = torch.cuda.device_count() + 1
    options = ClusterOptions(backend="nccl", share_gpus=True, log_sink=drop)
    with (
        Cluster(ranks, options) as workers,
        pytest.raises(RankFailure, match=r"Duplicate GPU|invalid usage|ncclInvalidUsage"),
    ):
        workers.run(on_one_host)
