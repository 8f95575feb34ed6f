"""Faults that are injected into the reference on its ranks, one at a time, for one run.

Nothing here changes a file of the product: a fault replaces a function or an attribute of a module
and puts it back. Each says which bug it stands for, in which run it shows, and which proof has to
turn red (``smoke.trials``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

from ringproof.cluster import RankContext
from ringproof.reference.attention import blocks
from ringproof.reference.attention import plan as attention_plan
from ringproof.reference.attention.attention import planned_attention
from ringproof.reference.attention.plan import AttentionPlan
from ringproof.reference.attention.steps import Step
from ringproof.reference.model import attention, moe
from ringproof.reference.model.attention import Attention
from ringproof.reference.model.batch import IGNORED, PackedBatch, Totals
from ringproof.reference.packing.partition import round_up
from ringproof.reference.packing.sequences import PackedSequences
from ringproof.reference.planning import Group, Microbatch
from ringproof.reference.planning.elementwise import IntArray
from ringproof.reference.topology.dynamic import ContextParallelGroup, DynamicGroups
from ringproof.reference.topology.layout import RankLayout
from ringproof.reference.training import checkpoint, gradients, pipeline, routing, sharded, trainer
from ringproof.reference.training.assembly import Assembly
from ringproof.reference.training.data import Sampler
from ringproof.reference.training.gradients import ReductionGroups, TrainedParameter
from ringproof.reference.training.schedules import Schedule, StepPlan

QWEN3, QWEN3_DP = "qwen3, CP 2, sizes 2 and 1 in turn", "qwen3, DP 2, sizes 2 and 1 in turn"
MOONLIGHT = "moonlight, CP 2, sizes 2 and 1 in turn"
MOST_ENTRIES = 64

Parameters = tuple[TrainedParameter, ...]
Patch = AbstractContextManager[Any]


@dataclass
class Site:
    """One rank while a fault is in place.

    Args:
        rank: The rank.
        layout: Rank grid of the run.
        mtp: Depths of multi-token prediction.
        parts: What the trainer has assembled on this rank, as soon as it has.
    """

    rank: RankContext
    layout: RankLayout
    mtp: int = 0
    parts: list[Assembly] = field(default_factory=list)

    @property
    def groups(self) -> DynamicGroups:
        return self.parts[-1].groups

    def watched(self) -> Patch:
        """Learn what the run assembles."""

        def learn(parts: Assembly) -> Assembly:
            self.parts.append(parts)
            return parts

        return assembled(learn)


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong on purpose.

    Args:
        id: Its name.
        setup: The run that it is injected into, one of ``smoke.trials.SETUPS``.
        proof: The proof that has to turn red, one of ``smoke.trials.PROOFS``.
        stands_for: The upstream bug or user report; empty for a mistake that anybody may make.
        inject: Puts it in place on one rank.
    """

    id: str
    setup: str
    proof: str
    stands_for: str
    inject: Callable[[Site], Patch]

    @property
    def broken(self) -> str:
        """What goes wrong, in one sentence."""
        return " ".join((self.inject.__doc__ or "").split())


def fault(
    setup: str, proof: str, stands_for: str = ""
) -> Callable[[Callable[[Site], Patch]], Fault]:
    """Make a fault of a function that injects it.

    Its name is the fault's, with underscores, and its docstring says what is broken.
    """

    def make(inject: Callable[[Site], Patch]) -> Fault:
        return Fault(inject.__name__.replace("_", "-"), setup, proof, stands_for, inject)

    return make


def injected(name: str, site: Site) -> Patch:
    """The fault of that name, or none if the name is empty, for a while."""
    return next(one for one in FAULTS if one.id == name).inject(site) if name else nullcontext()


# Where faults are injected


def _changed(owner: Any, name: str, change: Callable[[Any], Any]) -> Patch:
    """Replace a function by one that changes what it returns."""
    call = getattr(owner, name)
    return mock.patch.object(
        owner, name, lambda *arguments, **options: change(call(*arguments, **options))
    )


