"""Megatron-core's own groups and attention on Transformer Engine's own, in every rank.

Called by `SessionServers.call` on four ranks. What Megatron hands over is
observed and computed with: each result is compared with dense attention in float64.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from packaging.version import Version
from torch.distributed import distributed_c10d

from checks.skills.engine_cases import Case, difference

HEADS, WIDTH = 8, 8
Sizes = Sequence[int] | None


@contextmanager
def layout(**options: Any) -> Iterator[Any]:
    """Model parallel state, gone afterwards; yields the collection of its groups."""
    from megatron.core import parallel_state
    from megatron.core.process_groups_config import ProcessGroupCollection

    parallel_state.initialize_model_parallel(create_gloo_process_groups=False, **options)
    try:
        yield ProcessGroupCollection.use_mpu_process_groups()
    finally:
        parallel_state.destroy_model_parallel()


def attention(collection: Any, comm: str, **options: Any) -> Any:
    """Megatron-core's attention over Transformer Engine's, for layer 1."""
    from megatron.core.extensions.transformer_engine import TEDotProductAttention
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.enums import AttnMaskType

    config = TransformerConfig(
        num_layers=1,
        hidden_size=HEADS * WIDTH,
        num_attention_heads=HEADS,
        num_query_groups=HEADS // 2,
        attention_dropout=0.0,
        cp_comm_type=comm,
        **options,
    )
    return TEDotProductAttention(
        config, 1, AttnMaskType.causal, "self", cp_comm_type=comm, pg_collection=collection
    )


def run(layer: Any, ranks: Sequence[int] | None = None, packed: Any = None) -> dict[str, Any]:
    """Run a layer on a sequence that ``ranks`` share: its error, or what it raised."""
    from megatron.core.transformer.enums import AttnMaskType

    def attend(*local: torch.Tensor) -> torch.Tensor:
        shaped = [value.unsqueeze(1) for value in local]
        found = layer(*shaped, None, AttnMaskType.causal, packed_seq_params=packed)
        assert isinstance(found, torch.Tensor)
        return found

    found = answer(lambda: difference(Case("any"), attend, ranks))
    return (
        {"error": None, "raised": found}
        if isinstance(found, str)
        else {"error": found, "raised": ""}
    )


def hierarchical(_: None) -> dict[str, Any]:
    """What megatron-core builds and hands over with level sizes, and without."""
    found = {
        "wrong product": refused([2, 3]),
        "flat": described(None),
        "two": described([2, 2]),
        "three": described([2, 2, 1]),
        "flat again": described(None),
        "attend, flat": handed_over(None),
        "attend, two": handed_over([2, 2]),
        "attend, three": handed_over([2, 2, 1]),
        "attend, old engine": on_an_old_engine(),
        "expert groups": expert_groups(),
    }
    dist.barrier()  # the first rank serves the store: it must not end before the others
    return found


def on_an_old_engine() -> str:
    """What building a2a+p2p attention raises when Transformer Engine says that it is 1.11.0."""
    from megatron.core.extensions import transformer_engine as extension

    options = {"context_parallel_size": 4, "hierarchical_context_parallel_sizes": [2, 2]}
    old = {"is_te_min_version": lambda version, **_: Version(version) <= Version("1.11.0")}
    with patch.multiple(extension, **old), layout(**options) as groups:
        return said(lambda: attention(groups, "a2a+p2p", **options))


def expert_groups() -> list[str]:
    """Descriptions of level groups that exist without CP, for two instances of the optimizer."""
    with layout(num_distributed_optimizer_instances=2):
        described = {str(one["pg_desc"]) for one in distributed_c10d._get_all_pg_configs()}
    return sorted(name for name in described if name.startswith("HIERARCHICAL"))


def snippets(texts: Sequence[str]) -> dict[str, Any]:
    """What the skill's own Python prints, run in its order; and the guard on a flat layout.

    The texts build levels, show them, assert them, and take them away.
    """
    initialise, show, guard, reset = texts
    names: dict[str, Any] = {}
    printed = io.StringIO()
    with redirect_stdout(printed):
        for text in (initialise, show, guard, reset):
            exec(text, names)
    flat = initialise.replace(", hierarchical_context_parallel_sizes=[2, 2])", ")", 1)
    assert flat != initialise
    exec(flat, names)
    refusals = [said(functools.partial(exec, text, {})) for text in (show, guard)]
    names["parallel_state"].destroy_model_parallel()
    return {
        "printed": printed.getvalue().splitlines(),
        "type of the config": names["config"].cp_comm_type,
        "without sizes": refusals,
    }


def local_types(_: None) -> dict[str, str]:
    """What the config says to each communication type without Transformer Engine's attention."""
    from megatron.core.transformer import TransformerConfig

    small = {"num_layers": 1, "hidden_size": 64, "num_attention_heads": 4}
    local = {**small, "transformer_impl": "local", "context_parallel_size": 4}
    types = ("p2p", "a2a", "all_gather", "a2a+p2p")
    return {
        name: said(functools.partial(TransformerConfig, **local, cp_comm_type=name))
        for name in types
    }


