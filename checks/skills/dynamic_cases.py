"""What Megatron-LM's own code does around Dynamic CP, observed in ranks that imported it.

Called by `SessionServers.call`. `observe`, `plans` and what concerns one packed
sample run on one rank, `groups` on any number.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import itertools
import random
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_all_pg_configs

from checks.skills import dynamic_batches as batches
from checks.skills.core_cases import layout, said
from checks.skills.shared import REPOSITORY, SMALL, Group, blocks

# --- groups ---


def groups(asked: dict[str, Any]) -> list[dict[str, Any]]:
    """The groups that this rank can look up in each of some layouts.

    Args:
        asked: ``line``, which is ``dynamic`` or ``hybrid``, and ``layouts``.

    Returns:
        For each layout: ``groups`` by CP size with description and ranks, the descriptions
        ``listed`` by torch, the sizes that are ``held`` and those ``left`` in the end, and what was
        ``refused``.
    """
    from megatron.core import parallel_state as state

    kept = f"_{asked['line'].upper()}_DP_CP_GROUPS"
    answers = []
    for options in asked["layouts"]:
        found: dict[str, Any] = {"groups": {}, "refused": ""}
        try:
            with layout(**options):
                found["groups"] = looked_up(asked["line"])
                found["listed"] = sorted({one["pg_desc"] for one in _get_all_pg_configs()})
                found["held"] = sorted(getattr(state, kept))
        except AssertionError as error:
            found["refused"] = str(error)
        found["left"] = sorted(getattr(state, kept))
        setattr(state, kept, {})
        answers.append(found)
    dist.barrier()  # the first rank serves the store: it must not end before the others
    return answers


def worlds(asked: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """What `groups` finds in worlds of several sizes, which the first of these ranks form in turn.

    Args:
        asked: ``line``, the ``layouts`` of each number of ranks, and the ``folder`` for the stores
            by which a world meets. All of these ranks form the largest world.
    """
    from megatron.core import parallel_state as state

    found, rank = {}, dist.get_rank()
    for ranks, layouts in sorted(asked["layouts"].items(), key=lambda world: int(world[0])):
        if dist.is_initialized():
            dist.destroy_process_group()
        if rank < int(ranks):
            store = dist.FileStore(f"{asked['folder']}/{ranks}", int(ranks))
            dist.init_process_group("nccl", store=store, rank=rank, world_size=int(ranks))
            found[ranks] = groups({"line": asked["line"], "layouts": layouts})
            state.destroy_model_parallel()  # what a refusal has left
    return found


def looked_up(line: str) -> dict[str, dict[str, Any]]:
    """Description and ranks of every group that this rank can look up, by CP size."""
    from megatron.core import parallel_state as state

    lookup = getattr(state, f"get_{line}_data_context_parallel_groups")
    found = {}
    for size in range(1, dist.get_world_size() + 1):
        with suppress(KeyError):
            group = lookup(group_size=size)
            ranks = dist.get_process_group_ranks(group)
            found[str(size)] = {"desc": group.group_desc, "ranks": ranks}
    return found


# --- plans ---

LIMIT = 5.0
"""Seconds of processor time; what ends takes thousandths of it."""
SHORT_LIMIT = 0.5
DOMAINS = (4, 6, 8, 12, 16, 24)
BATCHES = 6


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
    # Again each second: Python ignores what is raised while it runs a destructor.
    signal.setitimer(signal.ITIMER_PROF, limit, 1.0)
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


def seconds() -> list[float]:
    """Processor time of planning, for more sequences and ranks each time."""
    timed = (
        batches.Batch(tuple(batches.lognormal(count).tolist()), ranks=ranks, budget=2048)
        for count, ranks in batches.TIMED
    )
    return [outcome(batch, limit=60.0)["seconds"] for batch in timed]


def plans(_: None) -> dict[str, Any]:
    """The errors of random batches under virtual stages by domain, and of partition modes."""
    drawn = random.Random(0)
    counts = [drawn.choice((3, 4, 6, 10)) for _ in range(BATCHES)]
    lengths = [tuple(drawn.randint(40, 1000) for _ in range(count)) for count in counts]
    errors = {
        str(ranks): [
            outcome(batches.Batch(some, ranks, 512, 4), SHORT_LIMIT)["error"] for some in lengths
        ]
        for ranks in DOMAINS
    }
    return {"errors": errors, "partitions": partitions()}


def static_packer(samples: int, multiple: int) -> str:
    """What the packer of static CP says to few samples under virtual stages."""
    from megatron.core.datasets.data_schedule import DpBalancedScheduler

    scheduler = DpBalancedScheduler(1024, 2, 2, multiple)
    return said(lambda: scheduler.get_groups_and_subsamples([(i, 100) for i in range(samples)]))


# --- configurations ---


def configs() -> dict[str, str]:
    """What `ModelParallelConfig` says to settings; nothing where it takes them."""
    from megatron.core.model_parallel_config import ModelParallelConfig

    tried: dict[str, dict[str, Any]] = {
        "plain": {},
        "smallest 3": {"min_dynamic_context_parallel_size": 3},
        "smallest 0": {"min_dynamic_context_parallel_size": 0},
        "both names": {"hybrid_context_parallel": True},
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


def partitions() -> dict[str, str]:
    """What `TransformerConfig` says to partition modes under static CP 2."""
    from megatron.core.transformer.transformer_config import TransformerConfig

    contiguous = {"cp_partition_mode": "contiguous"}
    static = {**SMALL, "context_parallel_size": 2, "max_seqlen_per_dp_cp_rank": 64}
    tried: dict[str, dict[str, Any]] = {
        "zigzag": {},
        "contiguous": {**contiguous, "sequence_packing_scheduler": "dp_balanced"},
        "unpacked": contiguous,
        "dsv4 in zigzag": {"experimental_attention_variant": "dsv4_hybrid"},
    }
    return {
        name: said(lambda o=options: TransformerConfig(**static, **o))
        for name, options in tried.items()
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

    config = SimpleNamespace(
        max_seqlen_per_dp_cp_rank=16, context_parallel_size=2, cp_partition_mode="zigzag"
    )
    given = PackedSeqParams(qkv_format="thd", local_cp_size=4, cp_group=Group(4), max_seqlen_q=64)
    arguments: dict[str, Any] = {"packed_seq_params": given}
    TransformerLayer._decompose_packed_seq_params_to_kwargs(arguments)
    kept = sorted(arguments)
    layer = SimpleNamespace(config=config)
    TransformerLayer._reconstruct_packed_seq_params_from_kwargs(layer, arguments)
    after = arguments["packed_seq_params"]
    return {
        "kept": kept,
        "local_cp_size": after.local_cp_size,
        "has_group": after.cp_group is not None,
        "max_seqlen_q": after.max_seqlen_q,
    }


def observe(_: None) -> dict[str, Any]:
    """Every observation that one rank of dev can make."""
    return {
        "plans": {name: outcome(batch) for name, batch in batches.PLANNED_BY_DEV.items()},
        "seconds": seconds(),
        "static packer": {"few": static_packer(3, 4), "enough": static_packer(8, 4)},
        "configs": configs(),
        "alias": alias(),
        "mamba": mamba(),
        "captured": captured(),
        "transformer configs": transformer_configs(),  # the last: it feigns an older engine
    }


# --- one packed sample ---


class Words:
    """A tokenizer: a conversation is the number of its tokens.

    The last of them ends the document. The data set of 0.16.1 appends such a token where it is
    absent, and a length would then not be the one that was asked for.
    """

    eod, pad = 1, 0

    def tokenize_conversation(
        self, conversation: list[dict[str, Any]], **_: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = torch.full((conversation[0]["content"],), 7)
        tokens[-1] = self.eod
        return tokens, tokens


def padded_lengths(cases: list[list[int]]) -> list[list[int]]:
    """Lengths after the SFT data set padded sequences of 5, 9 and 33 tokens.

    The import takes seconds, and so one rank answers all cases.

    Args:
        cases: The sizes of CP, DP and sequence parallelism.
    """
    from megatron.training.datasets.sft_dataset import SFTDataset

    return [_padded(SFTDataset, *sizes) for sizes in cases]


def _padded(kind: Any, cp: int, dp: int, sp: int) -> list[int]:
    dataset = kind.__new__(kind)
    dataset.dataset = [[{"role": "system", "content": length} for length in (5, 9, 33)]]
    dataset.indices = [0]
    dataset.config = SimpleNamespace(
        tokenizer=Words(),
        sequence_length=512,
        context_parallel_size=cp,
        data_parallel_size=dp,
        sequence_parallel_size=sp,
        dynamic_context_parallel=True,
        hybrid_context_parallel=True,
        reset_position_ids=False,
        reset_attention_mask=False,
        create_attention_mask=False,
    )
    borders = dataset[0]["cu_seqlens"].tolist()
    return [after - before for before, after in itertools.pairwise(borders[:3])]


def shifted(_: None) -> list[int]:
    """Positions 1 to 16 after MTP's shift; two sequences of 5 and 3 tokens have 8 rows each."""
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.transformer import multi_token_prediction as prediction

    tokens = torch.tensor([0, 5, 8], dtype=torch.int32)
    rows = torch.tensor([0, 8, 16], dtype=torch.int32)
    packing = PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=tokens,
        cu_seqlens_kv=tokens,
        cu_seqlens_q_padded=rows,
        cu_seqlens_kv_padded=rows,
        max_seqlen_q=8,
        max_seqlen_kv=8,
    )
    positions = torch.arange(1, 17).unsqueeze(0)
    group = dist.group.WORLD
    if hasattr(prediction, "_roll_tensors_packed_seq"):
        (rolled,) = prediction.roll_tensor([positions], -1, -1, group, packing)
    else:
        rolled, _ = prediction.roll_tensor(positions, -1, -1, group, packing)
    return [int(value) for value in rolled.flatten()]