def assembled(change: Callable[[Assembly], Assembly]) -> Patch:
    """A run goes on with other parts than it has assembled."""
    assembly = trainer.assembly

    @contextmanager
    def changed(*arguments: Any, **options: Any) -> Iterator[Assembly]:
        with assembly(*arguments, **options) as parts:
            yield change(parts)

    return mock.patch.object(trainer, "assembly", changed)


def seen_by(module: type[nn.Module], change: Callable[[PackedBatch], PackedBatch]) -> Patch:
    """A module is given another microbatch than the rest of the model."""
    forward: Any = module.forward

    def changed(self: nn.Module, x: torch.Tensor, batch: PackedBatch) -> Any:
        return forward(self, x, change(batch))

    return mock.patch.object(module, "forward", changed)


def routed(change: Callable[[StepPlan, list[PackedBatch]], list[PackedBatch]]) -> Patch:
    """Microbatches are changed after their rows have arrived."""
    route = trainer.route_batches

    def changed(step: StepPlan, *arguments: Any) -> list[PackedBatch]:
        return change(step, route(step, *arguments))

    return mock.patch.object(trainer, "route_batches", changed)


def run_with(change: Callable[[list[PackedBatch]], list[PackedBatch]]) -> Patch:
    """A step runs other microbatches than were routed."""
    return _runner_with("train", change)


def _runner_with(name: str, change: Callable[[list[PackedBatch]], list[PackedBatch]]) -> Patch:
    """A method of a run's runner is given other microbatches."""

    def changed(parts: Assembly) -> Assembly:
        method = getattr(parts.runner, name)
        setattr(parts.runner, name, lambda batches: method(change(batches)))
        return parts

    return assembled(changed)


def reduced(
    before: Callable[[Parameters], Parameters] = lambda parameters: parameters,
    after: Callable[[Parameters, ReductionGroups], object] = lambda parameters, groups: None,
) -> Patch:
    """Gradients are reduced as those of other parameters, and changed after."""
    reduce_gradients = trainer.reduce_gradients

    def changed(parameters: Parameters, groups: ReductionGroups) -> None:
        reduce_gradients(before(parameters), groups)
        after(parameters, groups)

    return mock.patch.object(trainer, "reduce_gradients", changed)


class Predecessor:
    """Which microbatch came before the one that a module sees now."""

    def __init__(self) -> None:
        self._now: PackedBatch | None = None
        self._before: PackedBatch | None = None

    def of(self, batch: PackedBatch) -> PackedBatch:
        """The microbatch before; the first one itself."""
        if batch is not self._now:
            self._before, self._now = self._now or batch, batch
        assert self._before is not None
        return self._before


def pack_of(real: list[int], rows: list[int]) -> PackedSequences:
    """A pack of sequences with these real and padded lengths."""
    return PackedSequences(
        cu_seqlens=tuple(itertools.accumulate(real, initial=0)),
        cu_seqlens_padded=tuple(itertools.accumulate(rows, initial=0)),
        max_seqlen=max(rows),
        sequences=len(rows),
    )


# Groups: a module works with another CP group than its microbatch's


def positions_over(batch: PackedBatch, size: int, place: int) -> PackedBatch:
    """Positions as RoPE takes them from a group: a rank's rows of each sequence are its chunks
    ``place`` and ``2 * size - 1 - place``.
    """
    positions = batch.positions.clone()
    for entry in batch.entries.unique():
        rows = (batch.entries == entry).nonzero().flatten()
        half = len(rows) // 2
        starts = (place * half, (2 * size - 1 - place) * half)
        chunks = (torch.arange(half), torch.arange(len(rows) - half))
        both = zip(starts, chunks, strict=True)
        positions[rows] = torch.cat([start + chunk for start, chunk in both]).to(positions)
    return replace(batch, positions=positions)


@fault(QWEN3_DP, "loss", "Megatron-LM #6820")
def rope_static_group(site: Site) -> Patch:
    """RoPE takes positions from the static CP group (one rank), not from the microbatch's."""
    place = site.layout.coordinate("cp", site.rank.rank)
    return seen_by(Attention, lambda batch: positions_over(batch, site.layout.cp, place))


