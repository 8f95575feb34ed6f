"""Which CP group megatron-core hands to Transformer Engine in each forward pass, and takes back.

Transformer Engine needs a GPU; switching its group does not. A stand-in whose attention only
remembers the group it was told to use takes its place, and megatron-core's own forward runs on
top of it. Run by `fresh_process.measure`: the stand-in must never reach another test.
"""

from __future__ import annotations

import importlib.machinery
import json
import sys
import types
from typing import Any

import torch
import torch.distributed as dist

from checks.skills.te_hand_off import PACKAGE, Recorder, StandIn, StandInFinder


class Attention(Recorder):
    """Transformer Engine's attention, as far as its CP group goes."""

    def __init__(self, *args: object, **received: Any) -> None:
        super().__init__(*args, **received)
        self.cp_group = received.get("cp_group")
        self.cp_global_ranks = received.get("cp_global_ranks")
        self.cp_stream = received.get("cp_stream")
        self.cp_comm_type = received.get("cp_comm_type")

    def set_context_parallel_group(
        self, cp_group: Any, cp_global_ranks: Any, cp_stream: Any, cp_comm_type: str = "p2p"
    ) -> None:
        """As upstream: four assignments."""
        self.cp_group, self.cp_global_ranks, self.cp_stream = cp_group, cp_global_ranks, cp_stream

    def forward(self, *_: object, **__: object) -> Any:
        """The CP group that attention would run on."""
        return self.cp_group, self.cp_stream


class Modules(StandIn):
    """A stand-in module whose attention keeps track of its group."""

    def __getattr__(self, name: str) -> Any:
        return Attention if name == "DotProductAttention" else super().__getattr__(name)


class Finder(StandInFinder):
    """Serves `Modules` below ``transformer_engine``."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Modules:
        """An empty stand-in."""
        return Modules(spec.name)


def attention(static_size: int, collection: Any) -> Any:
    """Megatron-core's attention under a static CP size, on the stand-in."""
    from megatron.core.extensions.transformer_engine import TEDotProductAttention
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.enums import AttnMaskType

    config = TransformerConfig(
        num_layers=1,
        hidden_size=16,
        num_attention_heads=4,
        context_parallel_size=static_size,
        hybrid_context_parallel=True,
        max_seqlen_per_dp_cp_rank=8,
    )
    TEDotProductAttention.cp_stream = None
    torch.cuda.Stream = lambda *_, **__: "a stream"
    return TEDotProductAttention(
        config,
        1,
        AttnMaskType.causal,
        "self",
        cp_comm_type="p2p",
        pg_collection=collection,
    )


def passes(static_size: int) -> dict[str, Any]:
    """Forward passes in a row: static, dynamic, static, size 1, static."""
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.transformer.enums import AttnMaskType

    collection = ProcessGroupCollection.use_mpu_process_groups()
    dynamic = dist.new_group([0])
    layer = attention(static_size, collection)
    names = {id(collection.cp): "static", id(dynamic): "dynamic", id(None): "none"}
    q = torch.zeros(4, 1, 4, 4)

    def run(packed: PackedSeqParams | None) -> Any:
        group, stream = layer(q, q, q, None, AttnMaskType.causal, packed_seq_params=packed)
        return {"group": names.get(id(group), "other"), "stream": stream}

    switched = PackedSeqParams(qkv_format="sbhd", local_cp_size=2, cp_group=dynamic)
    alone = PackedSeqParams(qkv_format="sbhd", local_cp_size=1)
    found = [run(packed) for packed in (None, switched, None, alone, None)]
    try:
        run(PackedSeqParams(qkv_format="sbhd", local_cp_size=2))
        refused = ""
    except AssertionError as error:
        refused = str(error)
    return {"passes": found, "refused": refused}


def main() -> None:
    """Print the passes under a static CP size of 4 and of 1 as one JSON line."""
    sys.meta_path.insert(0, Finder())
    for name in ("pytorch", "pytorch.ops", "pytorch.distributed", "common.recipe"):
        __import__(f"{PACKAGE}.{name}")
    assert isinstance(sys.modules[PACKAGE], types.ModuleType)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    from megatron.core import parallel_state

    parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
    found = {"static_four": passes(4), "static_one": passes(1)}
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()  # or gloo's threads may abort the interpreter at its end
    print(json.dumps(found))


if __name__ == "__main__":
    main()
