"""What Megatron-LM's lines answer about CUDA graphs under Dynamic CP, asked of their own code.

Called by `SessionServers.call`: `observe` on one rank, `stages` on four. What a
line lacks is reported as the error that asking for it raises.
"""

from __future__ import annotations

import importlib
import types
from typing import Any

import torch
import torch.distributed as dist

from checks.skills.core_cases import answer, layout, said
from checks.skills.shared import SMALL, Group

PACKED = {
    "dynamic_context_parallel": True,
    "sequence_packing_scheduler": "default_dynamic_cp",
    "max_seqlen_per_dp_cp_rank": 16,
    "pad_packed_seq_alignment": "max",
    "thd_max_packed_sequences": 4,
    "cuda_graph_impl": "transformer_engine",
    "cuda_graph_dynamic_microbatches": True,
    "calculate_per_token_loss": True,
}
EXPERTS = {"num_moe_experts": 4, "moe_token_dispatcher_type": "alltoall"}
OVERLAP = {
    **EXPERTS,
    "overlap_moe_expert_parallel_comm": True,
    "expert_model_parallel_size": 2,
    "bf16": True,
    "params_dtype": torch.bfloat16,
    "cuda_graph_modules": ["attn"],
}
CONFIGS: dict[str, dict[str, Any]] = {
    "bank": {},
    "local": {"cuda_graph_impl": "local", "cuda_graph_dynamic_microbatches": False},
    "full iteration": {
        "cuda_graph_impl": "full_iteration",
        "cuda_graph_dynamic_microbatches": False,
    },
    "fixed slots": {"cuda_graph_dynamic_microbatches": False},
    "delayed wgrad": {**OVERLAP, "delay_wgrad_compute": True},
    "overlap": OVERLAP,
    "no alignment": {"pad_packed_seq_alignment": None},
    "another alignment": {"pad_packed_seq_alignment": 8},
    "alignment of the budget": {"pad_packed_seq_alignment": 16},
    "no budget": {"max_seqlen_per_dp_cp_rank": None},
    "no capacity": {"thd_max_packed_sequences": None},
    "offloading": {"cpu_offloading": True},
    "full recompute": {
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
    },
    "dropout recomputed": {
        "recompute_granularity": "selective",
        "recompute_modules": ["core_attn"],
        "attention_dropout": 0.1,
    },
    "router and experts": {**EXPERTS, "cuda_graph_modules": ["moe", "moe_router"]},
    "preprocess alone": {**EXPERTS, "cuda_graph_modules": ["moe_preprocess"]},
    "experts without padding": {**EXPERTS, "cuda_graph_modules": ["moe"]},
    "router": {**EXPERTS, "cuda_graph_modules": ["moe_router", "moe_preprocess"]},
    "another dispatcher": {"num_moe_experts": 4},
}


def refused(**changes: Any) -> str:
    """What the configuration says to these changes of a good one."""
    config: Any = importlib.import_module("megatron.core.transformer").TransformerConfig
    return said(lambda: config(**SMALL, **{**PACKED, **changes}))


def configurations() -> dict[str, str]:
    """What the configuration says; nothing where it accepts."""
    said_by = {name: refused(**changes) for name, changes in CONFIGS.items()}
    module: Any = importlib.import_module("megatron.core.transformer.transformer_config")
    module.is_te_min_version = lambda *_, **__: False
    module.get_te_version = lambda: None
    return {**said_by, "an older engine": refused()}


def helper(config: Any, **more: Any) -> Any:
    """A capture helper without layers."""
    from megatron.core.transformer.cuda_graphs import TECudaGraphHelper

    made = object.__new__(TECudaGraphHelper)
    vars(made).update(config=config, callables_per_chunk=[], **more)
    return made


def sizes(ranks: int, smallest: int) -> Any:
    """The CP sizes that a capture on a domain of these ranks takes, in order, or the error."""
    from megatron.core import parallel_state

    parallel_state.get_dynamic_data_context_parallel_groups = lambda group_size: Group(group_size)
    config = types.SimpleNamespace(
        dynamic_context_parallel=True, min_dynamic_context_parallel_size=smallest
    )
    made = helper(config, dp_cp_group=Group(ranks))
    return answer(lambda: [size for size, _ in made._get_dynamic_cp_capture_contexts()])


