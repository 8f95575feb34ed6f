"""The stand-in of ``transformer_engine_torch``, Transformer Engine's compiled extension."""

from __future__ import annotations

import contextlib
import enum
import importlib
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ringproof.rehearsal.standins import kernels, packed
from ringproof.rehearsal.standins.guard import StandInModule, missing, noted, provide

NAME = "transformer_engine_torch"
APEX = "fused_weight_gradient_mlp_cuda"
LEGACY_KERNELS = "megatron.legacy.fused_kernels"

# Members that upstream's Python compares with its own enumerations; source: pybind_helper.h and
# pybind.cpp. Enumerations that are not listed hand out any member that is asked for.
DTYPES = ("kByte", "kInt16", "kInt32", "kInt64", "kFloat32", "kFloat16", "kBFloat16", "kFloat8E4M3",
          "kFloat8E5M2", "kFloat8E8M0", "kFloat4E2M1")  # fmt: skip
HIDDEN_DTYPES = ("kInt16", "kInt64", "kFloat8E8M0")
FUSED_BACKENDS = types.MappingProxyType(
    {"NVTE_No_Backend": -1, "NVTE_F16_arbitrary_seqlen": 1, "NVTE_FP8": 2}
)
SHORT_BACKEND = "NVTE_F16_max512_seqlen"  # 0, until releases after 2.15 dropped it
FUNCTIONS = (
    "generic_gemm", "te_general_grouped_gemm", "layernorm_fwd", "layernorm_bwd", "rmsnorm_fwd",
    "rmsnorm_bwd", "rmsnorm_bwd_add", "swiglu", "dswiglu", "multi_tensor_scale",
    "multi_tensor_scale_tensor", "multi_tensor_l2norm", "multi_tensor_adam",
    "multi_tensor_adam_param_remainder",
    "fused_rope_forward", "fused_rope_backward",
)  # fmt: skip


class _Handing(type):
    """The type of an enumeration that hands out a member for every name; nothing is constructed."""

    def __call__(cls, *_: object, **__: object) -> Any:
        missing(f"{NAME}.{cls.__name__}")()

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        member = type.__call__(cls, name, len(cls.__members__))
        cls.__members__[name] = member
        return member


def _open_enum(name: str) -> type:
    """Make an enumeration like pybind's whose members appear when they are first named.

    Classes that upstream only names in annotations are such enumerations, too.
    """

    class Member(metaclass=_Handing):
        __members__: dict[str, Any]

        def __init__(self, name: str = "", value: int = 0) -> None:
            self.name, self.value = name, value

        def __int__(self) -> int:
            return self.value

        def __index__(self) -> int:
            return self.value

        def __repr__(self) -> str:
            return f"{type(self).__name__}.{self.name}"

    Member.__members__ = {}
    Member.__name__ = Member.__qualname__ = name
    return Member


def _unknown(symbol: str) -> Any:
    """Return a class for a name of the extension in capitals, and a guard for any other."""
    name = symbol.rpartition(".")[2]
    return _open_enum(name) if name[:1].isupper() else missing(symbol)


Wrap = Callable[[str, Callable[..., Any]], Callable[..., Any]]
"""What a kernel's stand-in is put behind, by its symbol."""


def build(*, has_short_backend: bool, wrap: Wrap) -> StandInModule:
    """Make the module.

    Args:
        has_short_backend: Whether upstream's Python names the backend for up to 512 tokens.
    """
    backends = dict(FUSED_BACKENDS) | ({SHORT_BACKEND: 0} if has_short_backend else {})
    module: Any = StandInModule(NAME, _unknown)
    # Upstream's Python counts the members of these two when it is imported.
    closed: Any = enum.IntEnum  # mypy would ask for members that are written out
    dtypes = {name: number for number, name in enumerate(DTYPES) if name not in HIDDEN_DTYPES}
    module.DType = closed("DType", dtypes)
    module.NVTE_Fused_Attn_Backend = closed("NVTE_Fused_Attn_Backend", backends)
    unrecorded = torch.no_grad()  # autograd does not look into a kernel
    for name in FUNCTIONS:
        setattr(module, name, wrap(f"{NAME}.{name}", unrecorded(getattr(kernels, name))))
    for name in vars(packed):
        if name.startswith(("thd_", "convert_")):
            setattr(module, name, wrap(f"{NAME}.{name}", getattr(packed, name)))
    module.get_fused_attn_backend = _fused_backend
    # The version of CUDA 12.9.
    module.get_cublasLt_version = lambda: 120900
    module.get_cudnn_version = lambda: 92000
    module.get_num_cublas_streams = lambda: 1
    # As on a machine whose GPUs cannot multicast: user buffers are not offered.
    module.device_supports_multicast = lambda *_: False
    module._graph_checkpoint_detach_storage = lambda *_: None
    module.ubuf_built_with_mpi = lambda: False
    return module


def _fused_backend(*arguments: Any) -> Any:
    """Choose cuDNN's kernel for any length.

    From 2.20 on upstream gives one argument and takes a pair.
    """
    backend = FUSED_BACKENDS["NVTE_F16_arbitrary_seqlen"]
    return (backend, "") if len(arguments) == 1 else backend


def install_apex(used: set[str], wrap: Wrap = lambda _, function: function) -> None:
    """Let Megatron import Apex's compiled weight gradient, which its own linear layers call.

    Args:
        used: Gets ``apex`` when it is called.
        wrap: Put around the stand-in.
    """
    accumulate = wrap(APEX, noted(_accumulate, used, "apex"))
    provide(APEX, wgrad_gemm_accum_fp32=accumulate, wgrad_gemm_accum_fp16=accumulate)


def leave_out_fused_kernels() -> None:
    """Let the program of 0.16 start without a compiler for CUDA.

    It builds the softmax kernels of Megatron's own attention, which take bfloat16 and float16. A
    call of one of them still fails where upstream imports it.
    """
    with contextlib.suppress(ModuleNotFoundError):
        legacy: Any = importlib.import_module(LEGACY_KERNELS)
        legacy.load = lambda _: None


@torch.no_grad()  # as a kernel: upstream also calls it outside of the backward pass
def _accumulate(rows: Tensor, gradient: Tensor, main: Tensor) -> None:
    """Add a linear layer's weight gradient to ``main``, in place."""
    rows = rows.reshape(-1, rows.shape[-1]).to(main.dtype)
    main.addmm_(gradient.reshape(-1, gradient.shape[-1]).to(main.dtype).t(), rows)
