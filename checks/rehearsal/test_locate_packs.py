"""Packed sequences of a run are found in the reference, wherever that computes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest

from ringproof.rehearsal.locate import saying
from ringproof.rehearsal.locate.comparing import Runs
from ringproof.rehearsal.locate.locating import Told, located
from ringproof.rehearsal.locate.packs import packed_rows
from ringproof.rehearsal.locate.reading import Array, RankRecord, RunTrace
from ringproof.rehearsal.locate.result import Culprit, WrongPlace
from ringproof.rehearsal.locate.rows import zigzag
from ringproof.rehearsal.protocol.reports import Failure
from ringproof.rehearsal.protocol.trace import (
    Place,
    RankTrace,
    TracedBatch,
    TracedCall,
    TracedTensor,
    Values,
)

LENGTHS = (6, 13, 9, 13, 1)
NEXT, MASK, TOKENS = "labels", "loss_mask", "input_ids"
NOTHING = Told()


def sample(number: int) -> Array:
    """Tokens of a sequence; two of them have one length, and differ in one token."""
    found = np.arange(1, LENGTHS[number] + 1)
    return np.where(found == 7, 70 + number, found)


def states(number: int, disturbed: float = 0.0) -> Array:
    """What the model computes of a sequence [length, 2]."""
    generator = np.random.default_rng(number)
    return generator.standard_normal((LENGTHS[number], 2)) * (1 + disturbed)


@dataclass(frozen=True)
class Pack:
    """Sequences that some ranks share in a microbatch, each padded to a multiple.

    Attributes:
        filled: Rows of padding behind them that upstream says are one more sequence.
    """

    ranks: tuple[int, ...]
    samples: tuple[int, ...]
    multiple: int = 4
    filled: tuple[int, ...] = ()

    @property
    def borders(self) -> list[int]:
        """Borders with padding."""
        padded = [-(-LENGTHS[one] // self.multiple) * self.multiple for one in self.samples]
        return np.cumsum([0, *padded, *self.filled]).tolist()

    def whole(self, values: Sequence[Array]) -> Array:
        """Put the rows of all sequences together; rows of padding hold 0 or nothing that counts."""
        width = values[0].shape[1:]
        found = np.full((self.borders[-1], *width), 0 if not width else 99, values[0].dtype)
        for start, value in zip(self.borders, values, strict=False):
            found[start : start + len(value)] = value
        return found

    def share(self, rank: int) -> Array:
        """Rows of a rank."""
        own, size, ends = self.ranks.index(rank), len(self.ranks), self.borders
        parts = [a + zigzag(own, size, b - a) for a, b in pairwise(ends)]
        return np.concatenate(parts)


def recorded(rank: int, packs: Sequence[Pack], data: int, disturbed: float = 0.0) -> RankRecord:
    """One rank that computes its packs one after the other, each in a call of the model."""
    content, tensors, calls, batches = b"", [], [], []
    for number, pack in enumerate(packs):
        rows, lengths = pack.share(rank), [LENGTHS[one] for one in pack.samples]
        tokens = pack.whole([sample(one) for one in pack.samples])[rows]
        mask = pack.whole([np.ones(length, np.float32) for length in lengths])[rows]
        computed = pack.whole([states(one, disturbed) for one in pack.samples])[rows]
        for value in (tokens[None], mask[None], computed[:, None]):
            stored = Values(len(content), value.shape, value.dtype.str)
            content += np.ascontiguousarray(value).tobytes()
            tensors.append(TracedTensor(stored))
        at = len(tensors) - 3
        made = {"output": at + 2}
        given = {TOKENS: at, MASK: at + 1}
        calls += [
            TracedCall(1, 0, number, "", 0, 0, 3, -1, "m.py:1", given, made),
            TracedCall(1, 0, number, "block", 0, 1, 2, 2 * number, "m.py:2", {}, made),
        ]  # fmt: skip
        ends = tuple(np.cumsum([0, *lengths, *pack.filled]).tolist())
        batches.append(TracedBatch(1, 0, number, pack.ranks, tuple(pack.borders), ends, "zigzag"))
    place = Place(0, 0, data, 0, (1, 1, 2, 1), False)
    trace = RankTrace(
        rank, place, tuple(tensors), tuple(calls), tuple(batches), (), {"block": "b.py:1"},
        full=False, sharded=False, overlapped=False, per_token=True,
    )  # fmt: skip
    return RankRecord(trace, np.frombuffer(content, np.uint8))


SHARED = ((Pack((0, 1), (1, 0)),) * 2, (Pack((0,), (2,)), Pack((1,), (3,))))


def run(microbatches: Sequence[Sequence[Pack]] = SHARED) -> RunTrace:
    """Two ranks that share the first pack, and then have one each."""
    return RunTrace(tuple(
        recorded(rank, [packs[rank] for packs in microbatches], rank) for rank in range(2)
    ))  # fmt: skip


def alone(disturbed: float = 0.0, filled: tuple[int, ...] = ()) -> RunTrace:
    """One rank with other packs in another order, and no padding of sequences."""
    packs = [Pack((0,), (3, 2), 1), Pack((0,), (0, 1), 1, filled)]
    return RunTrace((recorded(0, packs, 0, disturbed),))


def found(record: RunTrace, told: Told = NOTHING) -> WrongPlace:
    return located(record, alone(), alone(1e-15), (1,), told)


def culprit(record: RunTrace, told: Told = NOTHING) -> Culprit:
    location = found(record, told)
    assert location.culprit is not None, location.reason
    return location.culprit


def changed(record: RunTrace, rank: int, tensor: int, row: int, value: float) -> RunTrace:
    """Write another value into a row of one tensor of a rank."""
    ranks = list(record.ranks)
    one = ranks[rank]
    data = one.data.copy()
    ranks[rank] = RankRecord(one.trace, data)
    held = ranks[rank].values(one.trace.tensors[tensor].value)
    held.reshape(-1, 2 if held.ndim == 3 else 1)[row] = value
    return RunTrace(tuple(ranks))


@pytest.mark.parametrize(("mine", "theirs"), [(True, True), (True, False), (False, True)])
def test_a_factor_is_wrong_where_both_sum_over_tokens(mine: bool, theirs: bool) -> None:
    def summing(record: RunTrace, sums: bool) -> RunTrace:
        ranks = (replace(one, trace=replace(one.trace, per_token=sums)) for one in record.ranks)
        return RunTrace(tuple(ranks))

    both = summing(run(), mine), summing(alone(), theirs)
    assert Runs(*both, both[1], "").per_token is (mine and theirs)


def test_every_row_is_the_same_token_of_the_reference() -> None:
    record, reference = run(), alone()
    matched = packed_rows(record, reference, 1)
    assert (matched.wrong, matched.missing) == ((), 0)
    seen = 0
    for rank in record.ranks:
        for number in range(2):
            rows = matched.rows(rank, 1, number)
            assert rows is not None
            tokens = rank.values(rank.trace.tensors[3 * number].value)[0]
            for row in np.flatnonzero(rows.source >= 0):
                source = rows.sources[rows.source[row]]
                theirs = reference.ranks[0].trace.tensors[3 * source.microbatch].value
                values = reference.ranks[0].values(theirs)[0]
                assert tokens[row] == values[rows.index[row]]
                assert (values[rows.index[row]] % 70 < 14) and rows.position[row] >= 0
                seen += 1
            assert not tokens[rows.source < 0].any()  # padding
    assert seen == sum(LENGTHS[:4])


def test_a_run_that_agrees_has_no_culprit_and_padding_is_not_compared() -> None:
    location = found(run())
    assert location.culprit is None and location.left_out == ()
    assert location.compared == 3 * 4  # three tensors of two microbatches on two ranks


def test_a_wrong_row_is_named_by_its_sequence_and_position() -> None:
    # Rank 1 has the middle of both sequences: rows 4 to 11 of 16, then 2 to 5 of 8.
    one = culprit(changed(run(), 1, 2, 9, 5.0))
    assert (one.phase, one.module, one.tensor) == ("forward", "block", "output")
    assert (one.ranks, one.microbatches) == ((1,), (0,))
    assert (one.samples, one.positions) == ((1,), ((3, 3),))


def test_a_row_of_padding_that_the_loss_counts_is_wrong_data() -> None:
    record = run()
    rows = packed_rows(record, alone(), 1).rows(record.ranks[0], 1, 0)
    assert rows is not None
    (row, *_) = np.flatnonzero(rows.source < 0)
    one = culprit(changed(run(), 0, 1, int(row), 1.0))
    assert (one.phase, one.tensor) == ("data", "input loss_mask")
    assert (one.samples, one.positions) == ((), ())
    assert found(changed(run(), 0, 2, int(row), 5.0)).culprit is None  # negative control


def test_padding_that_fills_a_pack_is_no_sequence() -> None:
    shared, second = Pack((0, 1), (1, 0), filled=(8,)), Pack((1,), (3,), filled=(4,))
    record = run([(shared, shared), (Pack((0,), (2,)), second)])
    location = located(record, alone(filled=(2,)), alone(1e-15, filled=(2,)), (1,), NOTHING)
    assert (location.culprit, location.compared) == (None, 3 * 4)
    # Rank 0 has the first two and the last two of the eight rows that fill the pack: 12 to 15.
    for tensor, value in ((1, 1.0), (0, 50)):  # the loss counts one, and one has another token
        one = culprit(changed(record, 0, tensor, 12, value))
        assert one.phase == "data" and one.tensor.startswith("sequences of 8 tokens")


def staged(record: RunTrace) -> RunTrace:
    """Let two pipeline stages run it: the first one has the tokens, the last one their mask."""
    ranks, count = [], len(record.ranks)
    for stage, name in enumerate((TOKENS, MASK)):
        for one in record.ranks:
            trace = one.trace
            place = replace(trace.place, pipeline=stage, sizes=(*trace.place.sizes[:3], 2))
            calls = tuple(
                replace(call, inputs={key: at for key, at in call.inputs.items() if key == name})
                for call in trace.calls
            )
            batches = tuple(
                replace(batch, ranks=tuple(rank + stage * count for rank in batch.ranks))
                for batch in trace.batches
            )
            number = trace.rank + stage * count
            trace = replace(trace, rank=number, place=place, calls=calls, batches=batches)
            ranks.append(replace(one, trace=trace))
    return RunTrace(tuple(ranks))


def test_padding_that_fills_a_pack_is_no_sequence_on_pipeline_stages() -> None:
    """The first stage is not given the mask that says so."""
    shared, second = Pack((0, 1), (1, 0), filled=(8,)), Pack((1,), (3,), filled=(4,))
    record = staged(run([(shared, shared), (Pack((0,), (2,)), second)]))
    references = [staged(alone(moved, filled=(2,))) for moved in (0.0, 1e-15)]
    location = located(record, *references, (1,), NOTHING)
    assert (location.culprit, location.compared) == (None, 4 * 4)
    wrong = located(changed(record, 2, 1, 12, 1.0), *references, (1,), NOTHING).culprit
    assert wrong is not None and wrong.phase == "data"  # the loss counts a row of them


def test_a_last_sequence_without_targets_is_not_missing() -> None:
    """It has one token, and is the last one of its pack in the run alone."""
    record = changed(run([(Pack((0,), (0, 4), 1), Pack((1,), (2,), 1))]), 0, 1, LENGTHS[0], 0.0)
    references = [
        changed(RunTrace((recorded(0, packs, 0, moved),)), 0, 1, 0, 0.0)
        for moved in (0.0, 1e-15)
        for packs in ([Pack((0,), (4, 0), 1), Pack((0,), (2,), 1)],)
    ]
    location = located(record, *references, (1,), NOTHING)
    assert (location.culprit, location.compared) == (None, 3 * 2)


def test_a_wrong_token_is_wrong_data() -> None:
    one = culprit(changed(run(), 0, 0, 0, 50))
    assert (one.phase, one.tensor, one.positions) == ("data", "input input_ids", ((0, 0),))


@pytest.mark.parametrize(
    ("packs", "said"),
    [
        ([SHARED[0], (Pack((0,), (2,)), Pack((1,), (2,)))],
         "sequences of 9 tokens that the reference has not as often; 1 are missing"),
        ([SHARED[0]], "all sequences are right; 2 are missing"),
        ([(Pack((0,), (1, 0)), Pack((1,), (1, 0))), SHARED[1]],
         "sequences of 13, 6 tokens that the reference has not as often; 0 are missing"),
    ],
    ids=["twice", "dropped", "group"],
)  # fmt: skip
def test_sequences_that_are_not_those_of_the_reference_are_wrong_data(
    packs: Sequence[Sequence[Pack]], said: str
) -> None:
    one = culprit(run(packs))
    assert (one.phase, one.module, one.tensor) == ("data", "", said)


def without_lengths(record: RunTrace) -> RunTrace:
    """A data set that does not say where the padding of its sequences begins."""
    ranks = []
    for rank in record.ranks:
        batches = tuple(replace(one, tokens=one.borders) for one in rank.trace.batches)
        ranks.append(replace(rank, trace=replace(rank.trace, batches=batches)))
    return RunTrace(tuple(ranks))


def test_padding_of_unknown_length_is_that_which_the_reference_lacks() -> None:
    record = without_lengths(run())
    assert (found(record).culprit, found(record).compared) == (None, 3 * 4)
    # Rank 1 has the middle of both sequences: rows 4 to 11 of 16, then 2 to 5 of 8.
    one = culprit(changed(record, 1, 2, 9, 5.0))
    assert (one.module, one.samples, one.positions) == ("block", (1,), ((3, 3),))
    # Rank 0 has the padding of the first sequence, after rows 0 to 3 and 12.
    counted = culprit(changed(record, 0, 1, 6, 1.0))
    assert (counted.phase, counted.tensor) == ("data", "input loss_mask")


def test_what_differs_from_the_rest_of_the_padding_is_wrong_data() -> None:
    one = culprit(changed(without_lengths(run()), 0, 0, 6, 50))
    said = "sequences of 16 tokens that the reference has not as often; 1 are missing"
    assert (one.phase, one.tensor) == ("data", said)


def test_a_run_that_ends_outside_of_all_modules_does_not_agree() -> None:
    location = found(run(), replace(NOTHING, failure=Failure("raised", 0, "KeyError: 4", "p.py:5")))
    assert location.culprit is None
    assert location.reason == (
        "the run ends outside of all modules that are traced at p.py:5: KeyError: 4; the last "
        "tensor that was recorded is the output of block in step 1, microbatch 1"
    )


def test_ranks_that_share_a_pack_and_disagree_are_wrong_data() -> None:
    record = run(((SHARED[0][0], Pack((0, 1), (0, 1))), SHARED[1]))
    one = culprit(record)
    assert one.phase == "data" and one.tensor.startswith("borders of sequences")
    assert (one.microbatches, one.ranks) == ((0,), (1,))


def with_angles(record: RunTrace, wrong: int = -1) -> RunTrace:
    """Give the block an angle for each position of the longest sequence that the rank has.

    Args:
        wrong: The rank whose positions begin at 1.
    """
    ranks = []
    for one in record.ranks:
        tensors, calls, data = list(one.trace.tensors), list(one.trace.calls), [one.data]
        for at in range(1, len(calls), 2):
            borders = one.trace.batches[at // 2].borders
            angles = np.arange(np.diff(borders).max(), dtype=np.float32)[:, None, None, None]
            angles += one.trace.rank == wrong
            stored = Values(sum(map(len, data)), angles.shape, angles.dtype.str)
            data.append(np.frombuffer(angles.tobytes(), np.uint8))
            calls[at] = replace(calls[at], inputs={"rotary_pos_emb": len(tensors)})
            tensors.append(TracedTensor(stored))
        trace = replace(one.trace, tensors=tuple(tensors), calls=tuple(calls))
        ranks.append(RankRecord(trace, np.concatenate(data)))
    return RunTrace(tuple(ranks))


@pytest.mark.parametrize("wrong", [-1, 1])
def test_angles_are_those_of_their_positions(wrong: int) -> None:
    """Each rank has those of all positions, as many as its longest sequence has."""
    references = (with_angles(alone()), with_angles(alone(1e-15)))
    place = located(with_angles(run(), wrong), *references, (1,), NOTHING)
    assert place.left_out == ()
    assert (place.culprit is not None) is (wrong >= 0)
    if place.culprit is not None:
        assert place.culprit.tensor.startswith("input rotary_pos_emb, ")
        assert (place.culprit.ranks, place.culprit.positions) == ((wrong,), ((0, 12),))


def test_a_run_that_ends_inside_of_a_module_is_located_there() -> None:
    record = run()
    ranks = list(record.ranks)
    trace = ranks[1].trace
    calls = [replace(call, left=-1, outputs={}) for call in trace.calls[:2]]
    ranks[1] = replace(ranks[1], trace=replace(trace, calls=tuple(calls), ended=False))
    told = replace(NOTHING, failure=Failure("raised", 1, "ValueError: no\nmore", "te.py:5"))
    one = culprit(RunTrace(tuple(ranks)), told)
    assert (one.phase, one.module, one.ranks) == ("forward", "block", (1,))
    assert (one.computed_at, one.called_from) == ("te.py:5", "m.py:2")
    said = saying.sentence(WrongPlace(one, ""))
    assert said.startswith("block is wrong in the forward in step 1, microbatch 0, on rank 1: ")
    assert "no output, but an error (ValueError: no)" in said
    assert found(RunTrace(tuple(ranks))).culprit is None  # nothing is wrong without the failure


def test_a_norm_is_named_where_all_gradients_agree() -> None:
    one = culprit(run(), replace(NOTHING, norms={1: (2.0, 3.0, 3.0)}))
    assert (one.phase, one.step, one.ranks) == ("norm", 1, (0, 1))
    assert one.error == pytest.approx(1 / 3)
    assert found(run(), replace(NOTHING, norms={1: (3.0, 3.0, 3.0)})).culprit is None
