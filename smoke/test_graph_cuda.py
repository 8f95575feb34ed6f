"""Training by graphs on a GPU: bit by bit what the same packs give there without graphs.

Both sides run the same kernels on the same device in float64, so their results are the same bits:
no kernel of a captured part adds in an order that depends on timing (what is added atomically are
integers, or one number to each place), cuBLAS has a fixed workspace, and NCCL takes one way for
one size. Ranks share the GPU where there are fewer than ranks (``harness.cluster.gpus``).

Each test that can has a twin on the tape, so that this file works before it meets a GPU. More of
what the tape shows is in ``test_graph_bank``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from unittest import mock

import pytest
import torch

from benchmarks.graphs import cuda
from ringproof.errors import InputError
from ringproof.harness.cluster import Cluster
from ringproof.reference.graphs import bank
from ringproof.reference.graphs.transformer_engine import is_installed
from ringproof.reference.training.options import GraphOptions
from smoke import bank_cases, graph_cases, graph_device_cases
from smoke.bank_cases import STATIC, bank_options, run
from smoke.conftest import needs_gpu
from smoke.training_matrix import ONE_RANK, Spread

pytestmark = pytest.mark.timeout(2000)

TWO = Spread({"cp": 2}, batch={"forced_sizes": (2, 1)})
STAGES = Spread({"pp": 2}, batch={"schedule": "packed"})
FOUR = Spread({"cp": 4}, batch={"forced_sizes": (4, 1, 2)})
EIGHT = Spread({"cp": 8}, batch={"forced_sizes": (1, 2, 4, 8)})
TP2 = Spread({"tp": 2, "cp": 2}, batch={"forced_sizes": (2, 1)})
PP2 = Spread({"pp": 2, "cp": 2}, batch={"forced_sizes": (2, 1)})
VPP2 = Spread({"pp": 2, "cp": 2}, {"vpp": 2}, batch={"forced_sizes": (2, 1)})
SMALL = [
    ("qwen3-tiny", ONE_RANK, "layer"),
    ("qwen3-tiny", TWO, "layer"),
    ("moonlight-tiny", TWO, "router"),
]
LARGE = [
    ("nemotron-h-tiny", TWO, "layer"),
    ("qwen3-tiny", replace(TWO, parallel={"comm_type": "a2a"}), "layer"),
    ("qwen3-tiny", FOUR, "layer"),
    ("qwen3-tiny", replace(FOUR, model={"recompute": True}), "layer"),
    ("qwen3-tiny", TP2, "layer"),
    ("qwen3-tiny", PP2, "layer"),
    ("qwen3-tiny", VPP2, "layer"),
    ("moonlight-tiny", FOUR, "attn"),
    ("moonlight-tiny", EIGHT, "attn"),
]
REMAINDER = 0.1
"""Share of a bank's memory that a reset may leave: what is made at first use, and stays."""


@dataclass(frozen=True)
class Ranks:
    """Where the tests run.

    Args:
        cluster: Its ranks.
        device: ``cpu`` or ``cuda``.
    """

    cluster: Cluster
    device: str

    @property
    def bank(self) -> GraphOptions:
        """Graphs of the device's own kind."""
        backend = "cuda" if self.device == "cuda" else "tape"
        return GraphOptions(graphs="bank", graph_backend=backend, graph_warmup=2)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=needs_gpu)])
def ranks(request: pytest.FixtureRequest) -> Ranks:
    name = "gpu_cluster" if request.param == "cuda" else "cpu_cluster"
    return Ranks(request.getfixturevalue(name), request.param)


def check_equal(cluster: Cluster, preset: str, spread: Spread, graphs: GraphOptions) -> None:
    """Loss and gradient norm of every step are the same bits; every CP size was replayed."""
    expected = run(cluster, preset, spread, STATIC)
    found = run(cluster, preset, spread, graphs)
    assert len(found.series) == 2
    assert all(math.isfinite(value) for step in found.series for value in step)
    assert found.series == expected.series
    assert (expected.replays, found.eager) == ({}, 0)
    sizes = spread.batch.get("forced_sizes", (1,))
    assert sorted(found.replays) == sorted(sizes)
    assert min(found.replays.values()) > 0, "a CP size was never replayed"


@pytest.mark.parametrize(("preset", "spread", "scope"), SMALL)
def test_a_training_equals_the_eager_one(
    preset: str, spread: Spread, scope: str, ranks: Ranks
) -> None:
    check_equal(ranks.cluster, preset, spread, replace(ranks.bank, graph_scope=scope))


@needs_gpu
@pytest.mark.slow
@pytest.mark.parametrize(("preset", "spread", "scope"), LARGE)
def test_a_training_of_more_ranks_equals_the_eager_one(
    preset: str, spread: Spread, scope: str, gpu_cluster: Cluster
) -> None:
    graphs = replace(Ranks(gpu_cluster, "cuda").bank, graph_scope=scope)
    check_equal(gpu_cluster, preset, spread, graphs)


@needs_gpu
@pytest.mark.skipif(not is_installed(), reason="needs Transformer Engine")
@pytest.mark.parametrize("spread", [ONE_RANK, TWO])
def test_transformer_engine_captures_the_same(spread: Spread, gpu_cluster: Cluster) -> None:
    graphs = replace(Ranks(gpu_cluster, "cuda").bank, graph_backend="transformer-engine")
    check_equal(gpu_cluster, "qwen3-tiny", spread, graphs)


