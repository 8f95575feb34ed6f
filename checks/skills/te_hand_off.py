"""Which process groups megatron-core's TEDotProductAttention hands to Transformer Engine.

Transformer Engine needs a GPU; the hand-off does not. A stand-in package that records the
arguments of every constructor takes its place, and megatron-core's own class runs on top of it.
Run by `fresh_process.measure`: the stand-in must never reach another test.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import sys
import types
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

PACKAGE = "transformer_engine"
VERSION = "2.20.2"


class Recorder(torch.nn.Module):
    """A module that remembers the keyword arguments it was built with."""

    def __init__(self, *_: object, **received: object) -> None:
        super().__init__()
        self.received = received


class StandIn(types.ModuleType):
    """A module in which every name is a `Recorder` class."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Recorder,), {})


class StandInFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers every import below ``transformer_engine`` with a stand-in."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A spec for names of the package, nothing for others."""
        if fullname.split(".")[0] != PACKAGE:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> StandIn:
        """An empty stand-in."""
        return StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Only the package itself has anything: its version."""
        if module.__name__ == PACKAGE:
            module.__version__ = VERSION  # type: ignore[attr-defined]


def handed_over(comm_type: str, collection: Any) -> dict[str, Any]:
    """The arguments that Transformer Engine's DotProductAttention is built with."""
    from megatron.core.extensions.transformer_engine import TEDotProductAttention
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.enums import AttnMaskType

    TEDotProductAttention.cp_stream = object()  # a CUDA stream otherwise
    config = TransformerConfig(
        num_layers=1,
        hidden_size=16,
        num_attention_heads=4,
        context_parallel_size=4,
        cp_comm_type=comm_type,
    )
    attention = TEDotProductAttention(
        config,
        1,
        AttnMaskType.causal,
        "self",
        cp_comm_type=comm_type,
        pg_collection=collection,
    )
    return dict(attention.received)


def scenario(sizes: Sequence[int] | None) -> dict[str, object]:
    """Build attention with a collection that carries groups of our own, and see what arrives."""
    from megatron.core import parallel_state
    from megatron.core.process_groups_config import ProcessGroupCollection

    parallel_state.initialize_model_parallel(
        hierarchical_context_parallel_sizes=None if sizes is None else list(sizes),
        create_gloo_process_groups=False,
    )
    of_megatron = parallel_state.get_hierarchical_context_parallel_groups(check_initialized=False)
    collection = ProcessGroupCollection.use_mpu_process_groups()
    collection.hcp = [dist.new_group([0]), dist.new_group([0])]
    hierarchical = handed_over("a2a+p2p", collection)
    flat = handed_over("p2p", collection)
    parallel_state.destroy_model_parallel()
    return {
        "comm_type": hierarchical["cp_comm_type"],
        "is_none": hierarchical["cp_group"] is None,
        "is_of_collection": hierarchical["cp_group"] is collection.hcp,
        "is_of_megatron": of_megatron is not None and hierarchical["cp_group"] is of_megatron,
        "p2p_is_flat_group": flat["cp_group"] is collection.cp,
        "te_version": VERSION,
    }


def main() -> None:
    """Print both scenarios as one JSON line."""
    sys.meta_path.insert(0, StandInFinder())
    for name in ("pytorch", "pytorch.ops", "pytorch.distributed", "common.recipe"):
        __import__(f"{PACKAGE}.{name}")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    print(json.dumps({"without_sizes": scenario(None), "with_sizes": scenario([1, 1])}))


if __name__ == "__main__":
    main()
