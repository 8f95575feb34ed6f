"""Faults of data: what a microbatch says of its rows, its labels and its totals is not so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from ringproof.reference.model.batch import IGNORED, PackedBatch, Totals
from ringproof.reference.packing.padding import round_up
from ringproof.reference.packing.sequences import PackedSequences
from ringproof.reference.training import routing
from ringproof.reference.training.schedules import StepPlan
from smoke.faults.seams import Site, pack_of, routed


def rows_of_one_cut(site: Site) -> Any:
    """Each rank keeps its half of what only it has."""

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
        found = (batch.sequences == entry).nonzero().flatten()
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
        sequences=batch.sequences[index],
        real=batch.real[index],
        tokens=batch.tokens[index],
        future=batch.future[:, index],
    )


def labels_over_sequences(site: Site) -> Any:
    return _shifted_over_the_pack(site, range(1))


def mtp_labels_over_sequences(site: Site) -> Any:
    return _shifted_over_the_pack(site, range(1, 1 + site.options.model.mtp))


def _shifted_over_the_pack(site: Site, depths: range) -> Any:
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
        entry = int(batch.sequences[row])
        behind = int(batch.positions[row]) + 1 + depth - len(documents[entry])
        if entry + 1 < len(documents) and behind < len(documents[entry + 1]):
            labels[row] = int(documents[entry + 1][behind])


def mtp_labels_within_own_rows(site: Site) -> Any:
    """The shift takes a rank's rows of a sequence for neighbours, at the border of its chunks."""

    def change(step: StepPlan, batches: list[PackedBatch]) -> list[PackedBatch]:
        for batch in batches:
            for depth in range(1, 1 + site.options.model.mtp):
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
    same[:-distance] = batch.sequences[distance:] == batch.sequences[:-distance]
    labels.copy_(torch.where((labels != IGNORED) & same, rolled, IGNORED))


def stale_borders(site: Site) -> Any:
    """The sequences of the microbatch before, whatever their rows."""

    def change(step: StepPlan, batches: list[PackedBatch]) -> list[PackedBatch]:
        stale = [batches[0], *batches[:-1]]
        return [replace(b, packed=s.packed) for b, s in zip(batches, stale, strict=True)]

    return routed(change)


def stale_borders_that_fit(site: Site) -> Any:
    """The same in a buffer of fixed size: the last sequence ends where this microbatch does."""

    def change(step: StepPlan, batches: list[PackedBatch]) -> list[PackedBatch]:
        stale = [batches[0], *batches[:-1]]
        return [
            replace(b, packed=_fitted(s.packed, b.packed, b.group.size * step.rank_multiple))
            for b, s in zip(batches, stale, strict=True)
        ]

    return routed(change)


def _fitted(stale: PackedSequences, wanted: PackedSequences, multiple: int) -> PackedSequences:
    """The lengths of one pack in the rows of another."""
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


def mean_of_microbatches(site: Site) -> Any:
    """Each microbatch's loss is a mean over its own labels; what counts is their mean."""

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


def padding_in_the_denominator(site: Site) -> Any:
    def changed(step: StepPlan, depths: int) -> Totals:
        return Totals(step.rows, (step.rows,) * (1 + depths))

    return mock.patch.object(routing, "totals", changed)
