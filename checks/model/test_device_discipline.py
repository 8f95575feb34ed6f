"""No tensor of the host meets one of the GPU: in the model, and in a whole training step.

On a machine without a GPU nothing else would notice; see ``device_labels``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from checks.model.device_labels import GPU, PretendedGpu
from checks.model.whole_model import whole
from ringproof.reference.graphs.tape.backend import TapeBackend
from ringproof.reference.model import attention
from ringproof.reference.model.config import PRESETS, preset
from ringproof.reference.packing.sequences import Capacity
from ringproof.reference.training.options import GraphOptions, KeepingOptions
from ringproof.reference.training.records import EvaluationRecord, Record, StepRecord
from ringproof.reference.training.trainer import train
from smoke.model_batches import capacity_batch, group_of_one, random_sequences, rank_batch
from smoke.training_matrix import ONE_RANK, options_of


@pytest.fixture
def gpu() -> Iterator[PretendedGpu]:
    with PretendedGpu() as pretended:
        yield pretended


def step(name: str, *, static: bool) -> torch.Tensor:
    """Forward and backward of a model."""
    config = preset(name)
    stage = whole(config, device=GPU)
    with group_of_one() as alone:
        if static:
            room = Capacity(rows=128, entries=6)
            batch = capacity_batch(random_sequences(), alone, room, device=GPU)
        else:
            batch = rank_batch(random_sequences(), alone, device=GPU)
        loss: torch.Tensor = stage(batch.tokens, batch).value
        loss.backward()
    return loss


@pytest.mark.parametrize("static", [False, True], ids=["pack", "capacity"])
@pytest.mark.parametrize("name", list(PRESETS))
def test_a_model_stays_on_its_device(name: str, static: bool, gpu: PretendedGpu) -> None:
    loss = step(name, static=static)
    assert loss.device == GPU
    assert loss.isfinite()


def test_a_tensor_left_on_the_host_is_seen(
    gpu: PretendedGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: frequencies of RoPE that nobody sent to the device."""
    arange = torch.arange

    def on_host(*arguments: Any, device: Any = None, **options: Any) -> torch.Tensor:
        return arange(*arguments, **options)

    monkeypatch.setattr(attention.torch, "arange", on_host)
    with pytest.raises(AssertionError, match="a tensor on the host"):
        step("qwen3-tiny", static=True)


@pytest.mark.parametrize(
    ("name", "graphs"),
    [
        ("qwen3-tiny", "off"),
        pytest.param("qwen3-tiny", "bank", marks=pytest.mark.slow),
        pytest.param("moonlight-tiny", "bank", marks=pytest.mark.slow),
    ],
)
def test_a_training_stays_on_its_device(
    name: str, graphs: str, gpu: PretendedGpu, tmp_path: Path
) -> None:
    """From loading to evaluation and checkpoint; several ranks are in ``smoke``."""
    scope = {"graph_scope": "attn", "graph_warmup": 1} if graphs == "bank" else {}
    options = replace(
        options_of(name, ONE_RANK, steps=1, graphs=GraphOptions(graphs=graphs, **scope)),
        keeping=KeepingOptions(save=str(tmp_path), evaluate_every=1),
    )
    found: list[Record] = []
    with group_of_one():
        train(options, GPU, found.append, backend=TapeBackend())
    (step,) = (one for one in found if isinstance(one, StepRecord))
    assert math.isfinite(step.loss)
    assert bool(step.graph_replays) == (graphs == "bank")
    assert (tmp_path / "latest").exists()
    assert any(isinstance(one, EvaluationRecord) for one in found)