@fault(QWEN3, "loss", "Megatron-LM #5352, #5355")
def rope_size_1_sharded(site: Site) -> Patch:
    """For a microbatch on one rank RoPE falls back to the static CP group of two."""
    size, place = site.layout.cp, site.layout.coordinate("cp", site.rank.rank)
    return seen_by(
        Attention,
        lambda batch: positions_over(batch, size, place) if batch.group.size == 1 else batch,
    )


@fault(QWEN3, "loss", "Megatron-LM #6825 (`local_cp_size == 1` exactly where there is no group)")
def size_1_group_sharded(site: Site) -> Patch:
    """The rows of a microbatch on one rank are cut as if the static group shared them."""

    def change(step: StepPlan, batches: list[PackedBatch]) -> list[PackedBatch]:
        size, place = site.groups.domain_size, site.groups.domain_rank
        return [_share(b, size, place) if b.group.size == 1 else b for b in batches]

    return routed(change)


def _share(batch: PackedBatch, size: int, place: int) -> PackedBatch:
    kept, real, rows = [], [], []
    for entry, (length, padded) in enumerate(
        zip(batch.packed.lengths, batch.packed.padded_lengths, strict=True)
    ):
        part = padded // size
        found = (batch.entries == entry).nonzero().flatten()
        kept.append(found[place * part : (place + 1) * part])
        rows.append(part)
        real.append(min(max(length - place * part, 0), part))
    index = torch.cat(kept)
    assert batch.tokens is not None
    assert batch.future is not None
    return replace(
        batch,
        packed=pack_of(real, rows),
        positions=batch.positions[index],
        entries=batch.entries[index],
        real=batch.real[index],
        tokens=batch.tokens[index],
        future=batch.future[:, index],
    )


@fault(QWEN3, "refusal", "Megatron-LM #5215, which restores TE's group")
def attention_group_not_restored(site: Site) -> Patch:
    """Attention still has the group of the microbatch before, with this one's sequences."""
    call, before = attention.attend, Predecessor()

    def attend(q: Any, k: Any, v: Any, batch: PackedBatch, **options: Any) -> Any:
        held = before.of(batch).group
        with mock.patch.object(attention, "planned_attention", _with_group(held, batch.comm_type)):
            return call(q, k, v, batch, **options)

    return mock.patch.object(attention, "attend", attend)


def _with_group(held: ContextParallelGroup, comm_type: str) -> Any:
    def changed(q: Any, k: Any, v: Any, plan: AttentionPlan, options: Any) -> Any:
        group = held.of_type(comm_type)
        stale = attention_plan.plan_attention(plan.group_rows, comm_type=comm_type, group=group)
        return planned_attention(q, k, v, stale, options)

    return changed


def left_alone(site: Site, batch: PackedBatch, before: PackedBatch) -> PackedBatch:
    """The microbatch as a rank takes it that still has the group of one of the one before."""
    if before.group.size > 1 or batch.group.size == 1:
        return batch
    entries = len(batch.packed.lengths)
    lengths = torch.tensor(batch.packed.lengths, device=batch.positions.device)
    computed = batch.positions < lengths[batch.entries]
    own = pack_of(
        torch.bincount(batch.entries[computed], minlength=entries).tolist(),
        torch.bincount(batch.entries, minlength=entries).tolist(),
    )
    return replace(batch, group=site.groups.group(1), packed=own)


def _keeps_group_of_one(site: Site, module: type[nn.Module]) -> Patch:
    before = Predecessor()
    return seen_by(module, lambda batch: left_alone(site, batch, before.of(batch)))


@fault(QWEN3, "loss", "Megatron-LM #5215; `a2a+p2p` without sizes, which switched CP off")
def attention_left_alone(site: Site) -> Patch:
    """After a microbatch on one rank attention stays there: each rank attends to its own rows."""
    return _keeps_group_of_one(site, Attention)


@fault("qwen3, CP 2 as two levels", "refusal", "dev hands TE a single group under Dynamic CP")
def single_group_for_two_levels(site: Site) -> Patch:
    """`a2a+p2p` is handed the dynamic group as one, not its two levels."""
    return mock.patch.object(ContextParallelGroup, "of_type", lambda self, comm_type: self.flat)


