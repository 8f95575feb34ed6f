"""What Megatron-LM's dev branch does around dynamic CP.

Called by `ringproof.rehearsal.fixtures.Stage.call`, `observe` on one rank and `groups` on several.
"""

from __future__ import annotations

import importlib
import signal
import time
import types
import warnings
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from checks.skills import dynamic_batches as batches
from checks.skills.core_cases import layout, said
from checks.skills.shared import Group

SMALL = {"num_layers": 2, "hidden_size": 16, "num_attention_heads": 4}


LIMIT = 5.0
"""Seconds of processor time; what ends takes thousandths of it."""


class StillPlanning(Exception):
    """The time is over."""


def plan(batch: batches.Batch) -> list[list[list[int]]]:
    """The microbatches of upstream's scheduler; each is the sample ids of every rank."""
    schedule = importlib.import_module("megatron.core.datasets.data_schedule")
    scheduler = schedule.DefaultDynamicCPScheduler(
        batch.budget, 1, batch.ranks, batch.multiple, min_cp_size=batch.smallest
    )
    return list(scheduler.get_groups_and_subsamples(list(enumerate(batch.lengths))))


def outcome(batch: batches.Batch, limit: float = LIMIT) -> dict[str, Any]:
    """The microbatches, or the error; and the seconds of processor time that it took.

    ``shared`` says whether two ranks of a microbatch have one list object.
    """

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise StillPlanning

    importlib.import_module("megatron.core.datasets.data_schedule")  # takes longer than planning
    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, limit)
    started = time.process_time()
    try:
        made = plan(batch)
        shared = any(len(set(map(id, microbatch))) < len(microbatch) for microbatch in made)
        found: dict[str, Any] = {"microbatches": made, "error": "", "shared": shared}
    except Exception as error:
        found = {"microbatches": None, "error": f"{type(error).__name__}: {error}"}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return {**found, "seconds": time.process_time() - started}


def configs() -> dict[str, str]:
    """What `ModelParallelConfig` says to settings; nothing where it takes them."""
    from megatron.core.model_parallel_config import ModelParallelConfig

    tried: dict[str, dict[str, Any]] = {
        "plain": {},
        "smallest 3": {"min_dynamic_context_parallel_size": 3},
        "smallest 0": {"min_dynamic_context_parallel_size": 0},
        "both names": {"hybrid_context_parallel": True},
        "alignment without budget": {"pad_packed_seq_alignment": "max"},
        "alignment with budget": {
            "pad_packed_seq_alignment": "max",
            "max_seqlen_per_dp_cp_rank": 64,
        },
    }
    return {
        name: said(lambda o=options: ModelParallelConfig(dynamic_context_parallel=True, **o))
        for name, options in tried.items()
    }


def transformer_configs() -> dict[str, Any]:
    """What `TransformerConfig` takes, and what it says to an older Transformer Engine."""
    from megatron.core.transformer import transformer_config

    options = {**SMALL, "dynamic_context_parallel": True, "context_parallel_size": 4}
    hierarchical = {"cp_comm_type": "a2a+p2p", "hierarchical_context_parallel_sizes": [2, 2]}
    make = transformer_config.TransformerConfig
    made = make(**options, **hierarchical, max_seqlen_per_dp_cp_rank=None)
    wrong_dispatcher = said(lambda: make(**options, num_moe_experts=4))
    transformer_config.is_te_min_version = lambda *_, **__: False
    return {
        "old engine": said(lambda: make(**options)),
        "a2a+p2p": made.cp_comm_type,
        "per token": made.calculate_per_token_loss,
        "budget": made.max_seqlen_per_dp_cp_rank,
        "wrong dispatcher": wrong_dispatcher,
    }


def alias() -> dict[str, Any]:
    """The old name given to the model's config."""
    from megatron.core.model_parallel_config import ModelParallelConfig

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config = ModelParallelConfig(hybrid_context_parallel=True)
    return {
        "dynamic": config.dynamic_context_parallel,
        "scheduler": config.sequence_packing_scheduler,
        "warned": [str(item.message) for item in caught],
    }


