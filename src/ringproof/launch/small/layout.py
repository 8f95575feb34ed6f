"""The layout of ranks of a launch, and a smaller one that takes the same path."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import lcm

from ringproof.errors import InputError
from ringproof.launch.flags import Flags
from ringproof.launch.small.draft import Draft

LARGEST_DOMAIN = 8
DYNAMIC = ("--dynamic-context-parallel", "--hybrid-context-parallel")
HIDES_DATA = "What depends on many data-parallel replicas: their number, their groups across nodes."
HIDES_TENSOR = (
    "What depends on the tensor-parallel size itself; heads per rank and KV heads per rank stay."
)
HIDES_EXPERT = "What depends on the expert-parallel size itself, and on many experts."
HIDES_PIPELINE = "What depends on the number of pipeline stages, such as their bubbles."


@dataclass(frozen=True)
class Layout:
    """Sizes of a layout of ranks.

    Attributes:
        context: CP as given.
        dynamic: Whether CP sizes are chosen at run time.
    """

    world: int
    tensor: int
    pipeline: int
    context: int
    expert: int
    expert_tensor: int
    dynamic: bool
    sequence_parallel: bool

    @property
    def model(self) -> int:
        """Ranks of one replica."""
        return self.tensor * self.pipeline * self.context

    @property
    def data(self) -> int:
        """DP, at least 1."""
        return max(self.world // self.model, 1)

    @property
    def divides(self) -> bool:
        """Whether the world is a number of whole replicas."""
        return self.world % self.model == 0

    @property
    def domain(self) -> int:
        """Ranks among which a sequence can be shared."""
        return self.context * (self.data if self.dynamic else 1)

    @property
    def unit(self) -> int:
        """Tokens by which a sequence has to be divisible to be shared by the whole domain."""
        return self._unit(self.domain)

    @property
    def static_unit(self) -> int:
        """Tokens by which upstream's argument checks want a sequence to be divisible."""
        return self._unit(self.context)

    def _unit(self, ranks: int) -> int:
        shares = 2 * ranks if ranks > 1 else 1
        return shares * (self.tensor if self.sequence_parallel else 1)

    @property
    def experts_fit(self) -> bool:
        """Whether the ranks of one pipeline stage divide into expert groups."""
        return self.world % (self.pipeline * self.expert * self.expert_tensor) == 0

    def of(self, data: int) -> Layout:
        """Return the layout with another DP."""
        return replace(self, world=self.model * data)


def layout(flags: Flags, world: int) -> Layout:
    """Read a layout from a command line.

    Raises:
        InputError: A size is not a positive integer.
    """
    sizes = {
        name: flags.integer(f"--{name}-size", 1)
        for name in (
            "tensor-model-parallel",
            "pipeline-model-parallel",
            "context-parallel",
            "expert-model-parallel",
        )
    }
    tensor = sizes["tensor-model-parallel"]
    etp = flags.integer("--expert-tensor-parallel-size", tensor)
    for name, size in (*sizes.items(), ("expert-tensor-parallel", etp)):
        if size < 1:
            raise InputError(f"--{name}-size", f"the size {size} is not positive; give 1 or more")
    return Layout(
        world=world,
        tensor=tensor,
        pipeline=sizes["pipeline-model-parallel"],
        context=sizes["context-parallel"],
        expert=sizes["expert-model-parallel"],
        expert_tensor=etp,
        dynamic=any(flags.has(name) for name in DYNAMIC),
        sequence_parallel=tensor > 1 and flags.has("--sequence-parallel"),
    )


def shrink_layout(draft: Draft, before: Layout, max_ranks: int) -> Layout:
    """Choose a smaller layout and write it into a draft.

    DP shrinks first, to 2. Where the ranks are still more than ``max_ranks``, EP shrinks, then
    TP, then PP, and last DP to 1. A world size that does not divide stays one that does not.

    Raises:
        InputError: No smaller layout fits.
    """
    if not before.divides or not before.experts_fit:
        return _undivided(draft, before, max_ranks)
    for after in _candidates(draft, before):
        if after.world <= max_ranks and after.experts_fit:
            _write(draft, before, after)
            return after
    sentence = (
        f"CP {before.context} needs more than {max_ranks} ranks; give --max-ranks {before.context} "
        "or more, or a smaller --context-parallel-size"
    )
    raise InputError("--max-ranks", sentence)


def _undivided(draft: Draft, before: Layout, max_ranks: int) -> Layout:
    """A layout that upstream refuses stays refused, with as few ranks as are needed for that."""
    if before.world <= max_ranks:
        return before
    step = before.model if not before.divides else lcm(
        before.model, before.pipeline * before.expert * before.expert_tensor
    )  # fmt: skip
    # The remainder by a replica alone is refused for the same reason as the whole world.
    world = before.world % step or before.world
    world = world if world <= max_ranks else max_ranks - max_ranks % step - 1
    draft.note("world size", before.world, world, HIDES_DATA)
    return replace(before, world=max(world, 1))


def _candidates(draft: Draft, before: Layout) -> Iterator[Layout]:
    """Layouts in the order of how little they change besides DP."""
    # Two replicas show wrong data-parallel reductions, which one cannot.
    least = (2, 1) if before.data > 1 else (1,)
    heads = draft.number("--num-attention-heads", before.tensor)
    tensors = [size for size in _halved(before.tensor) if heads % (before.tensor // size) == 0]
    sizes = product(least, _halved(before.pipeline), tensors, _halved(before.expert))
    for replicas, pipeline, tensor, expert in sizes:
        etp = max(before.expert_tensor * tensor // before.tensor, 1)
        smaller = replace(
            before, pipeline=pipeline, tensor=tensor, expert=expert, expert_tensor=etp
        )
        yield from _replicated(smaller, before.data, replicas)


def _replicated(candidate: Layout, data: int, least: int) -> Iterator[Layout]:
    """Layouts by DP, smallest first; Dynamic CP keeps its domain up to a largest size."""
    if candidate.dynamic:
        domain = candidate.context * data
        while domain > LARGEST_DOMAIN and domain % 2 == 0 and domain // 2 % candidate.context == 0:
            domain //= 2
        yield candidate.of(domain // candidate.context)
        return
    for size in range(min(least, data), data + 1):
        if data % size == 0:
            yield candidate.of(size)


def _halved(size: int) -> Iterator[int]:
    while True:
        yield size
        if size % 2:
            return
        size //= 2


def _write(draft: Draft, before: Layout, after: Layout) -> None:
    if after.data != before.data:
        draft.note("data-parallel size", before.data, after.data, HIDES_DATA)
    if after.tensor != before.tensor:
        draft.put("--tensor-model-parallel-size", after.tensor, HIDES_TENSOR)
        shrunk = before.tensor // after.tensor
        heads = draft.number("--num-attention-heads", before.tensor)
        draft.put("--num-attention-heads", heads // shrunk, HIDES_TENSOR)
        if draft.flags.has("--num-query-groups"):
            groups = draft.number("--num-query-groups")
            smaller = groups // shrunk if groups % shrunk == 0 else max(groups // shrunk, 1)
            draft.put("--num-query-groups", smaller, HIDES_TENSOR)
        if draft.flags.has("--expert-tensor-parallel-size"):
            draft.put("--expert-tensor-parallel-size", after.expert_tensor, HIDES_TENSOR)
    if after.pipeline != before.pipeline:
        draft.put("--pipeline-model-parallel-size", after.pipeline, HIDES_PIPELINE)
    if after.expert != before.expert:
        draft.put("--expert-model-parallel-size", after.expert, HIDES_EXPERT)
