"""Training by graphs under Dynamic CP: bit by bit what the same packs give without, in float64.

Both sides compute packs of the same capacity with the same kernels; one of them replays. On a CPU
the tape is what a CUDA graph would be: shapes, addresses, groups and branches are those of the
capture. On a GPU no kernel of a captured part adds in an order that depends on timing (what is
added atomically are integers, or one number to each place), cuBLAS has a fixed workspace, and NCCL
takes one way for one size. Ranks share the GPU where there are fewer (``cluster.gpus``).
"""

from __future__ import annotations

import gc
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import pytest
import torch

from checks.model.device_labels import GPU, PretendedGpu
from ringproof.cluster import Cluster, RankContext
from ringproof.errors import InputError
from ringproof.reference.graphs.replay import GraphMemory
from ringproof.reference.graphs.scopes import Part
from ringproof.reference.graphs.tape.backend import TapeBackend, choose_backend
from ringproof.reference.training.assembly import assembly
from ringproof.reference.training.options import GraphOptions, TrainOptions
from ringproof.reference.training.trainer import train
from smoke import trials
from smoke.training_matrix import ONE_RANK, Series, Spread, Trace, options_of

pytestmark = pytest.mark.timeout(2000)

slow = pytest.mark.slow  # left to `make test-slow`
STATIC = GraphOptions(graphs="static")


def turns(layout: dict[str, int], *sizes: int, **parallel: Any) -> Spread:
    """CP sizes in turn."""
    return Spread(layout, parallel, batch={"forced_sizes": sizes})


TWO, FOUR = turns({"cp": 2}, 2, 1), turns({"cp": 4}, 4, 1, 2)
TP2, PP2 = turns({"tp": 2, "cp": 2}, 2, 1), turns({"pp": 2, "cp": 2}, 2, 1)
VPP2 = turns({"pp": 2, "cp": 2}, 2, 1, vpp=2)
STAGES = Spread({"pp": 2}, batch={"schedule": "packed"})
CASES = [
    ("qwen3-tiny", ONE_RANK, "layer"),
    ("qwen3-tiny", TWO, "layer"),
    ("moonlight-tiny", TWO, "router"),
]
SLOW_CASES = [
    ("qwen3-tiny", TP2, "layer"),
    ("qwen3-tiny", PP2, "layer"),
    ("qwen3-tiny", VPP2, "layer"),
    ("qwen3-tiny", FOUR, "layer"),
    ("qwen3-tiny", replace(FOUR, model={"recompute": True}), "layer"),
    ("qwen3-tiny", replace(FOUR, parallel={"comm_type": "all_gather"}), "layer"),
    ("qwen3-tiny", replace(TWO, parallel={"comm_type": "a2a"}), "layer"),
    ("qwen3-tiny", Spread({"cp": 4}, batch={"schedule": "packed"}), "attn"),
    ("moonlight-tiny", FOUR, "attn"),
    ("moonlight-tiny", FOUR, "router"),
    ("moonlight-tiny", TP2, "attn"),
    ("moonlight-tiny", PP2, "router"),
    ("moonlight-tiny", turns({"cp": 8}, 1, 2, 4, 8), "attn"),
]
REMAINDER = 0.1
"""Share of a bank's memory that a reset may leave: what is made at first use, and stays."""


@dataclass(frozen=True)
class Ranks:
    """Ranks, and graphs of their device's own kind."""

    cluster: Cluster

    @property
    def on_gpu(self) -> bool:
        return self.cluster.options.backend == "nccl"

    @property
    def bank(self) -> GraphOptions:
        backend, warmup = ("cuda", 2) if self.on_gpu else ("tape", 1)
        return GraphOptions(graphs="bank", graph_backend=backend, graph_warmup=warmup)

    def train(
        self, preset: str, spread: Spread, graphs: GraphOptions, *, stale: bool = False
    ) -> Trace:
        """A training of two steps; all ranks come to the same."""
        options = options_of(preset, spread, steps=2, graphs=graphs)
        control = "stale" if stale else ""
        outcome = self.cluster.run(
            trials.train, world_size=spread.ranks, options=options, control=control
        )
        found: Trace = outcome.values[0]
        assert all(value.steps == found.steps for value in outcome.values)
        return found

    def check_equal(self, preset: str, spread: Spread, graphs: GraphOptions) -> None:
        """Loss and gradient norm of every step are the same bits; every CP size was replayed."""
        expected = self.train(preset, spread, STATIC)
        found = self.train(preset, spread, graphs)
        assert len(found.steps) == 2
        assert all(math.isfinite(value) for step in found.steps for value in step)
        assert found.steps == expected.steps
        assert (expected.replays, found.eager) == ({}, 0)
        assert min(found.replays.values()) > 0, "a CP size was never replayed"
        assert found.replays.keys() >= set(spread.batch.get("forced_sizes", ()))


