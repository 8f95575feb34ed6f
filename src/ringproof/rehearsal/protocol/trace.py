"""What a traced run writes on each rank: what crossed the borders of modules, plain data.

A rank writes ``trace-N.json``, a `RankTrace`, and ``trace-N.bin``, the values of its tensors one
after the other. The first rank writes `HEAD`, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

AFTER = -2
"""In the place of where a rank's part of a parameter begins: after those of the ranks before it."""
LOCAL, REDUCED, WEIGHT = "local", "reduced", "weight"
HEAD, FORMAT = "trace.json", 3
MOST_BYTES = 2_000_000_000
"""Bytes on disk of the traces of runs that are compared with each other."""
LOSS, LOSS_CALLER, SCALING = "(loss)", "(loss caller)", "(scaling)"
"""Names, among those of modules, of the functions that can scale all gradients before `GRADIENTS`:
the launch's loss function, its caller, and what data parallelism does before it sums."""
GRADIENTS = "(gradients)"
"""Name, among those of modules, of the function that reduces the gradients of parameters."""
APPLIED = "::"
"""Between a module and a function of autograd that its code applies, in the name of a call of
which only tensors with gradients are recorded."""

EXPERT = re.compile(r"(\.experts\.(?:local_experts\.|linear_fc\d\.(?:weight|bias)))(\d+)")
"""The number of an expert in the name of its parameter, in the whole model in a trace."""


@dataclass(frozen=True)
class TraceRequest:
    """What is recorded of a run.

    Attributes:
        steps: Training steps, from 1, that are recorded; -1 is the first evaluation.
        disturbed: Whether each weight is moved by one unit in the last place before training.
        most_bytes: A rank stops to record before its files take more.
        name: What people call the program.
        layers: Number of decoder layers whose inside is recorded, from the first to the last at
            equal distances; 0 for all. Of the others only the borders are.
        rows: A tensor of more rows is thinned to at most so many, at equal distances; 0 for none.
    """

    steps: tuple[int, ...]
    disturbed: bool = False
    most_bytes: int = 256 << 20
    name: str = ""
    layers: int = 0
    rows: int = 0


SMOKE = TraceRequest((1, 2), most_bytes=40_000_000, layers=4, rows=512)
"""What is recorded of a smoke run: eight ranks write less than 1 GB in its three programs."""


@dataclass(frozen=True)
class TraceHead:
    """What the first rank writes of a run, as `HEAD`.

    Attributes:
        name: The program, for people.
        ranks: Number of ranks.
        steps: Training steps that were recorded.
        disturbed: Whether its weights were moved by one unit in the last place.
    """

    name: str
    ranks: int
    steps: tuple[int, ...]
    disturbed: bool
    format: int = FORMAT


@dataclass(frozen=True)
class Place:
    """Where a rank is in the layout of ranks, and the sizes of that layout.

    Attributes:
        expert_tensor: Rank among those that have parts of the same experts.
        experts: Ranks that send each other tokens for their experts; those that have parts of the
            same experts are side by side.
    """

    tensor: int
    context: int
    data: int
    pipeline: int
    sizes: tuple[int, int, int, int]
    sequence_parallel: bool
    expert_tensor: int = 0
    experts: tuple[int, ...] = ()