@fault(
    "qwen3, CP 3, sizes 3 and 1 in turn",
    "loss",
    "TE's `AttnFuncWithCPAndKVP2P` computes its peers from the ranks it is handed",
)
def ring_hop_reversed(site: Site) -> Patch:
    """The ring's masks are for the other direction: block and mask belong to different ranks."""

    def change(table: tuple[Step, ...]) -> tuple[Step, ...]:
        own, *others = table
        return (own, *reversed(others))

    return _changed(attention_plan, "step_table", change)


@fault(QWEN3, "gradient norm", "TransformerEngine #1557, Megatron-LM #1464, #1465")
def ring_gradients_lost(site: Site) -> Patch:
    """In the ring's backward a block brings home the last rank's gradient only."""

    def add(self: Any, gradient: torch.Tensor) -> None:
        if self._pending:
            self.total()
        self._sent, self._received = gradient, torch.empty_like(gradient)
        self._pending = self._communicator.shift(
            self._sent, self._received, tag=blocks.GRADIENT_TAG
        )

    return mock.patch.object(blocks._RingSink, "add", add)


@fault(QWEN3, "gradient norm", "TransformerEngine #2898 with Megatron-LM #4359")
def padding_undefined(site: Site) -> Patch:
    """Attention leaves rows of padding undefined (NaN)."""
    attend = attention.attend

    def changed(q: Any, k: Any, v: Any, batch: PackedBatch, **options: Any) -> torch.Tensor:
        out = attend(q, k, v, batch, **options)
        return torch.where(batch.real[:, None, None], out, torch.nan)

    return mock.patch.object(attention, "attend", changed)


@fault(MOONLIGHT, "loss", "dev's `TopKRouter._get_aux_loss_groups`, which takes the dynamic group")
def router_loss_not_reduced(site: Site) -> Patch:
    """The router's balance loss counts the choices of a rank's own rows alone."""
    return mock.patch.object(moe, "counting_groups", lambda batch, tensor_parallel: ())


@fault(MOONLIGHT, "loss", "releases, whose router knows the static group alone")
def router_loss_static_group(site: Site) -> Patch:
    """The router's balance loss counts over the static group, whose ranks hold other sequences."""
    call = moe.balance_loss

    def changed(*tensors: torch.Tensor, **options: Any) -> torch.Tensor:
        # Microbatches of a domain have different numbers of sequences: make room for as many.
        over = {"entries": MOST_ENTRIES, "groups": (site.groups.domain,)}
        return call(*tensors, **{**options, **over})

    return mock.patch.object(moe, "balance_loss", changed)


@fault(MOONLIGHT, "loss")
def router_loss_counts_padding(site: Site) -> Patch:
    """Rows of padding count in the router's balance loss."""
    call = moe.balance_loss

    def changed(p: Any, chosen: Any, sequences: Any, real: Any, **options: Any) -> torch.Tensor:
        return call(p, chosen, sequences, torch.ones_like(real), **options)

    return mock.patch.object(moe, "balance_loss", changed)


# Data: what a microbatch says of its rows, its labels and its totals is not so


@fault(QWEN3, "loss")
def labels_cross_sequences(site: Site) -> Patch:
    """The label of a sequence's last token is the first token of the next in the pack."""
    return _shifted_over_the_pack(site, range(1))


@fault(QWEN3, "loss", "Megatron-LM's `roll_tensor`, which shifts packed sequences one by one")
def mtp_crosses_sequences(site: Site) -> Patch:
    """The labels of multi-token prediction are shifted over the borders of packed sequences."""
    return _shifted_over_the_pack(site, range(1, 1 + site.mtp))


def _shifted_over_the_pack(site: Site, depths: range) -> Patch:
    """What follows a sequence in the pack follows it in the text, too."""

    def change(step: StepPlan, batches: list[PackedBatch]) -> list[PackedBatch]:
        rank = site.groups.domain_rank
        read = site.parts[-1].data.training.read
        for microbatch, batch in enumerate(batches):
            held = step.group_of(microbatch, rank).sequences
            documents = [read(step.documents[sequence]) for sequence in held]
            for depth in depths:
                _fill_ends(batch, documents, depth)
        return batches

    return routed(change)


