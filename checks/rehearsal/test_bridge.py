"""Megatron-Bridge's own configuration and ``pretrain`` run in a rehearsal.

Needs checkouts of Megatron-Bridge and of the Megatron-LM that it pins, and Bridge's own
requirements installed: transformers, hydra-core, nvidia-modelopt, datasets, tensorboard, and
nvidia-resiliency-ext 0.6, which the package index does not have.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from ringproof.rehearsal.fixtures import Stage
from ringproof.rehearsal.program import Program
from ringproof.rehearsal.running import Outcome

BRIDGE = "NVIDIA-NeMo/Megatron-Bridge@067f987df03b8355b03192d88d70f1709fedf51a"
REQUIRED = ("transformers", "hydra", "modelopt", "datasets", "tensorboard", "nvidia_resiliency_ext")
SCRIPT = str(Path(__file__).parent / "bridge_program.py")
# Float32 over three steps; the runs differ in the order of sums.
TOLERANCE = 1e-6


def run(stage: Stage, ranks: int, **model: Any) -> Outcome:
    missing = [name for name in REQUIRED if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"Megatron-Bridge needs {', '.join(missing)}")
    folder = stage.checkout(BRIDGE, "src/")
    pin = (folder / ".main.commit").read_text().strip()
    upstream = dataclasses.replace(
        stage.upstream(f"NVIDIA/Megatron-LM@{pin}"), extra=(folder / "src",)
    )
    case = {"iterations": 3, "global_batch": 4, "model": model}
    return stage.run(Program(upstream, SCRIPT, (json.dumps(case),), ranks))


def test_hierarchical_cp_trains_as_one_rank(stage: Stage) -> None:
    one = run(stage, 1)
    four = run(
        stage,
        4,
        context_parallel_size=4,
        cp_comm_type="a2a+p2p",
        hierarchical_context_parallel_sizes=[2, 2],
    )
    assert one.failure is None and four.failure is None
    assert len(four.losses) == 3
    for step, losses in one.losses.items():
        assert four.losses[step]["lm loss"] == pytest.approx(losses["lm loss"], rel=TOLERANCE)
    for report in four.ranks:
        assert {(call.comm_type, call.sizes) for call in report.attention} == {("a2a+p2p", (2, 2))}


def test_levels_must_be_given(stage: Stage) -> None:
    refused = run(stage, 4, context_parallel_size=4, cp_comm_type="a2a+p2p")
    assert refused.failure is not None
    assert "hierarchical_context_parallel_sizes must be set" in refused.failure.message
    assert "megatron/bridge/training/config.py" in refused.failure.place