def test_stale_metadata_are_seen(ranks: Ranks) -> None:
    """Negative control: each replay computes the empty pack of the capture."""
    expected = run(ranks.cluster, "qwen3-tiny", ONE_RANK, STATIC)
    found = run(ranks.cluster, "qwen3-tiny", ONE_RANK, ranks.bank, fault="stale")
    assert found.series[0] != expected.series[0]


def test_what_does_not_fit_is_eager_and_counted(ranks: Ranks) -> None:
    small = {"graph_sequences": 2, "graphs_overflow": "eager"}
    found = run(ranks.cluster, "qwen3-tiny", TWO, replace(ranks.bank, **small))
    assert found.series == run(ranks.cluster, "qwen3-tiny", TWO, replace(STATIC, **small)).series
    assert found.eager > 0
    assert sum(found.replays.values()) > 0


def test_a_capture_that_one_stage_cannot_make_is_refused_by_all(ranks: Ranks) -> None:
    """Then all train without graphs, in the same processes, as if there had been no capture."""
    options = bank_options("qwen3-tiny", STAGES, ranks.bank)
    outcome = ranks.cluster.run(
        graph_device_cases.refused_then_eager, world_size=2, options=options
    )
    expected = run(ranks.cluster, "qwen3-tiny", STAGES, STATIC)
    for said, series in outcome.values:
        assert "layers.2, slot 0, CP size 1, forward" in said
        assert series == expected.series


def test_a_refusal_reaches_the_caller(ranks: Ranks) -> None:
    options = bank_options("qwen3-tiny", STAGES, ranks.bank)
    with pytest.raises(InputError, match=r"layers\.3: reads back"):
        ranks.cluster.run(bank_cases.aborted, world_size=2, options=options)


@pytest.mark.parametrize("spread", [ONE_RANK, TWO])
def test_a_reset_gives_the_memory_back(spread: Spread, ranks: Ranks) -> None:
    options = bank_options("qwen3-tiny", spread, ranks.bank)
    outcome = ranks.cluster.run(graph_device_cases.memory, world_size=spread.ranks, options=options)
    for found in outcome.values:
        assert len(found.entries) == 4 * len(spread.batch.get("forced_sizes", (1,)))
        assert all(one.inputs > 0 and one.gradients > 0 for one in found.entries.values())
        assert sum(one.private for one in found.entries.values()) > 0
        assert found.left == 0
        if ranks.device == "cuda":
            without, full, empty = found.allocated
            assert full > without
            assert empty - without < REMAINDER * (full - without)


@pytest.mark.parametrize(
    "spread",
    [
        pytest.param(Spread({"tp": 2}), id="TP"),
        pytest.param(VPP2, id="PP, VPP, CP", marks=pytest.mark.slow),
        pytest.param(replace(TWO, parallel={"comm_type": "a2a"}), id="a2a", marks=pytest.mark.slow),
    ],
)
def test_no_tensor_of_the_host_meets_one_of_the_gpu(spread: Spread, cpu_cluster: Cluster) -> None:
    """On a GPU that is pretended; see ``checks.model.device_labels``."""
    graphs = GraphOptions(graphs="bank", graph_warmup=1)
    options = bank_options("qwen3-tiny", spread, graphs, steps=1)
    outcome = cpu_cluster.run(
        graph_device_cases.pretended, world_size=spread.ranks, options=options
    )
    assert all(sum(value.replays.values()) > 0 for value in outcome.values)


@needs_gpu
@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("comm_type", ["p2p", "all_gather", "a2a"])
def test_attention_in_a_graph(comm_type: str, world_size: int, gpu_cluster: Cluster) -> None:
    outcome = gpu_cluster.run(graph_cases.attention, world_size=world_size, comm_type=comm_type)
    assert outcome.values == ({"replay 10": True, "replay 20": True},) * world_size


@needs_gpu
@pytest.mark.parametrize(("tp", "size", "slots"), [(2, 1, 1), (1, 2, 2)])
def test_a_layer_in_a_graph(tp: int, size: int, slots: int, gpu_cluster: Cluster) -> None:
    case = {"tp": tp, "size": size, "slots": slots, "name": "qwen3-tiny"}
    outcome = gpu_cluster.run(graph_cases.layer, world_size=4, **case)
    assert outcome.values == ({"replay 10": True, "replay 20": True, "counted": True},) * 4


@needs_gpu
def test_transfers_in_flight_in_a_graph(gpu_cluster: Cluster) -> None:
    outcome = gpu_cluster.run(graph_cases.transfers_by_hand, world_size=2)
    assert outcome.values == ({"replay": True},) * 2


def test_the_benchmark_runs_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    """And says that it measured nothing; nothing is recorded."""
    before = cuda.RECORD.read_bytes() if cuda.RECORD.exists() else None
    assert cuda.main(["--device", "cpu", "--ranks", "2"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("On a CPU, on the tape")
    assert "same bits: yes" in shown
    assert "2 ranks: CP 2: " in shown
    assert before == (cuda.RECORD.read_bytes() if cuda.RECORD.exists() else None)


def test_the_benchmark_sees_a_wrong_replay() -> None:
    """Negative control: a slot that was never filled."""
    with mock.patch.object(bank, "load", lambda static, batch: None):
        found = cuda.measure(cuda.TINY[0], "tape", torch.device("cpu"), 2)
    assert found["same bits"] is False


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_the_benchmark_needs_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert cuda.main([]) == 2
    assert "there is no GPU here" in capsys.readouterr().err
