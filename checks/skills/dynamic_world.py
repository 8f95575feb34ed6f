"""Megatron-core's own dynamic ("hybrid") CP groups and loader, observed without GPUs.

The groups are built by `initialize_model_parallel` in worlds of the fake backend: it forms every
group and moves nothing, so one process sees what each rank of a large world would be given. The
loader runs in a world of one gloo rank. Run by `checks.skills.shared.measure`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch.distributed.distributed_c10d import _get_all_pg_configs
from torch.testing._internal.distributed.fake_pg import FakeStore

Entry = dict[str, Any]


@contextmanager
def world(size: int, rank: int, **layout: Any) -> Iterator[None]:
    """One rank's view of an initialised world; nothing of it is left afterwards."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        parallel_state.initialize_model_parallel(create_gloo_process_groups=False, **layout)
        yield
    finally:
        parallel_state.destroy_model_parallel()
        parallel_state._HYBRID_DP_CP_GROUPS = {}
        dist.destroy_process_group()


def lookup(size: int) -> Entry | None:
    """What the getter gives for one CP size; ``None`` for a `KeyError`."""
    try:
        group = parallel_state.get_hybrid_data_context_parallel_groups(group_size=size)
    except KeyError:
        return None
    return {"desc": group.group_desc, "ranks": dist.get_process_group_ranks(group)}


def groups_of(world_size: int, rank: int, **layout: Any) -> dict[int, Entry]:
    """Every CP size that this rank can look up."""
    with world(world_size, rank, **layout):
        found = {size: lookup(size) for size in range(world_size + 1)}
    return {size: entry for size, entry in found.items() if entry is not None}


def refusal(world_size: int) -> str:
    """What initialising says, or nothing."""
    try:
        with world(world_size, 0, hybrid_context_parallel=True):
            return ""
    except AssertionError as error:
        return str(error)


def left_after_destroy() -> dict[str, Any]:
    """The dictionary of groups before and after `destroy_model_parallel`."""
    with world(8, 5, hybrid_context_parallel=True):
        listed = sorted({config["pg_desc"] for config in _get_all_pg_configs()})
        before = sorted(parallel_state._HYBRID_DP_CP_GROUPS)
        parallel_state.destroy_model_parallel()
        after = sorted(parallel_state._HYBRID_DP_CP_GROUPS)
    return {"before": before, "after": after, "listed": listed}


def loaded() -> dict[str, Any]:
    """One step of the loader wrapper: what a microbatch looks like, and what it asks for."""
    from megatron.core.datasets.data_schedule import HybridCPDataLoaderWrapper

    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.Tensor.cuda = lambda self, *_, **__: self
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
    pack = {
        "tokens": torch.arange(24),
        "labels": torch.arange(24) + 1,
        "cu_seqlens": torch.tensor([0, 8, 24]),
        "max_seqlen": torch.tensor(16),
    }
    config = SimpleNamespace(max_seqlen_per_dp_cp_rank=32)
    wrapper = HybridCPDataLoaderWrapper(iter([[pack]]), config)
    samples, sample_ids = next(wrapper)
    bare = {name: pack[name] for name in ("tokens", "labels")}
    try:
        next(HybridCPDataLoaderWrapper(iter([[bare]]), config))
        missing = ""
    except KeyError as error:
        missing = str(error.args[0])
    unwrapped = evaluated(iter([[pack]]))
    rerun = sanitized(wrapper)
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()  # or gloo's threads may abort the interpreter at its end
    return {
        "keys": sorted(samples[0]),
        "dimensions": sorted({value.dim() for value in samples[0].values()}),
        "tokens": [samples[index]["tokens"].tolist() for index in sorted(samples)],
        "sample_ids": sample_ids,
        "missing": missing,
        "unwrapped": unwrapped,
        "rerun": rerun,
    }


def evaluated(iterator: Any) -> str:
    """What the hybrid loop says to an iterator that nobody wrapped, as evaluation has it."""
    from megatron.core.pipeline_parallel import hybrid_cp_schedule

    loop = hybrid_cp_schedule.hybrid_context_parallel_forward_backward
    arguments = dict.fromkeys(inspect.signature(loop).parameters)
    try:
        loop(**{**arguments, "data_iterator": iterator})
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def sanitized(wrapper: Any) -> dict[str, str]:
    """What the rerun state machine says to the wrapper and to an iterator of its own, by mode."""
    from megatron.core.rerun_state_machine import RerunDataIterator, RerunMode, RerunStateMachine

    found = {}
    for mode in (RerunMode.VALIDATE_RESULTS, RerunMode.DISABLED):
        machine = RerunStateMachine(mode=mode)
        for name, iterator in (("hybrid", iter(wrapper)), ("own", RerunDataIterator(iter([])))):
            try:
                machine._sanitize_data_iterators(iterator)
                found[f"{mode.value}, {name}"] = ""
            except AssertionError as error:
                found[f"{mode.value}, {name}"] = str(error)
    return found


def observe() -> dict[str, Any]:
    """Every observation; the loader last, because it patches ``torch.cuda``."""
    hybrid = {"hybrid_context_parallel": True}
    return {
        "eight": [groups_of(8, rank, **hybrid) for rank in range(8)],
        "eight_static_four": groups_of(8, 5, context_parallel_size=4, **hybrid),
        "eight_tensor_two": groups_of(8, 5, tensor_model_parallel_size=2, **hybrid),
        "switched_off": groups_of(8, 5),
        "six": groups_of(6, 5, **hybrid),
        "ten": groups_of(10, 9, **hybrid),
        "twelve": groups_of(12, 9, **hybrid),
        "refused": {size: refusal(size) for size in (1, 5, 8)},
        "destroyed": left_after_destroy(),
        "loaded": loaded(),
    }


def main() -> None:
    """Print the observations as one JSON line."""
    print(json.dumps(observe()))


if __name__ == "__main__":
    main()
