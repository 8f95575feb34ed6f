"""Removes one stand-in from a rank; ``ringproof.rehearsal.faults.removing:SYMBOL`` is the fault.

A symbol of ``transformer_engine_torch`` is deleted, so that the extension's own guard answers; one
of ``torch.cuda`` or ``torch.distributed`` becomes what functions without a stand-in are.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module

from ringproof.rehearsal.faults.planting import swap
from ringproof.rehearsal.standins.guard import missing, replace_everywhere

EXTENSION = "transformer_engine_torch"

# Stand-ins that are removed one by one, by the training that calls each.
REMOVED = (
    ("one", (
        "transformer_engine_torch.generic_gemm", "transformer_engine_torch.rmsnorm_fwd",
        "transformer_engine_torch.rmsnorm_bwd", "transformer_engine_torch.multi_tensor_adam",
        "transformer_engine_torch.multi_tensor_l2norm",
        "transformer_engine_torch.multi_tensor_scale_tensor",
        "transformer_engine_torch.fused_rope_forward",
        "transformer_engine_torch.fused_rope_backward",
        "transformer_engine_torch.get_fused_attn_backend",
        "transformer_engine_torch.fused_attn_fwd", "transformer_engine_torch.fused_attn_bwd",
        "torch.cuda.current_device", "torch.cuda.set_device", "torch.cuda.synchronize",
        "torch.cuda.get_device_capability", "torch.cuda.manual_seed", "torch.cuda.get_rng_state",
        "torch.cuda.max_memory_allocated", "torch.cuda.memory_allocated",
        "torch.cuda.device_count", "torch.cuda.get_device_properties",
        "torch.distributed.init_process_group", "torch.distributed.new_group",
        "torch.distributed.barrier", "torch.distributed.all_reduce",
        "torch.distributed.broadcast",
    )),
    ("layernorm", (
        "transformer_engine_torch.layernorm_fwd", "transformer_engine_torch.layernorm_bwd",
    )),
    ("moe", ("transformer_engine_torch.te_general_grouped_gemm",)),
    ("cp2", (
        "torch.cuda.Stream", "torch.cuda.stream", "torch.cuda.current_stream",
        "torch.distributed.isend", "torch.distributed.irecv",
        "torch.distributed.batch_isend_irecv",
    )),
    ("hierarchical", ("torch.distributed.all_to_all_single",)),
    ("dynamic-2", (
        "transformer_engine_torch.thd_get_partitioned_indices",
        "transformer_engine_torch.thd_read_half_tensor",
        "transformer_engine_torch.thd_out_correction",
        "transformer_engine_torch.thd_second_half_lse_correction",
        "transformer_engine_torch.thd_read_second_half_lse",
        "transformer_engine_torch.thd_grad_correction",
        "torch.distributed.all_gather_into_tensor",
    )),
    ("dynamic-tp", ("torch.distributed.reduce_scatter_tensor",)),
)  # fmt: skip


def __getattr__(name: str) -> Callable[[], None]:
    """Return the function that removes a symbol."""
    if "." not in name:
        raise AttributeError(name)
    return partial(remove, name)


def remove(symbol: str) -> None:
    """Remove a stand-in.

    Raises:
        AttributeError: There is no stand-in of that name.
    """
    module_name, _, name = symbol.rpartition(".")
    if name in ("fused_attn_fwd", "fused_attn_bwd"):
        # Upstream's own Python calls the extension's kernel, which has no stand-in.
        swap(f"transformer_engine.pytorch.cpp_extensions.fused_attn:{name}", inspect.unwrap)
        return
    module = sys.modules[EXTENSION] if module_name == EXTENSION else import_module(module_name)
    stand_in = vars(module)[name]
    if module_name == EXTENSION:
        delattr(module, name)
    packages = ("megatron", "transformer_engine", "torch")
    replace_everywhere({stand_in: missing(symbol)}, packages.__contains__)
