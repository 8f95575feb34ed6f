"""Small uses of Transformer Engine's own layers in every rank, for tests that plant defects."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

STEPS, LENGTH, HEADS, WIDTH = 3, 32, 4, 8


def train(comm: str) -> dict[str, Any]:
    """Losses and gradient norms of ``STEPS`` steps of plain gradient descent, in float64.

    Args:
        comm: CP type; ``none`` trains without CP on all rows.
    """
    from transformer_engine.pytorch import DotProductAttention

    world = dist.get_world_size()
    attention = DotProductAttention(
        HEADS, WIDTH, qkv_format="sbhd", attn_mask_type="causal", attention_dropout=0.0,
        layer_number=1,
    )  # fmt: skip
    if comm != "none":
        ranks = list(range(world))
        attention.set_context_parallel_group(dist.group.WORLD, ranks, torch.cuda.Stream(), comm)
    rows = torch.arange(LENGTH) if comm == "none" else _zigzag(dist.get_rank(), world)
    generator = torch.Generator().manual_seed(3)
    size = HEADS * WIDTH
    weights = torch.randn(4, size, size, dtype=torch.float64, generator=generator) * size**-0.5
    weights.requires_grad_()
    tokens, target = torch.randn(2, LENGTH, 1, size, dtype=torch.float64, generator=generator)
    losses, norms = [], []
    for _ in range(STEPS):
        inputs = tokens[rows]
        q, k, v = ((inputs @ weight).reshape(-1, 1, HEADS, WIDTH) for weight in weights[:3])
        out = attention(q, k, v) @ weights[3]
        loss = (out - target[rows]).square().sum() / LENGTH
        (gradient,) = torch.autograd.grad(loss, weights)
        total = loss.detach()
        if comm != "none":
            dist.all_reduce(gradient)
            dist.all_reduce(total)
        losses.append(float(total))
        norms.append(float(gradient.norm()))
        with torch.no_grad():
            weights -= 0.05 * gradient
    return {"losses": losses, "norms": norms}


def _zigzag(rank: int, world: int) -> torch.Tensor:
    size = LENGTH // (2 * world)
    chunks = (rank, 2 * world - 1 - rank)
    return torch.cat([torch.arange(chunk * size, (chunk + 1) * size) for chunk in chunks])


def layers(_: Any) -> None:
    """A step through layers, norms, RoPE, attention and the optimizer of Transformer Engine."""
    from transformer_engine.pytorch import DotProductAttention, LayerNormLinear, Linear
    from transformer_engine.pytorch.attention.rope import apply_rotary_pos_emb
    from transformer_engine.pytorch.optimizers import FusedAdam

    size = HEADS * WIDTH
    kind = {"device": "cuda", "params_dtype": torch.bfloat16}
    first = LayerNormLinear(size, size, bias=False, normalization="RMSNorm", **kind)
    second = LayerNormLinear(size, size, bias=True, normalization="LayerNorm", **kind)
    last = Linear(size, size, **kind)
    attention = DotProductAttention(HEADS, WIDTH, attention_dropout=0.0, layer_number=1)
    rows = torch.randn(16, 1, size, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    heads = second(first(rows)).reshape(16, 1, HEADS, WIDTH)
    angles = torch.randn(16, 1, 1, WIDTH)
    turned = apply_rotary_pos_emb(heads, angles, tensor_format="sbhd", fused=True)
    last(attention(turned, turned, heads)).sum().backward()
    parameters = [p for layer in (first, second, last) for p in layer.parameters()]
    FusedAdam(parameters, lr=0.1).step()
    torch.cuda.synchronize()
    dist.barrier()
    dist.all_reduce(torch.ones(1))


def kernels_refuse(_: Any) -> dict[str, str]:
    """Ask stand-ins of kernels for what they do not compute; return what was raised."""
    asked = {**_gemms(), **_attentions(), **_compilers()}
    return {name: _raised(call) for name, call in asked.items()}


def _raised(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as raised:
        return f"{type(raised).__name__}: {raised}"
    return "nothing"


def _gemms() -> dict[str, Callable[[], object]]:
    import transformer_engine_torch as tex

    one = torch.ones(4, 4)

    def gemm(*, dtype: Any = None, gelu: bool = False, **more: Any) -> object:
        return tex.generic_gemm(
            one, True, one, False, None, None, dtype, None, None, gelu, None, False, None, 0,
            False, False, **more,
        )  # fmt: skip

    return {
        "gemm": gemm,
        "gemm gelu": lambda: gemm(gelu=True),
        "gemm FP8 result": lambda: gemm(dtype=tex.DType.kFloat8E4M3),
        "gemm beta": lambda: gemm(beta=0.5),
        "gemm bulk overlap": lambda: gemm(bulk_overlap=True),
        "gemm extra output": lambda: gemm(extra_output=one),
        "swiglu limit": lambda: tex.swiglu(one, None, 7.0),
        "rope margin": lambda: tex.fused_rope_forward(one, one, None, None, False, None, 1, 0, 2),
        "unknown kernel": lambda: tex.flash_mla_fwd(one),
        "unknown class": lambda: tex.FP8TensorMeta(),
    }


def _attentions() -> dict[str, Callable[[], object]]:
    fused = importlib.import_module("transformer_engine.pytorch.cpp_extensions.fused_attn")
    import transformer_engine_torch as tex

    x = torch.randn(8, 1, 2, 4)
    bounds = torch.tensor([0, 8], dtype=torch.int32)

    def attend(**named: Any) -> object:
        named = {"qkv_layout": "sbhd_sbhd_sbhd", "attn_mask_type": "causal"} | named
        longest = named.pop("longest", 8)
        backend = tex.NVTE_Fused_Attn_Backend.NVTE_F16_arbitrary_seqlen
        return fused.fused_attn_fwd(
            True, longest, longest, bounds, bounds, x, x, x, x.dtype, backend, **named
        )

    return {
        "attention": attend,
        "attention arbitrary mask": lambda: attend(attn_mask_type="arbitrary"),
        "attention bias": lambda: attend(attn_bias=torch.ones(1, 2, 8, 8)),
        "attention softmax": lambda: attend(softmax_type="learnable"),
        "attention offset": lambda: attend(softmax_offset=torch.ones(2)),
        "attention dropout": lambda: attend(dropout=0.1),
        "attention output format": lambda: attend(o_format="bshd"),
        "attention paged": lambda: attend(page_table_k=bounds),
        "attention too long": lambda: attend(attn_mask_type="padding", longest=4),
        "attention new argument": lambda: attend(sink_tokens=4),
    }


def _compilers() -> dict[str, Callable[[], object]]:
    import triton

    kernel = triton.jit(_kernels_refuse_body)
    return {
        "launch": lambda: kernel[(1,)](torch.ones(1)),
        "compiled call": lambda: triton.language.sum(torch.ones(1)),
    }


def _kernels_refuse_body() -> None:
    """Nothing; a kernel's body."""


