"""What the graphs of a bank will need is known before the first capture, and refused in time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from checks.graphs.test_bank import options
from checks.model.whole_model import whole
from ringproof import budget
from ringproof.errors import InputError
from ringproof.reference.graphs.bank import capture_bank
from ringproof.reference.graphs.estimate import LiveBytes, Need, check_fits, estimated_bytes
from ringproof.reference.graphs.scopes import parts_of
from ringproof.reference.model.config import preset
from ringproof.reference.packing.sequences import Capacity
from ringproof.reference.topology.dynamic import ContextParallelGroup
from smoke.model_batches import capacity_batch, random_sequences

GIBIBYTE = 1 << 30


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", ["qwen3-tiny", "nemotron-h-tiny"])
@pytest.mark.parametrize("rows", [64, 512])
def test_the_estimate_is_what_the_graphs_hold(
    rows: int, name: str, recompute: bool, alone: ContextParallelGroup
) -> None:
    parts = parts_of(whole(preset(name), recompute=recompute), "layer")
    batch = capacity_batch(random_sequences((13, 1)), alone, Capacity(rows=rows, entries=5))
    made = options(shape=(rows, 64))
    needed = estimated_bytes(parts, batch, 1, made)
    memory = capture_bank(parts, [batch], made).memory.values()
    held = sum(one.inputs + one.gradients + one.private for one in memory)
    assert 0.75 <= needed / held <= 1.33
    assert estimated_bytes(parts, batch, 1, replace(made, slots=3)) == 3 * needed
    assert estimated_bytes((), batch, 1, made) == 0


def test_only_what_an_operation_made_is_counted() -> None:
    given = torch.ones(1000)
    with LiveBytes() as live:
        given.view(10, 100).add_(1)
        assert (live.now, live.peak) == (0, 0)
        made = given * 2
        (made + 1).sum()
    assert live.now == 4000
    assert 8000 <= live.peak <= 8100


@pytest.mark.parametrize(
    ("need", "message"),
    [
        (
            Need("here", 3 * GIBIBYTE, 2 * GIBIBYTE, None),
            r"1 ranks on here need about 3\.0 GiB, and 2",
        ),
        (
            Need("here", 3 * GIBIBYTE, 9 * GIBIBYTE, GIBIBYTE),
            r"a rank on here need about 3\.0 GiB, and 1",
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    need: Need, message: str, alone: ContextParallelGroup
) -> None:
    with pytest.raises(InputError, match=f"graph_rows: the graphs of {message}.*got 1024.*lower"):
        check_fits(need, 1024)
    check_fits(replace(need, needed=GIBIBYTE // 2), 1024)
    check_fits(replace(need, shared=None, own=None), 1024)


def test_the_machine_says_what_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(budget, "CGROUP", tmp_path)
    assert budget.free_memory() is None
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:       4 kB\n")
    assert budget.free_memory() == 4096
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert budget.free_memory() == 4096
    (tmp_path / "memory.max").write_text("3000\n")
    assert budget.free_memory() == 2000
    (tmp_path / "memory.stat").write_text("anon 100\ninactive_file 500\n")
    assert budget.free_memory() == 2500, "the kernel gives up its cache of files"