def _fill_ends(batch: PackedBatch, documents: Sequence[Any], depth: int) -> None:
    assert batch.future is not None
    labels = batch.future[depth]
    for row in ((labels == IGNORED) & batch.real).nonzero().flatten().tolist():
        entry = int(batch.entries[row])
        behind = int(batch.positions[row]) + 1 + depth - len(documents[entry])
        if entry + 1 < len(documents) and behind < len(documents[entry + 1]):
            labels[row] = int(documents[entry + 1][behind])


@fault(QWEN3, "loss", "Megatron-LM's `roll_tensor`, which exchanges borders with CP neighbours")
def mtp_stops_at_chunks(site: Site) -> Patch:
    """The labels of multi-token prediction are shifted inside a rank's own rows."""

    def change(step: StepPlan, batches: list[PackedBatch]) -> list[PackedBatch]:
        for batch in batches:
            for depth in range(1, 1 + site.mtp):
                _roll(batch, depth)
        return batches

    return routed(change)


def _roll(batch: PackedBatch, depth: int) -> None:
    assert batch.tokens is not None
    assert batch.future is not None
    labels, distance = batch.future[depth], 1 + depth
    rolled = torch.full_like(labels, IGNORED)
    rolled[:-distance] = batch.tokens[distance:]
    same = torch.zeros_like(batch.real)
    same[:-distance] = batch.entries[distance:] == batch.entries[:-distance]
    labels.copy_(torch.where((labels != IGNORED) & same, rolled, IGNORED))


@fault(QWEN3, "refusal", "Megatron-LM #6816: sub-samples reach `get_batch` without `cu_seqlens`")
def stale_cu_seqlens(site: Site) -> Patch:
    """A microbatch comes with the `cu_seqlens` of the one before."""

    def change(step: StepPlan, batches: list[PackedBatch]) -> list[PackedBatch]:
        stale = [batches[0], *batches[:-1]]
        return [replace(b, packed=s.packed) for b, s in zip(batches, stale, strict=True)]

    return routed(change)


@fault(
    QWEN3, "loss", "a CUDA graph replayed with the `cu_seqlens` of its capture (Megatron-LM #3869)"
)
def stale_cu_seqlens_that_fit(site: Site) -> Patch:
    """The same in a buffer of fixed size, where the numbers of rows agree."""

    def change(step: StepPlan, batches: list[PackedBatch]) -> list[PackedBatch]:
        stale = [batches[0], *batches[:-1]]
        return [
            replace(b, packed=_fitted(s.packed, b.packed, b.group.size * step.rank_multiple))
            for b, s in zip(batches, stale, strict=True)
        ]

    return routed(change)


def _fitted(stale: PackedSequences, wanted: PackedSequences, multiple: int) -> PackedSequences:
    """The lengths of one pack in the rows of another; the last sequence ends where that does."""
    if stale is wanted:
        return wanted
    rows: list[int] = []
    for length in stale.padded_lengths:
        left = wanted.rows - sum(rows)
        if left:
            rows.append(min(round_up(length, multiple), left))
    rows[-1] += wanted.rows - sum(rows)
    real = [min(a, b) for a, b in zip(stale.lengths, rows, strict=False)]
    return pack_of(real, rows)


@fault(QWEN3, "loss", "Megatron-LM #906, #673")
def mean_of_microbatches(site: Site) -> Patch:
    """Each microbatch's loss is a mean over its own tokens, and these are averaged."""

    def change(step: StepPlan, batches: list[PackedBatch]) -> list[PackedBatch]:
        return [_averaged(batch, len(batches), site.groups.domain_size) for batch in batches]

    return routed(change)