def changed_signature(_: Any) -> str:
    """Bind a stand-in to an upstream function that has lost a parameter; return what is raised."""
    from ringproof.rehearsal.standins import attention

    def fused_attn_fwd(q: torch.Tensor, k: torch.Tensor) -> None:
        """Upstream's function of another release."""

    x = torch.ones(1)
    call = attention.bound(fused_attn_fwd, attention.fused_attn_fwd)
    return _raised(lambda: call(x, x, x))


def raised_anew(_: Any) -> list[str]:
    """Make an error of a guard anew from its text, as Megatron's module builder does."""
    from ringproof.rehearsal.standins.guard import StandInMissing

    error = StandInMissing("torch.cuda.Stream", "a.py:3")
    again = type(error)(f"{error} when instantiating Layer")
    return [again.symbol, again.place, str(again)]


def destroyed_groups(_: Any) -> dict[str, bool]:
    """Initialise hierarchical CP, destroy it, initialise without: what is still there."""
    from megatron.core import parallel_state

    parallel_state.initialize_model_parallel(
        context_parallel_size=4, hierarchical_context_parallel_sizes=[2, 2]
    )
    parallel_state.destroy_model_parallel()
    kept = parallel_state.get_context_parallel_group(check_initialized=False)
    parallel_state.initialize_model_parallel()
    try:
        levels = parallel_state.get_hierarchical_context_parallel_groups()
    except AssertionError:
        levels = []
    return {"after": len(levels) == 2, "plain_group_kept": kept is not None}


def recorded_by_autograd(_: Any) -> dict[str, bool]:
    """Call kernels outside of the backward pass; return what autograd recorded of their results."""
    tex: Any = importlib.import_module("transformer_engine_torch")
    apex: Any = importlib.import_module("fused_weight_gradient_mlp_cuda")
    weight = torch.ones(4, 4, requires_grad=True)
    rows, main = torch.ones(2, 4, requires_grad=True) * 2, torch.zeros(4, 4)
    apex.wgrad_gemm_accum_fp32(rows, rows, main)
    norm = tex.rmsnorm_fwd(rows, weight[0], 1e-5, None, None, tex.DType.kFloat32, 0, False)[0]
    stream = torch.cuda.stream(torch.cuda.Stream())
    for _again in range(2):  # torch's own can be entered again
        with stream:
            rows = rows + 1
    made = {"weight gradient": main, "norm": norm, "outside of a kernel": rows}
    return {name: tensor.requires_grad for name, tensor in made.items()}