def costs(sequences: list[tuple[int, int, int]]) -> list[list[float]]:
    """Work of each rank by upstream's scheduler, for a sequence alone on all ranks of a domain.

    Args:
        sequences: Length, ranks, and tokens of a rank.
    """
    try:
        from megatron.core.datasets.data_schedule_utils import next_hdp_group_packing_aware
    except ImportError:  # the hybrid schedule
        from megatron.core.pipeline_parallel.hybrid_cp_schedule import BalancedCPScheduler

        weigh = BalancedCPScheduler(128, dist.group.WORLD).get_total_workload
        return [[weigh(length, ranks)] * ranks for length, ranks, _ in sequences]
    return [
        next_hdp_group_packing_aware([(0, length)], ranks, budget)[2]
        for length, ranks, budget in sequences
    ]


def counted(value: int) -> int:
    """A number of tokens, as it arrives on a rank that is not the first."""
    from megatron.core.datasets.data_schedule_utils import broadcast_scalars

    return int(broadcast_scalars([value], dist.group.WORLD, "cpu")[0])


# --- iterators and loops ---


def loaded(_: None) -> dict[str, Any]:
    """One step of the hybrid loader's wrapper: what a microbatch looks like, and what it needs."""
    from megatron.core.datasets.data_schedule import HybridCPDataLoaderWrapper
    from megatron.core.pipeline_parallel import hybrid_cp_schedule

    pack = {
        "tokens": torch.arange(24),
        "labels": torch.arange(24) + 1,
        "cu_seqlens": torch.tensor([0, 8, 24]),
        "max_seqlen": torch.tensor(16),
    }
    bare = {name: pack[name] for name in ("tokens", "labels")}
    config = SimpleNamespace(max_seqlen_per_dp_cp_rank=32)
    loop = hybrid_cp_schedule.hybrid_context_parallel_forward_backward
    arguments = {
        **dict.fromkeys(inspect.signature(loop).parameters),
        "data_iterator": iter([[pack]]),
    }
    with layout():
        wrapper = HybridCPDataLoaderWrapper(iter([[pack]]), config)
        samples, sample_ids = next(wrapper)
        return {
            "keys": sorted(samples[0]),
            "dimensions": sorted({value.dim() for value in samples[0].values()}),
            "tokens": [samples[index]["tokens"].tolist() for index in sorted(samples)],
            "sample_ids": sample_ids,
            "missing": said(lambda: next(HybridCPDataLoaderWrapper(iter([[bare]]), config))),
            "unwrapped": said(lambda: loop(**arguments)),
            "rerun": sanitized(wrapper),
        }