def bound(global_batch: int, longest: int, sub_samples: int = 1, group: int | None = None) -> Any:
    """The most microbatches that a capture on 8 ranks of 16 tokens provides for."""
    config = types.SimpleNamespace(
        sequence_packing_scheduler="default_dynamic_cp",
        dynamic_context_parallel=True,
        max_seqlen_per_dp_cp_rank=16,
        min_dynamic_context_parallel_size=1,
        thd_max_subsamples_per_item=sub_samples,
        virtual_pipeline_model_parallel_size=None if group is None else 2,
        thd_max_packed_sequences=4,
    )
    made = helper(
        config,
        micro_batch_size=1,
        dp_group=Group(8),
        dp_cp_group=Group(8),
        thd_sequence_length_upper_bound=None,
        seq_length=longest,
    )
    ask = made._get_thd_varlen_max_num_microbatches
    return answer(lambda: list(ask(global_batch // 8, group)))


def layer_of(size: int) -> Any:
    """A layer as far as its packed metadata need one, being captured for a CP size."""
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.identity_op import IdentityOp
    from megatron.core.transformer.transformer_layer import TransformerLayer

    layer = object.__new__(TransformerLayer)
    torch.nn.Module.__init__(layer)
    layer.config = TransformerConfig(**SMALL, **PACKED)
    layer.config._cuda_graph_capture_dynamic_cp = (size, f"group of {size}")
    layer.self_attention = torch.nn.Identity()
    layer.mlp = IdentityOp()
    layer.is_moe_layer = False
    return layer


def constants(size: int) -> dict[str, Any]:
    """The static inputs and the constants of a capture for a CP size."""
    layer = layer_of(size)
    inputs = layer.get_layer_static_inputs(64, 1)
    found = {name: list(value.shape) for name, value in inputs.items()}
    found["capacity"] = int(inputs["cu_seqlens_q_padded"].max())
    arguments = {name: value for name, value in inputs.items() if name.startswith("cu_seqlens")}
    layer._reconstruct_packed_seq_params_from_kwargs(arguments)
    packed = arguments["packed_seq_params"]
    return {
        **found,
        "max_seqlen": packed.max_seqlen_q,
        "pad_between_seqs": packed.pad_between_seqs,
        "local_cp_size": packed.local_cp_size,
        "cp_group": packed.cp_group,
    }


def inputs_kept() -> list[str]:
    """What of a microbatch's packed metadata goes into the graph."""
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.transformer.transformer_layer import TransformerLayer

    given = PackedSeqParams(qkv_format="thd", local_cp_size=4, cp_group=Group(4), max_seqlen_q=64)
    arguments: dict[str, Any] = {"packed_seq_params": given}
    TransformerLayer._decompose_packed_seq_params_to_kwargs(arguments)
    return sorted(arguments)


def padded(
    valid: list[int], physical: list[int], target: int, capacity: int, **options: bool
) -> Any:
    """The boundaries of a pack after padding: valid and physical; or the error."""
    from megatron.core import packed_seq_params as module

    boundaries = [torch.tensor(each, dtype=torch.int32) for each in (valid, physical)]
    packed = module.PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=boundaries[0], cu_seqlens_kv=boundaries[0].clone(),
        cu_seqlens_q_padded=boundaries[1], cu_seqlens_kv_padded=boundaries[1].clone(),
        max_seqlen_q=target, max_seqlen_kv=target, local_cp_size=1,
    )  # fmt: skip
    rows = torch.zeros(1, physical[-1], dtype=torch.long)

    def pad() -> list[list[int]]:
        made = module.pad_sequence_for_thd(
            rows, rows, rows, rows, packed, target_len=target, max_num_seqs=capacity, **options
        )
        after = next(one for one in made if isinstance(one, module.PackedSeqParams))
        return [after.cu_seqlens_q.tolist(), after.cu_seqlens_q_padded.tolist()]

    return answer(pad)


def real_sequences(capacity: int) -> Any:
    """How many real sequences the scheduler may put into a pack."""
    from megatron.core.datasets import data_schedule as module

    config = types.SimpleNamespace(
        thd_max_packed_sequences=capacity,
        pad_packed_seq_alignment="max",
        pad_packed_seq_by_appending_dummy_seq=True,
    )
    return answer(lambda: module._get_scheduler_max_real_num_seqs(config))


def fullest(cap: int | None) -> Any:
    """The most sequences that one rank gets of sixteen short ones, under a cap."""
    from megatron.core.datasets.data_schedule import DefaultDynamicCPScheduler

    scheduler = DefaultDynamicCPScheduler(16, 1, 2, 1, max_num_seqs=cap, min_cp_size=1)
    made = list(scheduler.get_groups_and_subsamples([(number, 2) for number in range(16)]))
    return max(len(ids) for microbatch in made for ids in microbatch)


def graphable() -> dict[str, bool]:
    """Whether layers of each kind are captured."""
    from megatron.core.ssm.mamba_layer import MambaLayer
    from megatron.core.transformer import cuda_graphs
    from megatron.core.transformer.transformer_layer import TransformerLayer

    config = types.SimpleNamespace(dynamic_context_parallel=True, cuda_graph_modules=[])
    return {
        kind.__name__: bool(cuda_graphs._layer_is_graphable(object.__new__(kind), config))
        for kind in (TransformerLayer, MambaLayer)
    }


def rope_kept() -> Any:
    """How many of MLA's tables are kept by a capture, and by an eager call."""
    from megatron.core.transformer import cuda_graphs
    from megatron.core.transformer.multi_latent_attention import MLASelfAttention

    attention = object.__new__(MLASelfAttention)
    torch.nn.Module.__init__(attention)
    attention.config = types.SimpleNamespace(cuda_graph_impl="transformer_engine")

    def kept() -> int:
        attention._retain_cuda_graph_rope_tensors(torch.ones(1), None)
        return len(vars(attention).get("_cuda_graph_static_tensor_refs", {}))

    def twice() -> list[int]:
        eager = kept()
        cuda_graphs._set_capture_start()
        try:
            return [eager, kept()]
        finally:
            cuda_graphs._set_capture_end()

    return answer(twice)


def rotary(size: int, longest: int, most: int = 4) -> Any:
    """The length of the rotary table that is captured for a CP size, and the seeded boundaries."""
    config = types.SimpleNamespace(
        max_seqlen_per_dp_cp_rank=16, thd_max_packed_sequences=most, pad_packed_seq_alignment="max"
    )
    made = helper(config, thd_sequence_length_upper_bound=None, seq_length=longest)
    return answer(lambda: list(made._get_thd_capture_rotary_layout(size)))


def replayed() -> dict[str, bool]:
    """Whether a captured layer is replayed in training, and in evaluation."""
    layer = layer_of(1)
    layer.cuda_graphs = [object()]
    return {
        name: bool(layer.train(mode)._should_call_te_cudagraph())
        for name, mode in (("training", True), ("evaluation", False))
    }


def observe(_: None) -> dict[str, Any]:
    """Every observation that one rank can make."""
    found = {
        "graphable": graphable(),
        "replayed": replayed(),
        "kept inputs": inputs_kept(),
        "constants": {str(size): answer(lambda s=size: constants(s)) for size in (1, 2, 4)},
        "padded": padded([0, 5, 9], [0, 8, 16], 32, 4),
        "padded, no tail": padded([0, 5, 9], [0, 16, 32], 32, 4),
        "padded, no dummy": padded([0, 5, 9], [0, 8, 16], 32, 4, pad_by_appending_dummy_seq=False),
        "padded, too many": padded([0, 2, 4, 6], [0, 4, 8, 12], 16, 3),
        "real sequences": {str(n): real_sequences(n) for n in (1, 2, 4)},
        "fullest": {str(cap): fullest(cap) for cap in (None, 3)},
        "rope": rope_kept(),
        "rotary": {str(size): rotary(size, 40) for size in (1, 2, 4)},
        "rotary, one sequence": rotary(4, 40, most=1),
        "bounds": {
            "short": bound(64, 16),
            "longest over all ranks": bound(64, 128),
            "half": bound(64, 64),
            "sub-samples": bound(64, 128, sub_samples=32),
            "virtual stages": bound(24, 128, group=7),
        },
        "configs": configurations(),  # feigns an older engine at its end
    }
    cases = {"8 from 1": (8, 1), "8 from 4": (8, 4), "12": (12, 1), "3": (8, 3), "above": (4, 8)}
    found["sizes"] = {name: sizes(*case) for name, case in cases.items()}  # feigns groups
    return found


def schedule(microbatches: int, chunks: int, group: int) -> list[int]:
    """The order of forwards and backwards of this pipeline stage."""
    from megatron.core.pipeline_parallel import schedules
    from megatron.core.transformer.cuda_graphs import convert_schedule_table_to_order

    _, _, warmup, _ = schedules.get_pp_rank_microbatches(microbatches, chunks, group, False)
    table = schedules.get_schedule_table(microbatches, chunks, group)
    return list(convert_schedule_table_to_order(warmup, chunks, table))


def stages(_: None) -> dict[str, Any]:
    """Slots and colours of four pipeline stages, one model chunk and two."""
    from megatron.core.transformer.cuda_graphs import TECudaGraphHelper

    found: dict[str, Any] = {}
    for chunks, counts in ((1, range(1, 17)), (2, range(4, 17, 4))):
        virtual = {"virtual_pipeline_model_parallel_size": 2} if chunks > 1 else {}
        with layout(pipeline_model_parallel_size=4, **virtual):
            orders = tuple(tuple(schedule(count, chunks, 4)) for count in counts)
            found[str(chunks)] = colours(TECudaGraphHelper, orders, chunks)
        dist.barrier()
    found["lock-step"] = TECudaGraphHelper._build_slot_aliased_variant_order(
        [1, 1, -1, -1], 3, 1, canonical_variant=2
    )
    found["router"] = through_the_parent()
    dist.barrier()  # the first rank serves the store: it must not end before the others
    return found


def colours(helper_class: Any, orders: Any, chunks: int) -> dict[str, Any]:
    """Slots of this stage, and arenas and gradients for the largest number of all stages."""
    needed = helper_class._get_required_num_microbatch_slots_from_order
    saved = helper_class._build_saved_tensor_liveness_colors
    sent = helper_class._build_user_grad_liveness_colors
    slots = max(needed(order, chunks) for order in orders)
    gathered = [0] * dist.get_world_size()
    dist.all_gather_object(gathered, slots)
    colors, conflicts = saved(orders, max(gathered), [2] * chunks, return_conflicts=True)
    return {
        "slots": slots,
        "frames": len(colors),
        "arenas": len(set(colors.values())),
        "shared while live": sum(
            colors[one] == colors[other] for one in conflicts for other in conflicts[one]
        ),
        "one slot too few": said(lambda: saved(orders, slots - 1, [2] * chunks)),
        "gradients": len(set(sent(orders, max(gathered), chunks).values())),
    }


def through_the_parent() -> dict[str, Any]:
    """A router's sum over a pair of ranks, which PR 6479 takes over all four."""
    from megatron.core.tensor_parallel.mappings import reduce_from_dynamic_cp_subgroup

    rank, world = dist.get_rank(), dist.new_group([0, 1, 2, 3])
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    crossed = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    value = torch.tensor([float(10**rank)], requires_grad=True)
    total = reduce_from_dynamic_cp_subgroup(value, pairs[rank // 2], world)
    total.sum().backward()
    return {
        "total": total.item(),
        "gradient": value.grad.item() if value.grad is not None else None,
        "crossed": said(
            lambda: reduce_from_dynamic_cp_subgroup(value.detach(), crossed[rank % 2], world)
        ),
    }


def engine(_: None) -> dict[str, str]:
    """What Transformer Engine says to a capture with memory slots, and to changes of it."""
    from transformer_engine.pytorch import make_graphed_callables

    slot = (0, 0, 0, 0, 0, 0, 0)
    good: dict[str, Any] = {
        "_order": [1, -1],
        "_num_layers_per_chunk": [1],
        "_reuse_graph_input_output_buffers": True,
        "_graph_memory_slots": (slot,),
    }

    def capture(module: Any = None, **changes: Any) -> str:
        module = torch.nn.Linear(4, 4) if module is None else module
        sample = ((torch.ones(2, 4, requires_grad=True),),)
        return said(lambda: make_graphed_callables((module,), sample, **{**good, **changes}))

    hooked = torch.nn.Linear(4, 4)
    hooked.register_forward_hook(lambda *_: None)
    found = {
        "slots": capture(),
        "a pool": capture(pool=torch.cuda.graph_pool_handle()),
        "no order": capture(_order=None, _reuse_graph_input_output_buffers=False),
        "no reuse": capture(_reuse_graph_input_output_buffers=False),
        "evaluation": capture(torch.nn.Linear(4, 4).eval()),
        "two slots for one": capture(_graph_memory_slots=(slot, slot)),
        "six numbers": capture(_graph_memory_slots=(slot[:6],)),
        "hooks": capture(hooked),
        "sparse output": capture(_Sparse()),
    }
    vars(torch.cuda.memory)["get_allocator_backend"] = lambda: "cudaMallocAsync"
    return {**found, **copied(), "another allocator": capture()}


def hooked(wrapped: bool) -> str:
    """What the capture says of a layer with a hook, passed itself or as 6479 passes its layers."""
    from megatron.core.transformer import cuda_graphs
    from transformer_engine.pytorch import make_graphed_callables

    layer: torch.nn.Module = torch.nn.Linear(4, 4)
    layer.register_forward_hook(lambda *_: None)
    if wrapped:
        layer = cuda_graphs._DynamicCPCaptureCallable(layer, lambda _: None, None)
    return said(
        lambda: make_graphed_callables((layer,), ((torch.ones(2, 4, requires_grad=True),),))
    )


def copied() -> dict[str, str]:
    """What a replay of two rows makes of one row, and of three."""
    from transformer_engine.pytorch import make_graphed_callables

    graphed = make_graphed_callables(torch.nn.Linear(4, 4), (torch.ones(2, 4, requires_grad=True),))
    one = torch.full((1, 4), 7.0)
    return {
        "one row": str([list(graphed(one).shape), bool(graphed(one)[0].equal(graphed(one)[1]))]),
        "three rows": said(lambda: graphed(torch.ones(3, 4))),
    }


class _Sparse(torch.nn.Module):
    """A module whose result is not a strided tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return (rows * self.weight).to_sparse()