def _averaged(batch: PackedBatch, microbatches: int, ranks: int) -> PackedBatch:
    assert batch.future is not None
    labels = (batch.future != IGNORED).sum(1)
    counts = torch.cat([labels, batch.real.sum().reshape(1)])
    dist.all_reduce(counts, group=batch.group.flat)
    shares = microbatches * ranks // batch.group.size
    *predictions, tokens = (shares * max(1, n) for n in counts.tolist())
    return replace(batch, totals=Totals(tokens, tuple(predictions)))


@fault(QWEN3, "loss", "Megatron-LM #906, #673")
def padding_in_denominator(site: Site) -> Patch:
    """Rows of padding count in what the loss is divided by."""

    def changed(step: StepPlan, depths: int) -> Totals:
        return Totals(step.rows, (step.rows,) * (1 + depths))

    return mock.patch.object(routing, "totals", changed)


# Sums: something is added up too often, not at all, or divided


@fault(QWEN3, "gradient norm")
def gradients_summed_twice(site: Site) -> Patch:
    """Gradients are summed over the domain twice."""

    def again(parameters: Parameters, groups: ReductionGroups) -> None:
        gradients.sum_in_place([p.gradient for p in parameters], groups.domain)

    return reduced(after=again)


@fault(QWEN3, "gradient norm", "Megatron-LM #906, #673")
def gradients_averaged(site: Site) -> Patch:
    """Gradients are averaged over the domain, though each loss is a share of one sum."""

    def divide(parameters: Parameters, groups: ReductionGroups) -> None:
        for parameter in parameters:
            parameter.gradient.div_(groups.domain.size())

    return reduced(after=divide)


@fault(QWEN3, "gradient norm")
def gradients_not_summed(site: Site) -> Patch:
    """Gradients are not summed over the domain."""
    return mock.patch.object(gradients, "sum_in_place", lambda tensors, group: None)


def _of_kind(parameters: Parameters, **fields: Any) -> Parameters:
    return tuple(replace(p, kind=replace(p.kind, **fields)) for p in parameters)


@fault("qwen3, TP 2", "gradient norm")
def partial_gradients_not_summed(site: Site) -> Patch:
    """Gradients of norms are not summed over TP under sequence parallelism."""
    return reduced(lambda parameters: _of_kind(parameters, partial_over_tensor_parallel=False))


@fault("qwen3, TP 2", "gradient norm")
def norm_counts_copies(site: Site) -> Patch:
    """The gradient norm counts replicated parameters once for each copy."""
    return mock.patch.object(gradients, "_counts", lambda parameter, groups: True)


@fault("qwen3, PP 2", "gradient norm")
def tied_embedding_not_summed(site: Site) -> Patch:
    """The gradients of the tied embedding are not summed over first and last stage."""
    return reduced(lambda parameters: _of_kind(parameters, shared=False))


@fault("qwen3, FSDP2 on 2", "gradient norm", "Megatron-LM #906, #673")
def fsdp_averages(site: Site) -> Patch:
    """FSDP2 averages gradients over the domain, as it does by default."""
    return mock.patch.object(sharded, "_sum_gradients")


# Runs: pipelines, ranks, plans, evaluations and checkpoints


@fault("qwen3, PP 2", "loss")
def stage_one_microbatch_behind(site: Site) -> Patch:
    """The last pipeline stage takes the metadata and labels of the microbatch before."""
    batch = pipeline.StepState.batch
    late = site.layout.coordinate("pp", site.rank.rank) == 1

    def changed(self: pipeline.StepState, microbatch: int) -> PackedBatch:
        return batch(self, max(0, microbatch - 1) if late else microbatch)

    return mock.patch.object(pipeline.StepState, "batch", changed)


@fault("qwen3, PP 2", "hang", "EasyR1 #11012, verl #6555, #1617")
def stage_stops_early(site: Site) -> Patch:
    """The last pipeline stage has one microbatch less than the first."""
    last = site.layout.coordinate("pp", site.rank.rank) == site.layout.pp - 1
    return run_with(lambda batches: batches[:-1] if last else batches)


@fault("qwen3, FSDP2 on 2, a dummy in each step", "hang", "EasyR1 #11012, verl #6555, #1617")
def dummy_skipped(site: Site) -> Patch:
    """A rank whose group is a dummy skips the microbatch."""
    return run_with(lambda batches: [batch for batch in batches if batch.real.any()])


