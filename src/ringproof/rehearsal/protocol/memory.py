"""What a rank reports of its memory at full size: plain data, the same as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ringproof.rehearsal.protocol.traffic import GroupTraffic

KINDS = (
    "parameters", "gradients", "optimizer", "activations", "communication", "buffers",
    "temporaries",
)  # fmt: skip
"""What memory holds, in the order of a table.

``activations`` were made in the forward pass and dropped in the backward pass; ``communication`` is
what collectives and receives wrote into and the backward pass does not keep; ``buffers`` live on
after the step and are none of the others.
"""


@dataclass(frozen=True)
class HeldTensors:
    """Tensors of one shape from one place that were alive at the peak.

    Attributes:
        bytes: Of all of them.
        place: ``FILE:LINE`` upstream that made them.
        module: Innermost module whose forward ran then; empty outside of any.
    """

    bytes: int
    count: int
    kind: str
    shape: tuple[int, ...]
    dtype: str
    place: str
    module: str


@dataclass(frozen=True)
class StepMemory:
    """One training step.

    Attributes:
        before: Bytes when it began.
        peak: Highest number of bytes during it.
        after: Bytes when it ended.
    """

    before: int
    peak: int
    after: int
    seconds: float


@dataclass(frozen=True)
class MemoryReport:
    """The memory that a rank would take on its GPU, as ``torch.cuda.memory_allocated`` counts.

    Attributes:
        peak: Highest number of bytes during the run; without what CUDA's libraries allocate.
        steady: Bytes after the last step.
        at_peak: Bytes at the peak by kind (`KINDS`).
        at_rest: Bytes after the last step by kind.
        place: ``FILE:LINE`` upstream whose tensor made the peak.
        module: Innermost module whose forward ran then.
        phase: What upstream did then: ``setup``, ``forward``, ``backward``, ``optimizer`` or
            ``between``.
        highest: Highest bytes whenever a phase and place, with a space between, made more.
        logged: Bytes allocated and highest so far when upstream logged each step.
        timeline: Bytes by kind at some moments of the last step, in order.
        sent: What the rank sent or contributed in the last step.
        flops: Floating-point operations of matrix products and attention in the last step.
        invented: How often upstream read a number that nothing computed, by what and where.
    """

    peak: int = 0
    steady: int = 0
    at_peak: Mapping[str, int] = field(default_factory=dict)
    at_rest: Mapping[str, int] = field(default_factory=dict)
    place: str = ""
    module: str = ""
    phase: str = ""
    highest: Mapping[str, int] = field(default_factory=dict)
    largest: tuple[HeldTensors, ...] = ()
    steps: tuple[StepMemory, ...] = ()
    logged: tuple[tuple[int, int], ...] = ()
    timeline: tuple[Mapping[str, int], ...] = ()
    sent: tuple[GroupTraffic, ...] = ()
    flops: int = 0
    invented: Mapping[str, int] = field(default_factory=dict)
