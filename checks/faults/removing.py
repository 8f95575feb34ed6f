"""Removes one stand-in from a rank; ``checks.faults.removing:SYMBOL`` is the fault.

A symbol of ``transformer_engine_torch`` is deleted, so that the extension's own guard answers; one
of ``torch.cuda`` or ``torch.distributed`` becomes what functions without a stand-in are.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module

from checks.faults.planting import swap
from ringproof.rehearsal.standins.guard import missing, replace_everywhere

EXTENSION = "transformer_engine_torch"

# Stand-ins that are removed one by one, by the training that calls each.
REMOVED = tuple(
    (training, tuple(f"{module}.{name}" for name in names.split()))
    for training, module, names in (
        ("one", EXTENSION, "generic_gemm rmsnorm_fwd rmsnorm_bwd multi_tensor_adam "
         "multi_tensor_l2norm multi_tensor_scale_tensor fused_rope_forward fused_rope_backward "
         "get_fused_attn_backend fused_attn_fwd fused_attn_bwd"),
        ("one", "torch.cuda", "current_device set_device synchronize get_device_capability "
         "manual_seed get_rng_state max_memory_allocated memory_allocated device_count "
         "get_device_properties"),
        ("one", "torch.distributed", "init_process_group new_group barrier all_reduce broadcast"),
        ("layernorm", EXTENSION, "layernorm_fwd layernorm_bwd"),
        ("moe", EXTENSION, "te_general_grouped_gemm"),
        ("cp2", "torch.cuda", "Stream stream current_stream"),
        ("cp2", "torch.distributed", "isend irecv batch_isend_irecv"),
        ("hierarchical", "torch.distributed", "all_to_all_single"),
        ("dynamic-2", EXTENSION, "thd_get_partitioned_indices thd_read_half_tensor "
         "thd_out_correction thd_second_half_lse_correction thd_read_second_half_lse "
         "thd_grad_correction"),
        ("dynamic-2", "torch.distributed", "all_gather_into_tensor"),
        ("dynamic-tp", "torch.distributed", "reduce_scatter_tensor"),
    )
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