@pytest.fixture
def ranks(either_cluster: Cluster) -> Ranks:
    return Ranks(either_cluster)


@pytest.mark.parametrize(
    ("preset", "spread", "scope"), [*CASES, *(pytest.param(*c, marks=slow) for c in SLOW_CASES)]
)
def test_a_training_equals_the_eager_one(
    preset: str, spread: Spread, scope: str, ranks: Ranks
) -> None:
    ranks.check_equal(preset, spread, replace(ranks.bank, graph_scope=scope))


@slow
@pytest.mark.parametrize(
    ("preset", "spread"),
    [
        *(("qwen3-tiny", replace(FOUR, parallel={"comm_type": c})) for c in ("p2p", "all_gather")),
        ("qwen3-tiny", replace(FOUR, parallel={"comm_type": "a2a"}, batch={"schedule": "packed"})),
        ("qwen3-tiny", replace(FOUR, parallel={"comm_type": "a2a+p2p", "ranks_per_node": 2})),
        ("moonlight-tiny", TP2),
    ],
)
def test_packs_of_capacity_are_the_packs(ranks: Ranks, preset: str, spread: Spread) -> None:
    """What both sides above compute is what a run without capacity does, up to rounding."""
    static = ranks.train(preset, spread, STATIC).steps
    off = ranks.train(preset, spread, GraphOptions()).steps
    assert [*static[0], *static[1]] == pytest.approx([*off[0], *off[1]], rel=1e-10)


@pytest.mark.parametrize("spread", [ONE_RANK, pytest.param(FOUR, marks=slow)])
def test_stale_metadata_are_seen(ranks: Ranks, spread: Spread) -> None:
    """Negative control: each replay computes the empty pack of the capture."""
    expected = ranks.train("qwen3-tiny", spread, STATIC)
    found = ranks.train("qwen3-tiny", spread, ranks.bank, stale=True)
    assert found.steps[0] != expected.steps[0]


@pytest.mark.parametrize("spread", [TWO, pytest.param(FOUR, marks=slow)])
def test_what_does_not_fit_is_eager_and_counted(ranks: Ranks, spread: Spread) -> None:
    small = {"graph_sequences": 2, "graphs_overflow": "eager"}
    found = ranks.train("qwen3-tiny", spread, replace(ranks.bank, **small))
    static = ranks.train("qwen3-tiny", spread, replace(STATIC, **small))
    assert found.steps == static.steps
    assert found.eager > 0
    assert sum(found.replays.values()) > 0


@slow
def test_what_does_not_fit_is_refused_by_all_ranks(ranks: Ranks) -> None:
    found = ranks.train("qwen3-tiny", FOUR, replace(ranks.bank, graph_sequences=1))
    assert re.match(r"graph_sequences: a pack of CP size \d has \d entries", found.refused[1])


def refused_then_eager(rank: RankContext, *, options: TrainOptions) -> tuple[str, Series]:
    """The last rank's parts read a value while they are captured; all go on without graphs.

    Returns:
        What is said of the capture, and what the same packs then train without one.
    """
    run = Part.run

    def reads(part: Part, call: Callable[..., Any], x: torch.Tensor, batch: Any) -> Any:
        if rank.rank == rank.world_size - 1:
            x.sum().item()
        return run(part, call, x, batch)

    with mock.patch.object(Part, "run", reads), pytest.raises(InputError) as refusal:
        train(
            options,
            rank.device,
            lambda record: None,
            backend=choose_backend(options.graphs.graph_backend, rank.device),
        )
    return str(refusal.value), trials.train(rank, options=replace(options, graphs=STATIC)).steps