@fault(QWEN3, "plan agreement")
def plan_of_another_seed(site: Site) -> Patch:
    """One rank draws its samples with another seed."""

    def change(parts: Assembly) -> Assembly:
        sampler = replace(parts.sampler, seed=parts.sampler.seed + 1)
        return replace(parts, sampler=sampler) if site.rank.rank == 1 else parts

    return assembled(change)


def _with_microbatches(step: StepPlan, microbatches: Sequence[Microbatch]) -> StepPlan:
    return replace(step, plan=replace(step.plan, microbatches=tuple(microbatches)))


@fault(QWEN3, "plan validator", "dev asserts it (`set_gbs length:`)")
def sequence_lost(site: Site) -> Patch:
    """The plan leaves a sequence out."""

    def change(step: StepPlan) -> StepPlan:
        *others, last = step.plan.microbatches
        group = next(group for group in last.groups if not group.dummy)
        shorter = group._replace(sequences=group.sequences[:-1])
        groups = tuple(shorter if one is group else one for one in last.groups)
        return _with_microbatches(step, [*others, Microbatch(groups)])

    return _changed(trainer, "plan_step", change)


@fault(
    "plans for CP 4, sizes 2 and 1 in turn",
    "plan validator",
    "`BalancedCPScheduler` of 0.16.1: 278 of 229,748 random cases",
)
def unaligned_group(site: Site) -> Patch:
    """A group of two begins at an odd rank, where no process group is."""

    def moved(microbatch: Microbatch) -> Microbatch:
        if [group.size for group in microbatch.groups] != [2, 2]:
            return microbatch
        # The second pair moves to the middle, and the first makes room: a rank on either side.
        first, second = microbatch.groups
        left, right = first.sequences[::2], first.sequences[1::2]
        return Microbatch((Group(0, 1, left), Group(1, 2, second.sequences), Group(3, 1, right)))

    def change(step: StepPlan) -> StepPlan:
        return _with_microbatches(step, [*map(moved, step.plan.microbatches)])

    return _changed(trainer, "plan_step", change)


@fault(
    "plans for PP 2 x VPP 2",
    "plan validator",
    "dev's `align_sample_id_groups`, Megatron-LM; verl #1617",
)
def microbatches_not_in_rounds(site: Site) -> Patch:
    """The number of microbatches is no multiple of what interleaved 1F1B needs."""
    return mock.patch.object(Schedule, "microbatch_multiple", 1)


@fault(
    "qwen3, CP 2, evaluated after step 2",
    "evaluation",
    "Megatron-LM #7144, #3791: evaluation iterators",
)
def evaluation_keeps_training_group(site: Site) -> Patch:
    """Evaluation runs on the group that the last training microbatch left (one rank)."""

    def change(batches: list[PackedBatch]) -> list[PackedBatch]:
        return [left_alone(site, batch, batches[-1]) for batch in batches]

    return _runner_with("evaluate", change)


@fault("qwen3, CP 2, resumed after step 1", "checkpoint")
def checkpoint_without_optimiser(site: Site) -> Patch:
    """A checkpoint holds parameters without the optimiser's state."""
    return mock.patch.object(checkpoint, "_moments", lambda optimiser, parameter: {})


@fault("qwen3, CP 2, resumed after step 1", "checkpoint")
@contextmanager
def checkpoint_without_sampler(site: Site) -> Iterator[None]:
    """A resumed run begins again with the first samples."""
    load, indices, begun = checkpoint.load, Sampler.indices, [0]

    def loaded(*arguments: Any) -> int:
        begun.append(load(*arguments))
        return begun[-1]

    def rewound(self: Sampler, step: int) -> IntArray:
        return indices(self, step - begun[-1])

    with (
        mock.patch.object(checkpoint, "load", loaded),
        mock.patch.object(Sampler, "indices", rewound),
    ):
        yield


FAULTS = tuple(value for value in list(globals().values()) if isinstance(value, Fault))
"""Every fault, in the order of this file."""
