"""The runs that faults are injected into: the smallest in which each can show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from ringproof.reference.training.options import KeepingOptions, TrainOptions
from smoke.training_matrix import ONE_RANK, Spread, options_of

_TURNS = MappingProxyType({"forced_sizes": (2, 1)})
_PACKED = MappingProxyType({"schedule": "packed"})


@dataclass(frozen=True, kw_only=True)
class Setup:
    """One run, and what is compared with it.

    Args:
        spread: Over ranks.
        preset: The model.
        mtp: Depths of multi-token prediction.
        batch: Of `BatchOptions`, the same in the run on one rank.
        keeping: Of `KeepingOptions`.
        resumed: Whether the run is resumed from its first checkpoint and compared with itself.
        only_plans: Whether nothing is trained.
    """

    spread: Spread
    preset: str = "qwen3-tiny"
    mtp: int = 1
    batch: Mapping[str, Any] = field(default_factory=dict)
    keeping: Mapping[str, Any] = field(default_factory=dict)
    resumed: bool = False
    only_plans: bool = False

    def options(self, steps: int, **keeping: Any) -> TrainOptions:
        """The run."""
        options = options_of(self.preset, self.spread, mtp=self.mtp, steps=steps, **self.batch)
        return replace(options, keeping=KeepingOptions(**{**self.keeping, **keeping}))

    def reference(self, steps: int) -> TrainOptions:
        """The same samples on one rank; nothing is saved."""
        options = options_of(self.preset, ONE_RANK, mtp=self.mtp, steps=steps, **self.batch)
        keeping = {k: v for k, v in self.keeping.items() if k != "save_every"}
        return replace(options, keeping=KeepingOptions(**keeping))


SETUPS: Mapping[str, Setup] = MappingProxyType(
    {
        "qwen3, CP 2, sizes 2 and 1 in turn": Setup(spread=Spread({"cp": 2}, batch=_TURNS)),
        "qwen3, DP 2, sizes 2 and 1 in turn": Setup(spread=Spread({"dp": 2}, batch=_TURNS)),
        "nemotron-h, CP 2, sizes 2 and 1 in turn": Setup(
            spread=Spread({"cp": 2}, batch=_TURNS), preset="nemotron-h-tiny", mtp=0
        ),
        "moonlight, CP 2, sizes 2 and 1 in turn": Setup(
            spread=Spread({"cp": 2}, batch=_TURNS), preset="moonlight-tiny", mtp=0
        ),
        "qwen3, CP 3, sizes 3 and 1 in turn": Setup(
            spread=Spread({"cp": 3}, batch={"cp_sizes": "divisors", "forced_sizes": (3, 1)})
        ),
        "qwen3, CP 2 as two levels": Setup(
            spread=Spread({"cp": 2}, {"comm_type": "a2a+p2p", "ranks_per_node": 1}, batch=_TURNS)
        ),
        "qwen3, TP 2": Setup(spread=Spread({"tp": 2}, batch=_PACKED)),
        "qwen3, PP 2": Setup(spread=Spread({"pp": 2}, batch=_PACKED)),
        "qwen3, FSDP2 on 2": Setup(spread=Spread({"dp": 2}, {"fully_sharded": True}, _PACKED)),
        "qwen3, FSDP2 on 2, a dummy in each step": Setup(
            spread=Spread({"cp": 2}, {"fully_sharded": True}, _TURNS), batch={"global_batch": 2}
        ),
        "qwen3, CP 2, evaluated after step 2": Setup(
            spread=Spread({"cp": 2}, batch=_TURNS), keeping={"evaluate_every": 2}
        ),
        "qwen3, CP 2, resumed after step 1": Setup(
            spread=Spread({"cp": 2}, batch=_TURNS), keeping={"save_every": 1}, resumed=True
        ),
        "plans for CP 4, sizes 2 and 1 in turn": Setup(
            spread=Spread({"cp": 4}, batch=_TURNS), only_plans=True
        ),
        "plans for PP 2 x VPP 2": Setup(
            spread=Spread({"pp": 2}, {"vpp": 2}, {"forced_sizes": (1,)}), only_plans=True
        ),
    }
)