def sanitized(wrapper: Any) -> dict[str, str]:
    """What the rerun state machine says to the wrapper and to an iterator of its own, by mode."""
    from megatron.core.rerun_state_machine import RerunDataIterator, RerunMode, RerunStateMachine

    found = {}
    for mode in (RerunMode.VALIDATE_RESULTS, RerunMode.DISABLED):
        machine = RerunStateMachine(mode=mode)
        for name, iterator in (("hybrid", iter(wrapper)), ("own", RerunDataIterator(iter([])))):
            ask = partial(machine._sanitize_data_iterators, iterator)
            found[f"{mode.value}, {name}"] = said(ask)
    return found


def samples(lengths: list[int]) -> Iterator[list[dict[str, torch.Tensor]]]:
    """Global batches as an unpacked data set yields them: one sequence in each microbatch."""
    for length in lengths:
        rows = torch.arange(length)
        size = torch.tensor([length], dtype=torch.int32)
        yield [
            {
                "tokens": rows,
                "labels": rows,
                "loss_mask": torch.ones(length),
                "position_ids": rows,
                "original_seq_len": size,
                "padded_seq_len": size.clone(),
            }
        ]


def own_loop(snippet: str) -> dict[str, Any]:
    """Run the own loop of the skill for one global batch; then with an iterator on TP rank 1."""
    from megatron.core.datasets.data_schedule import wrap_data_iterator
    from megatron.core.transformer.transformer_config import TransformerConfig

    sizes: list[int] = []
    place = dist.get_rank()
    config = TransformerConfig(
        **SMALL,
        dynamic_context_parallel=True,
        max_seqlen_per_dp_cp_rank=32,
        calculate_per_token_loss=True,
    )
    names: dict[str, Any] = {
        "samples": samples([64, 16] if place == 0 else [32, 16]),
        "num_microbatches": 2,
        "config": config,
        "train_on": lambda *batch: sizes.append(int(batch[-1].local_cp_size)),
    }
    with layout(dynamic_context_parallel=True):
        exec(snippet, names)
    with layout(tensor_model_parallel_size=2):
        second = said(lambda: wrap_data_iterator(samples([16, 16]), config, 2)) if place else ""
        dist.barrier()  # the first rank serves the store: it must not end before the others
    return {"sizes": sizes, "returned": len(names["wrapped"]), "second": second}