def test_a_capture_that_one_stage_cannot_make_is_refused_by_all(ranks: Ranks) -> None:
    """Then all train without graphs, in the same processes, as if there had been no capture."""
    options = options_of("qwen3-tiny", STAGES, steps=2, graphs=ranks.bank)
    outcome = ranks.cluster.run(refused_then_eager, world_size=2, options=options)
    expected = ranks.train("qwen3-tiny", STAGES, STATIC)
    for said, series in outcome.values:
        assert "layers.2, slot 0, CP size 1, forward" in said
        assert series == expected.steps


@dataclass(frozen=True)
class BankMemory:
    """What the bank of one rank holds.

    Args:
        entries: Memory of each graph.
        left: Entries that still hold something after the reset.
        allocated: Bytes on the device without a bank, with it, and after its reset; 0 on a CPU.
    """

    entries: tuple[GraphMemory, ...]
    left: int
    allocated: tuple[int, int, int]


def memory(rank: RankContext, *, options: TrainOptions) -> BankMemory:
    """Make what a run has, without a bank and with, and free the bank."""
    with assembly(replace(options, graphs=STATIC), rank.device):
        without = _allocated(rank.device)
    backend = choose_backend(options.graphs.graph_backend, rank.device)
    with assembly(options, rank.device, backend=backend) as parts:
        graphs = tuple(held for bank in parts.banks for held in bank.memory.values())
        full = _allocated(rank.device)
        for bank in parts.banks:
            bank.reset()
        left = sum(len(bank.memory) for bank in parts.banks)
        empty = _allocated(rank.device)
    return BankMemory(graphs, left, (without, full, empty))


def _allocated(device: torch.device) -> int:
    """Bytes of live tensors: without what cuBLAS keeps for each stream that it has seen."""
    gc.collect()
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize(device)
    torch._C._cuda_clearCublasWorkspaces()
    return int(torch.cuda.memory_allocated(device))


@pytest.mark.parametrize("spread", [ONE_RANK, pytest.param(TWO, marks=slow)])
def test_a_reset_gives_the_memory_back(spread: Spread, ranks: Ranks) -> None:
    options = options_of("qwen3-tiny", spread, steps=2, graphs=ranks.bank)
    for found in ranks.cluster.run(memory, world_size=spread.ranks, options=options).values:
        assert len(found.entries) == 4 * len(spread.batch.get("forced_sizes", (1,)))
        assert all(one.inputs > 0 and one.gradients > 0 for one in found.entries)
        assert sum(one.private for one in found.entries) > 0
        assert found.left == 0
        if ranks.on_gpu:
            without, full, empty = found.allocated
            assert full > without
            assert empty - without < REMAINDER * (full - without)


def pretended(rank: RankContext, *, options: TrainOptions) -> Trace:
    """Train where no tensor of the host may meet one of a GPU; graphs are the tape's."""
    with PretendedGpu():
        return trials.train(replace(rank, device=GPU), options=options, backend=TapeBackend())


@pytest.mark.parametrize(
    "spread",
    [
        pytest.param(Spread({"tp": 2}), id="TP", marks=slow),
        pytest.param(VPP2, id="PP, VPP, CP", marks=slow),
        pytest.param(replace(TWO, parallel={"comm_type": "a2a"}), id="a2a", marks=slow),
    ],
)
def test_no_tensor_of_the_host_meets_one_of_the_gpu(spread: Spread, cpu_cluster: Cluster) -> None:
    """On a GPU that is pretended; see ``checks.model.device_labels``."""
    graphs = GraphOptions(graphs="bank", graph_warmup=1)
    options = options_of("qwen3-tiny", spread, steps=1, graphs=graphs)
    outcome = cpu_cluster.run(pretended, world_size=spread.ranks, options=options)
    assert all(sum(value.replays.values()) > 0 for value in outcome.values)
