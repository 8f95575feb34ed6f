"""Which trainings are compared with one rank: every preset in every layout.

Each variant trains the same samples from the same parameters as its reference, which is the same
preset on one rank, packed without CP. What differs is only how the work is spread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ringproof.reference.topology.layout import RankLayout
from ringproof.reference.training.options import (
    BatchOptions,
    GraphOptions,
    KeepingOptions,
    ModelOptions,
    OptimiserOptions,
    ParallelOptions,
    TrainOptions,
)
from ringproof.reference.training.records import (
    EvaluationRecord,
    GraphsRecord,
    Record,
    StepRecord,
)

TOLERANCE = 1e-9
"""Relative. Float64 rounds at 1e-16; thirty steps of Adam let that grow by some orders."""
STEPS = 30
LONGEST = 64
PRESETS = ("qwen3-tiny", "moonlight-tiny")

Series = list[tuple[float, float]]
"""Loss and gradient norm of each step."""


@dataclass(frozen=True)
class Spread:
    """One way to spread a training over ranks: fields of `RankLayout` and of three options."""

    layout: Mapping[str, int] = field(default_factory=dict)
    parallel: Mapping[str, Any] = field(default_factory=dict)
    batch: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        return RankLayout(**self.layout).world_size


_PACKED = MappingProxyType({"schedule": "packed"})
_PADDED = MappingProxyType({"schedule": "padded"})
_EVERY_SIZE = MappingProxyType({"forced_sizes": (1, 2, 4, 8)})
_SIZES_OF_FOUR = MappingProxyType({"forced_sizes": (4, 1, 2)})
ONE_RANK = Spread(batch=_PACKED)

SPREADS: Mapping[str, Spread] = MappingProxyType(
    {
        "one rank, padded": Spread(batch=_PADDED),
        "recompute": Spread(batch=_PACKED, model={"recompute": True}),
        "TP 2": Spread({"tp": 2}, batch=_PACKED),
        "TP 2, no sequence parallelism": Spread(
            {"tp": 2}, {"sequence_parallel": False}, batch=_PACKED
        ),
        "PP 2": Spread({"pp": 2}, batch=_PACKED),
        "PP 2 x VPP 2": Spread({"pp": 2}, {"vpp": 2}, batch=_PACKED),
        "DP 2": Spread({"dp": 2}, batch=_PACKED),
        "CP 2": Spread({"cp": 2}, batch=_PACKED),
        "CP 4": Spread({"cp": 4}, batch=_PACKED),
        "CP 2, padded": Spread({"cp": 2}, batch=_PADDED),
        "dynamic on 2": Spread({"cp": 2}),
        "dynamic on 4": Spread({"cp": 2, "dp": 2}),
        "dynamic on 8, sizes 1, 2, 4, 8": Spread({"cp": 8}, batch=_EVERY_SIZE),
        "dynamic on 6, sizes 3, 6, 1, 2": Spread(
            {"cp": 3, "dp": 2}, batch={"cp_sizes": "divisors", "forced_sizes": (3, 6, 1, 2)}
        ),
        "dynamic on 4, all_gather": Spread(
            {"cp": 4}, {"comm_type": "all_gather"}, batch=_SIZES_OF_FOUR
        ),
        "dynamic on 4, a2a": Spread({"cp": 4}, {"comm_type": "a2a"}, batch=_SIZES_OF_FOUR),
        "dynamic on 4, a2a+p2p": Spread(
            {"cp": 4}, {"comm_type": "a2a+p2p", "ranks_per_node": 2}, batch=_SIZES_OF_FOUR
        ),
        "dynamic on 8, a2a+p2p": Spread(
            {"cp": 8}, {"comm_type": "a2a+p2p", "ranks_per_node": 4}, batch=_EVERY_SIZE
        ),
        "FSDP2 on 2": Spread({"dp": 2}, {"fully_sharded": True}, batch=_PACKED),
        "FSDP2, dynamic on 4": Spread({"cp": 4}, {"fully_sharded": True}, batch=_SIZES_OF_FOUR),
        "FSDP2, PP 2, dynamic on 2": Spread({"pp": 2, "cp": 2}, {"fully_sharded": True}),
        "FSDP2, PP 2 x VPP 2, dynamic on 2": Spread(
            {"pp": 2, "cp": 2}, {"fully_sharded": True, "vpp": 2}
        ),
        "TP 2 x dynamic on 4": Spread({"tp": 2, "cp": 4}, batch=_SIZES_OF_FOUR),
        "PP 2 x dynamic on 4": Spread({"pp": 2, "cp": 4}, batch=_SIZES_OF_FOUR),
        "PP 2 x VPP 2 x dynamic on 4": Spread({"pp": 2, "cp": 4}, {"vpp": 2}, batch=_SIZES_OF_FOUR),
        "TP 2 x PP 2 x dynamic on 2": Spread({"tp": 2, "pp": 2, "cp": 2}),
        "TP 2 x PP 2 x VPP 2 x dynamic on 2": Spread({"tp": 2, "pp": 2, "cp": 2}, {"vpp": 2}),
    }
)


def options_of(
    preset: str,
    spread: Spread,
    *,
    mtp: int = 0,
    steps: int = STEPS,
    graphs: GraphOptions | None = None,
    **batch: Any,
) -> TrainOptions:
    """The run of one variant; ``batch`` changes fields of `BatchOptions`."""
    common = {
        "data": f"synthetic:mean={LONGEST // 2}",
        "global_batch": 8,
        "max_sequence_length": LONGEST,
        "max_tokens_per_rank": LONGEST,
    }
    return TrainOptions(
        model=ModelOptions(**{"preset": preset, "mtp": mtp, "dtype": "float64", **spread.model}),
        parallel=ParallelOptions(**spread.layout, **spread.parallel),
        batch=BatchOptions(**{**common, **spread.batch, **batch}),
        optimiser=OptimiserOptions(steps=steps),
        keeping=KeepingOptions(),
        graphs=graphs or GraphOptions(),
    )


@dataclass
class Trace:
    """What one rank of a run measured; equal on all ranks, apart from times.

    Args:
        steps: Loss and gradient norm of each step.
        evaluations: Losses.
        problems: What the validator found in the plans.
        refused: The field and the text of what stopped the run; empty if nothing did.
        replays: Passes of microbatches through stages by graphs, by CP size, over all ranks.
        eager: Passes without.
        graphs: What was captured, as in the log.
        step_seconds: Seconds that all steps take together.
    """

    steps: Series = field(default_factory=list)
    evaluations: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    refused: tuple[str, ...] = ()
    replays: Counter[int] = field(default_factory=Counter)
    eager: int = 0
    graphs: dict[str, Any] = field(default_factory=dict, compare=False)
    step_seconds: float = field(default=0.0, compare=False)

    def take(self, record: Record) -> None:
        if isinstance(record, GraphsRecord):
            self.graphs = record.as_json()
        if isinstance(record, EvaluationRecord):
            self.evaluations.append(record.loss)
        if isinstance(record, StepRecord):
            self.steps.append((record.loss, record.grad_norm))
            self.replays.update(record.graph_replays)
            self.eager += record.graph_eager
            self.step_seconds += record.step_seconds


def relative(found: float, wanted: float) -> float:
    """Relative difference; infinite for NaN."""
    difference = abs(found - wanted) / abs(wanted)
    return difference if difference == difference else float("inf")


def largest_difference(found: Series, wanted: Series) -> float:
    """Largest relative difference of loss or gradient norm over all steps; infinite for NaN.

    Raises:
        ValueError: The numbers of steps differ, or there is no step.
    """
    if not wanted:
        raise ValueError("there is no step to compare")
    return max(
        relative(one, other)
        for pair in zip(found, wanted, strict=True)
        for one, other in zip(*pair, strict=True)
    )