def leave_tokenizers_out() -> None:
    """Let the program of 0.16.1 import ``six`` and ``regex``, and watch its training loop.

    It needs neither. Where they are installed they are used: transformers, if it is there too,
    calls ``regex``.
    """
    for name in ("six", "regex"):
        if importlib.util.find_spec(name) is None:
            sys.modules[name] = ModuleType(name)
    importlib.import_module("megatron.training.training")  # before the script, to be watched


def broadcasts(_: None) -> list[list[list[int]]]:
    """Return the bytes of each broadcast of a batch over the tensor parallel ranks of 0.16.1.

    Returns:
        For a hybrid and for an ordinary batch: those that the first rank sends, and those that
        another one waits for.
    """
    leave_tokenizers_out()
    row = torch.arange(8)
    hybrid = {"tokens": row, "labels": row, "loss_mask": row.float(), "position_ids": row}
    whole = {name: value[None] for name, value in hybrid.items()}
    hybrid["local_cp_size"] = torch.tensor(2, dtype=torch.int32)  # as the schedule adds it
    return [
        [_broadcast(rank, given, batch) for rank in (0, 1)]
        for given, batch in ((True, hybrid), (False, whole))
    ]


def _broadcast(rank: int, hybrid: bool, batch: dict[str, torch.Tensor]) -> list[int]:
    """Let one tensor parallel rank hand on or wait for a batch, without the other one."""
    utils: Any = importlib.import_module("megatron.training.utils")
    utils.get_args = lambda: SimpleNamespace(
        hybrid_context_parallel=hybrid, pipeline_model_parallel_size=1, micro_batch_size=1,
        seq_length=8, create_attention_mask_in_dataloader=False, sft=False,
    )  # fmt: skip
    utils.mpu = SimpleNamespace(
        get_tensor_model_parallel_rank=lambda: rank,
        get_tensor_model_parallel_src_rank=lambda: 0,
        get_tensor_model_parallel_group=lambda: None,
    )
    sizes, lengths = [], iter((8,))

    def broadcast(item: torch.Tensor, *_: Any, **__: Any) -> None:
        sizes.append(item.nbytes)
        if rank and item.numel() == 1 and item.dim() == 0:  # a length: the row, then no boundaries
            item.fill_(next(lengths, 0) if hybrid else 0)

    with patch.object(dist, "broadcast", broadcast):
        utils.get_batch_on_this_tp_rank(iter((batch,)) if rank == 0 else None)
    return sizes


def mla_refuses() -> None:
    """Let multi-latent attention refuse the CP size of a microbatch."""
    module: Any = importlib.import_module("megatron.core.transformer.multi_latent_attention")
    forward = module.MultiLatentAttention.forward

    def refusing(*arguments: Any, **named: Any) -> Any:
        packed = named.get("packed_seq_params")
        assert packed is None or packed.local_cp_size is None, "not supported with MLA yet"
        return forward(*arguments, **named)

    module.MultiLatentAttention.forward = refusing


def count_sizes() -> None:
    """Run the snippet of SKILL.md that counts CP sizes, before upstream's program."""
    text = (REPOSITORY / "skills/dynamic-context-parallel/SKILL.md").read_text(encoding="utf-8")
    exec(blocks(text, "python")[0], {})