def answer(action: Callable[[], Any]) -> Any:
    """What an action returns, or what it raises: the type and the message."""
    try:
        return action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def said(action: Callable[[], Any]) -> str:
    """What an action raises, or nothing."""
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def refused(sizes: Sizes) -> str:
    """What initialising with these sizes raises: the type and the message."""
    from megatron.core import parallel_state

    found = said(lambda: described(sizes))
    parallel_state.destroy_model_parallel()
    return found


def described(sizes: Sizes) -> dict[str, Any]:
    """The descriptions and ranks of the level groups, and whether the getter asserts."""
    from megatron.core import parallel_state

    def levels(**options: bool) -> list[Any] | None:
        groups = parallel_state.get_hierarchical_context_parallel_groups(**options)
        return groups and [[g.group_desc, dist.get_process_group_ranks(g)] for g in groups]

    with layout(context_parallel_size=4, hierarchical_context_parallel_sizes=sizes):
        try:
            levels()
            guard = True
        except AssertionError:
            guard = False
        found = {"levels": levels(check_initialized=False), "guard": guard}
    return {**found, "after": levels(check_initialized=False)}


def handed_over(sizes: Sizes) -> dict[str, Any]:
    """Attention built with a collection whose ``hcp`` holds groups of our own, and its result."""
    from megatron.core import parallel_state

    parallel_state._HIERARCHICAL_CONTEXT_PARALLEL_GROUPS = None  # of an earlier layout
    with layout(context_parallel_size=4, hierarchical_context_parallel_sizes=sizes) as collection:
        state = parallel_state.get_hierarchical_context_parallel_groups(check_initialized=False)
        collection.hcp = [dist.new_group([0, 1, 2, 3]), dist.new_group([0, 1, 2, 3])]
        options = {"context_parallel_size": 4, "hierarchical_context_parallel_sizes": sizes}
        layer = attention(collection, "a2a+p2p", **options)
        flat = attention(collection, "p2p", **options)
        return {
            "comm": layer.cp_comm_type,
            "none": layer.cp_group is None,
            "of the collection": layer.cp_group is collection.hcp,
            "of the state": state is not None and layer.cp_group is state,
            "p2p has the flat group": flat.cp_group is collection.cp,
            **run(layer),
        }


def dynamic(switch: str) -> dict[str, Any]:
    """Forward passes in a row under a static CP size of 4 and of 1, and under two levels."""
    two_levels = {"hierarchical_context_parallel_sizes": [2, 2]}
    found = {
        "static 4": passes(4, switch, "p2p"),
        "static 1": passes(1, switch, "p2p"),
        "levels": passes(4, switch, "a2a+p2p", **two_levels)[:2],
    }
    dist.barrier()  # the first rank serves the store: it must not end before the others
    return found


def passes(static_size: int, switch: str, comm: str, **levels: Any) -> list[dict[str, Any]]:
    """Passes: static, dynamic on two ranks, static, dynamic on one rank, static, no group."""
    from megatron.core.extensions.transformer_engine import TEDotProductAttention
    from megatron.core.packed_seq_params import PackedSeqParams

    place = dist.get_rank()
    pair = [dist.new_group([0, 1]), dist.new_group([2, 3])][place // 2]
    TEDotProductAttention.cp_stream = None  # of an earlier layout
    options = {"context_parallel_size": static_size, switch: True, "max_seqlen_per_dp_cp_rank": 64}
    with layout(context_parallel_size=static_size, **levels) as collection:
        layer = attention(collection, comm, **options, **levels)
        names = {id(collection.cp): "static", id(pair): "dynamic"}
        static = range(4) if static_size == 4 else [place]
        two = range(place // 2 * 2, place // 2 * 2 + 2)

        def step(ranks: Sequence[int], **packing: Any) -> dict[str, Any]:
            packed = PackedSeqParams(qkv_format="sbhd", **packing) if packing else None
            found = run(layer, ranks, packed)
            group = "none" if layer.cp_group is None else names.get(id(layer.cp_group), "other")
            return {"group": group, **found}

        return [
            step(static),
            step(two, local_cp_size=2, cp_group=pair),
            step(static),
            step([place], local_cp_size=1),
            step(static),
            step(two, local_cp_size=2),
        ]
