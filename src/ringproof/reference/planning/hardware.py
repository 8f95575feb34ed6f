"""The speed of a machine: operations, bytes and messages per second.

Peaks and links are those of NVIDIA's datasheets: dense bf16 (half of what is printed with
sparsity), links in one direction (half of what is printed for both), one network card per GPU.

    preset  bf16 dense   NVLink, one way   network per GPU         datasheet
    a100    312e12       300e9             200 Gb/s (HDR)          A100 80GB SXM; DGX A100
    h100    989.4e12     450e9             400 Gb/s (NDR)          H100 SXM; DGX H100
    h200    989.4e12     450e9             400 Gb/s                H200 SXM; DGX H200
    b200    2250e12      900e9             400 Gb/s                DGX B200 (eight GPUs)
    gb200   2500e12      900e9             400 Gb/s                GB200 NVL72 (180e15 / 72)

Shares of the peak are estimates. A machine of one's own is a JSON file (``--hardware FILE``):

* Attention on Hopper: FlashAttention-3 (arXiv 2407.08608), figures 5 and 6, head dimension 128.
  Forward, causal: 292, 423, 521, 579, 602, 616 TFLOP/s at 512, 1k, ... 16k rows; backward: 316,
  424, 501, 542, 559, 561. Weighted 1 to 2.5 like their operations, ``peak * share * rows / (rows +
  half)`` follows both within 8% with a share of 0.59 and 410 rows.
* Attention on A100: FlashAttention-2 (arXiv 2307.08691) reports 50% to 73% of the peak; 0.6, and
  Hopper's 410 rows. On Blackwell FlashAttention-4 reports 71% at best, forward; 0.55, and twice
  the rows, as a chip twice as fast needs twice the work to be as busy.
* Everything else (``linear_share``): what remains of a training step's 40% to 60% of the peak that
  is usually published, attention aside. Latencies and launches: tens of microseconds per message
  with its kernels; a few hundred per layer, forward and backward, where nothing hides them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import BeforeValidator, Field, StrictStr
from pydantic.dataclasses import dataclass

from ringproof.reference.planning.forms import CLOSED

GIGABIT_BYTES = 1e9 / 8
# Finite numbers near a float's end would turn sums of times into infinity.
_Rate = Annotated[float, Field(ge=1e-30, le=1e30, strict=True)]
_Share = Annotated[float, Field(ge=1e-30, le=1, strict=True)]
_OrZero = Annotated[float, Field(ge=0, le=1e30, strict=True)]


def _whole(value: object) -> object:
    """A whole number may be written as 8.0 in JSON."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class Hardware:
    """A GPU and its links.

    Attributes:
        name: Name for messages.
        peak_flops_per_second: Dense bf16.
        attention_share: Part of the peak that attention reaches on long rows, both passes.
        attention_half_rows: Rows per call at which attention reaches half of that.
        linear_share: Part of the peak that everything else reaches.
        intra_bytes_per_second: Per GPU and direction, to GPUs of the same node.
        inter_bytes_per_second: Per GPU and direction, to other nodes.
        intra_latency_seconds, inter_latency_seconds: Per message, its kernels included.
        gpus_per_node: How many GPUs the fast links join: the NVLink domain.
        layer_launch_seconds: What a layer costs per microbatch, forward and backward, whatever
            is in it.

    Raises:
        pydantic.ValidationError: A value that is not a number above 0, or too far from 1 to compute
            with, or a share above 1.
    """

    name: StrictStr
    peak_flops_per_second: _Rate
    attention_share: _Share
    attention_half_rows: _OrZero
    linear_share: _Share
    intra_bytes_per_second: _Rate
    inter_bytes_per_second: _Rate
    intra_latency_seconds: _OrZero
    inter_latency_seconds: _OrZero
    gpus_per_node: Annotated[int, Field(ge=1, le=10**9, strict=True), BeforeValidator(_whole)]
    layer_launch_seconds: _OrZero


H100 = Hardware(
    name="h100",
    peak_flops_per_second=989.4e12,
    attention_share=0.59,
    attention_half_rows=410,
    linear_share=0.6,
    intra_bytes_per_second=450e9,
    inter_bytes_per_second=400 * GIGABIT_BYTES,
    intra_latency_seconds=20e-6,
    inter_latency_seconds=30e-6,
    gpus_per_node=8,
    layer_launch_seconds=300e-6,
)
A100 = replace(
    H100,
    name="a100",
    peak_flops_per_second=312e12,
    attention_share=0.6,
    linear_share=0.65,
    intra_bytes_per_second=300e9,
    inter_bytes_per_second=200 * GIGABIT_BYTES,
)
H200 = replace(H100, name="h200")
B200 = replace(
    H100,
    name="b200",
    peak_flops_per_second=2250e12,
    attention_share=0.55,
    attention_half_rows=820,
    linear_share=0.55,
    intra_bytes_per_second=900e9,
)
# 64 of the 72 GPUs of a domain: jobs take a power of two, and leave the rest of the rack out.
GB200 = replace(B200, name="gb200", peak_flops_per_second=2500e12, gpus_per_node=64)
PRESETS = (A100, H100, H200, B200, GB200)