@dataclass(frozen=True)
class Values:
    """A tensor in the file of values.

    Attributes:
        offset: In bytes.
        dtype: As numpy names it.
        every: The first and then each ``every``-th row along the first dimension is held.
    """

    offset: int
    shape: tuple[int, ...]
    dtype: str
    every: int = 1

    @property
    def held(self) -> tuple[int, ...]:
        """The shape of what is held."""
        if self.every == 1:
            return self.shape
        return (-(-self.shape[0] // self.every), *self.shape[1:])


@dataclass(frozen=True)
class TracedTensor:
    """A tensor that crossed a border of a module.

    Attributes:
        value: What it held when it first crossed one.
        gradient: Of the loss; ``None`` where none was computed.
        fired: Position of that gradient among those of its microbatch, in the order of the
            backward pass.
        made_by: ``FILE:LINE`` of the forward and of the backward of the autograd function that
            computed it, as far as that is written in Python; empty otherwise.
    """

    value: Values
    gradient: Values | None = None
    fired: int = -1
    made_by: tuple[str, str] = ("", "")


@dataclass(frozen=True)
class TracedCall:
    """One call of a module.

    Attributes:
        chunk: Model chunk of the rank, from 0.
        microbatch: Index of the chunk's forward in the step, from 0.
        module: Qualified name in the whole model, with the layer's number in it; empty for the
            chunk itself.
        number: How often it was called before in the microbatch.
        entered: Position of its start among the events of its microbatch.
        left: Position of its end; -1 where the run ended inside of it.
        parent: Index of the call that called it; -1 for none.
        site: ``FILE:LINE`` of the caller.
        inputs: Tensors by name, as indices into `RankTrace.tensors`.
        misread: What a replay in its place takes from elsewhere than from its caller, in words.
    """

    step: int
    chunk: int
    microbatch: int
    module: str
    number: int
    entered: int
    left: int
    parent: int
    site: str
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    misread: str = ""


@dataclass(frozen=True)
class TracedBatch:
    """A microbatch of a chunk on one rank.

    Attributes:
        ranks: Ranks that share it, in the order of their shares.
        borders: Borders of its sequences with their padding, in rows of all these ranks; empty
            where sequences are not packed.
        tokens: The same without padding.
        layout: How rows are dealt to these ranks, as upstream says; empty where it does not.
    """

    step: int
    chunk: int
    microbatch: int
    ranks: tuple[int, ...]
    borders: tuple[int, ...]
    tokens: tuple[int, ...] = ()
    layout: str = ""


@dataclass(frozen=True)
class TracedParameter:
    """A parameter, or its gradient.

    Attributes:
        kind: `WEIGHT` for the value at the start of the step; `LOCAL` for the gradient before
            ranks reduce it, `REDUCED` after that.
        summed: Whether ranks of a TP group hold parts of the gradient that are summed.
        start: Index in the flat gradient of the first value of the part that a distributed
            optimizer leaves on the rank, or `AFTER`; -1 where the rank has the whole.
    """

    step: int
    chunk: int
    name: str
    kind: str
    value: Values
    summed: bool
    start: int = -1


@dataclass(frozen=True)
class TracedNorm:
    """How the norm of gradients is summed over ranks.

    Attributes:
        ranks: Ranks of the group of the sum.
        group: That group as people know it, with its ranks.
        site: ``FILE:LINE`` that asks for the norm.
        shards: Ranks that share the gradients of this rank, each with a part of them.
    """

    ranks: tuple[int, ...]
    group: str
    site: str
    shards: tuple[int, ...]


@dataclass(frozen=True)
class RankTrace:
    """All that one rank recorded.

    Attributes:
        forwards: ``FILE:LINE`` of the forward of each module, by qualified name.
        full: Whether it stopped because of `TraceRequest.most_bytes`.
        sharded: Whether a distributed optimizer holds parts of the gradients only.
        overlapped: Whether gradients are reduced before the backward has ended.
        ended: Whether the program ran through on this rank.
        gathered_late: Whether weights are gathered while the forward after their step runs.
        closed: Number of decoder layers of the rank whose inside was not recorded.
        norms: The sums that make the norm of all gradients, each once.
        divisors: Tokens by which gradients are divided at the end of their reduction, by step.
        per_token: Whether losses are sums over tokens, which nothing scales.
    """

    rank: int
    place: Place
    tensors: tuple[TracedTensor, ...]
    calls: tuple[TracedCall, ...]
    batches: tuple[TracedBatch, ...]
    parameters: tuple[TracedParameter, ...]
    forwards: Mapping[str, str]
    full: bool
    sharded: bool
    overlapped: bool
    ended: bool = True
    gathered_late: bool = False
    closed: int = 0
    norms: tuple[TracedNorm, ...] = ()
    divisors: Mapping[str, float] = field(default_factory=dict)
    per_token: bool = False
