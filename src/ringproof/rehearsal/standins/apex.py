"""The stand-in of Apex's compiled weight gradient, which Megatron's own linear layers call."""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor

from ringproof.rehearsal.standins.guard import GuardedModule

NAME = "fused_weight_gradient_mlp_cuda"


def _accumulate(rows: Tensor, gradient: Tensor, main: Tensor) -> None:
    """Add a linear layer's weight gradient to ``main``, in place."""
    rows = rows.reshape(-1, rows.shape[-1]).to(main.dtype)
    main.addmm_(gradient.reshape(-1, gradient.shape[-1]).to(main.dtype).t(), rows)


def install() -> None:
    """Let Megatron import the extension."""
    module: Any = GuardedModule(NAME)
    module.wgrad_gemm_accum_fp32 = _accumulate
    module.wgrad_gemm_accum_fp16 = _accumulate
    sys.modules[NAME] = module
