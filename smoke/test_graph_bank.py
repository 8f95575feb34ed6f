"""Training by graphs under Dynamic CP: bit by bit what the same packs give without, in float64.

Both sides compute packs of the same capacity; one of them replays. The tape is what a CUDA graph
would be on a CPU: shapes, addresses, groups and branches are those of the capture.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from ringproof.errors import InputError
from ringproof.harness.cluster import Cluster
from ringproof.reference.training.options import GraphOptions
from smoke import bank_cases
from smoke.bank_cases import STATIC, bank_options, run
from smoke.training_matrix import Spread

pytestmark = pytest.mark.slow  # `make test` has no time for them

SIZES_OF_FOUR = {"forced_sizes": (4, 1, 2)}
TP2 = Spread({"tp": 2, "cp": 2}, batch={"forced_sizes": (2, 1)})
PP2 = Spread({"pp": 2, "cp": 2}, batch={"forced_sizes": (2, 1)})
VPP2 = Spread({"pp": 2, "cp": 2}, {"vpp": 2}, batch={"forced_sizes": (2, 1)})
FOUR = Spread({"cp": 4}, batch=SIZES_OF_FOUR)
BANK = GraphOptions(graphs="bank", graph_warmup=1)
slow = pytest.mark.slow
CASES = [
    ("qwen3-tiny", TP2, "layer"),
    ("qwen3-tiny", PP2, "layer"),
    ("qwen3-tiny", FOUR, "layer"),
    ("moonlight-tiny", FOUR, "attn"),
    ("moonlight-tiny", FOUR, "router"),
    pytest.param("qwen3-tiny", VPP2, "layer", marks=slow),
    pytest.param("qwen3-tiny", replace(FOUR, model={"recompute": True}), "layer", marks=slow),
    pytest.param(
        "qwen3-tiny", replace(FOUR, parallel={"comm_type": "all_gather"}), "layer", marks=slow
    ),
    pytest.param("qwen3-tiny", Spread({"cp": 4}, batch={"schedule": "packed"}), "attn", marks=slow),
    pytest.param("moonlight-tiny", TP2, "attn", marks=slow),
    pytest.param("moonlight-tiny", PP2, "router", marks=slow),
    pytest.param(
        "moonlight-tiny",
        Spread({"cp": 8}, batch={"forced_sizes": (1, 2, 4, 8)}),
        "attn",
        marks=slow,
    ),
    pytest.param("nemotron-h-tiny", TP2, "layer", marks=slow),
]


@pytest.mark.parametrize(("preset", "spread", "scope"), CASES)
def test_a_training_equals_the_eager_one(
    preset: str, spread: Spread, scope: str, cluster: Cluster
) -> None:
    expected = run(cluster, preset, spread, STATIC)
    found = run(cluster, preset, spread, replace(BANK, graph_scope=scope))
    assert len(found.series) == 2
    assert all(value == value for step in found.series for value in step)
    assert found.series == expected.series
    assert not expected.replays
    assert found.eager == 0
    assert min(found.replays.values()) > 0, "a CP size was never replayed"


def test_packs_of_capacity_are_the_packs(cluster: Cluster) -> None:
    """What both sides above compute is what a run without capacity does, up to rounding."""
    static = run(cluster, "qwen3-tiny", FOUR, STATIC).series
    off = run(cluster, "qwen3-tiny", FOUR, GraphOptions()).series
    assert [*static[0], *static[1]] == pytest.approx([*off[0], *off[1]], rel=1e-10)


def test_stale_metadata_are_seen(cluster: Cluster) -> None:
    """Negative control: each replay computes the empty pack of the capture."""
    expected = run(cluster, "qwen3-tiny", FOUR, STATIC)
    assert run(cluster, "qwen3-tiny", FOUR, BANK, fault="stale").series[0] != expected.series[0]


def test_what_does_not_fit_is_eager_and_counted(cluster: Cluster) -> None:
    small = replace(BANK, graph_sequences=2, graphs_overflow="eager")
    found = run(cluster, "qwen3-tiny", FOUR, small)
    static = replace(STATIC, graph_sequences=2, graphs_overflow="eager")
    assert found.series == run(cluster, "qwen3-tiny", FOUR, static).series
    assert found.eager > 0
    assert sum(found.replays.values()) > 0


def test_what_does_not_fit_is_refused_by_all_ranks(cluster: Cluster) -> None:
    with pytest.raises(InputError, match=r"graph_sequences: a pack of CP size \d has \d entries"):
        run(cluster, "qwen3-tiny", FOUR, replace(BANK, graph_sequences=1))


def test_a_capture_that_one_pipeline_stage_refuses(cluster: Cluster) -> None:
    """All refuse; the other stage would wait for messages that never come."""
    options = bank_options("qwen3-tiny", Spread({"pp": 2}, batch={"schedule": "packed"}), BANK)
    with pytest.raises(InputError, match=r"layers\.3: reads back"):
        cluster.run(bank_cases.aborted, world_size=2, options=options)