def groups(options: dict[str, Any]) -> dict[str, Any]:
    """The groups that this rank can look up, by CP size, and what is ``left`` in the end."""
    from megatron.core import parallel_state as state

    found: dict[str, Any] = {}
    with layout(dynamic_context_parallel=True, **options):
        for wanted in range(1, dist.get_world_size() + 1):
            try:
                group = state.get_dynamic_data_context_parallel_groups(group_size=wanted)
            except KeyError:
                continue
            ranks = dist.get_process_group_ranks(group)
            found[str(wanted)] = {"desc": group.group_desc, "ranks": ranks}
    found["left"] = sorted(state._DYNAMIC_DP_CP_GROUPS)
    dist.barrier()  # the first rank serves the store: it must not end before the others
    return found


def mamba() -> dict[str, str]:
    """Eight heads and four groups, switched from one group to the next."""
    from megatron.core.ssm.mamba_context_parallel import MambaContextParallel

    def switch(size: int) -> None:
        cut = object.__new__(MambaContextParallel)
        cut.nheads_local_tp, cut.ngroups_local_tp, cut.d_inner_local_tp = 8, 4, 32
        cut.d_state = 4
        cut.set_context_parallel_group(Group(size))

    return {str(size): said(lambda s=size: switch(s)) for size in (1, 2, 4, 8, 16)}


def captured() -> dict[str, Any]:
    """What is left of a microbatch's packing on the way through a captured layer."""
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.transformer.transformer_layer import TransformerLayer

    config = types.SimpleNamespace(
        max_seqlen_per_dp_cp_rank=16, context_parallel_size=2, cp_partition_mode="zigzag"
    )
    given = PackedSeqParams(qkv_format="thd", local_cp_size=4, cp_group=Group(4), max_seqlen_q=64)
    arguments: dict[str, Any] = {"packed_seq_params": given}
    TransformerLayer._decompose_packed_seq_params_to_kwargs(arguments)
    kept = sorted(arguments)
    layer = types.SimpleNamespace(config=config)
    TransformerLayer._reconstruct_packed_seq_params_from_kwargs(layer, arguments)
    after = arguments["packed_seq_params"]
    return {
        "kept": kept,
        "local_cp_size": after.local_cp_size,
        "has_group": after.cp_group is not None,
        "max_seqlen_q": after.max_seqlen_q,
    }


def static_packer(samples: int, multiple: int) -> str:
    """What the packer of static CP says to few samples under virtual stages."""
    from megatron.core.datasets.data_schedule import DpBalancedScheduler

    scheduler = DpBalancedScheduler(1024, 2, 2, multiple)
    return said(lambda: scheduler.get_groups_and_subsamples([(i, 100) for i in range(samples)]))


def seconds() -> list[float]:
    """Processor time of planning, for more sequences and ranks each time."""
    timed = (
        batches.Batch(tuple(batches.lognormal(count).tolist()), ranks=ranks, budget=2048)
        for count, ranks in batches.TIMED
    )
    return [outcome(batch, limit=60.0)["seconds"] for batch in timed]


def observe(_: None) -> dict[str, Any]:
    """Every observation that one rank can make."""
    from megatron.core.datasets.data_schedule_utils import _unpack_batch

    return {
        "plans": {name: outcome(batch) for name, batch in batches.PLANNED_BY_DEV.items()},
        "seconds": seconds(),
        "static packer": {"few": static_packer(3, 4), "enough": static_packer(8, 4)},
        "configs": configs(),
        "alias": alias(),
        "bare sample": said(lambda: _unpack_batch([{"tokens": torch.arange(8)}])),
        "mamba": mamba(),
        "captured": captured(),
        "transformer configs": transformer_configs(),  # the last: it feigns an older engine
    }
