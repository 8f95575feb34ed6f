"""What is wrong beside the first culprit, from traces that are made up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from checks.rehearsal.test_locate import add, one_rank, run
from ringproof.rehearsal.locate import saying
from ringproof.rehearsal.locate.locating import located
from ringproof.rehearsal.locate.reading import RankRecord, RunTrace
from ringproof.rehearsal.locate.result import WrongPlace
from ringproof.rehearsal.protocol.trace import TracedTensor, Values


def moved(stored: Values, by: int) -> Values:
    return replace(stored, offset=stored.offset + by)


def after(first: RankRecord, second: RankRecord) -> RankRecord:
    """One step of two microbatches, of which each record has one."""
    one, two = first.trace, second.trace
    size, count, calls = first.data.nbytes, len(one.tensors), len(one.calls)

    def tensor(held: TracedTensor) -> TracedTensor:
        gradient = held.gradient and moved(held.gradient, size)
        return replace(held, value=moved(held.value, size), gradient=gradient)

    trace = replace(
        one,
        tensors=(*one.tensors, *map(tensor, two.tensors)),
        calls=(*one.calls, *(
            replace(
                call, microbatch=1, parent=call.parent + calls if call.parent >= 0 else -1,
                inputs={name: at + count for name, at in call.inputs.items()},
                outputs={name: at + count for name, at in call.outputs.items()},
            )
            for call in two.calls
        )),
        batches=(*one.batches, *(replace(batch, microbatch=1) for batch in two.batches)),
    )  # fmt: skip
    return RankRecord(trace, np.concatenate([first.data, second.data]))


def twice(first: RunTrace, second: RunTrace) -> RunTrace:
    return RunTrace(tuple(after(*both) for both in zip(first.ranks, second.ranks, strict=True)))


def found(record: RunTrace) -> WrongPlace:
    two = len(record.ranks[0].trace.batches) > 1
    whole, disturbed = one_rank(), one_rank(1e-15)
    if two:
        whole, disturbed = twice(whole, whole), twice(disturbed, disturbed)
    return located(record, whole, disturbed, (1,))


def named(place: WrongPlace) -> list[tuple[str, str, tuple[int, ...], tuple[int, ...]]]:
    every = (*filter(None, [place.culprit]), *place.others)
    return [(one.phase, one.module, one.microbatches, one.ranks) for one in every]


def test_a_call_with_right_inputs_is_another_culprit() -> None:
    place = found(run((0, add("embedded", 0.5)), (1, add("attended", 0.5))))
    assert named(place) == [
        ("forward", "embedding", (0,), (0,)), ("forward", "block.attention", (0,), (1,)),
    ]  # fmt: skip
    said = [line for line in saying.lines(place) if line.startswith("independent of it: ")]
    assert len(said) == 1 and "block.attention is wrong in the forward of step 1" not in said[0]
    assert said[0].startswith("independent of it: block.attention is wrong in the forward in step")


def test_what_another_rank_may_have_caused_is_no_other_culprit() -> None:
    changes = ((0, add("embedded", 0.5)), (0, add("query", 0.5)), (1, add("attended", 0.5)))
    assert named(found(run(*changes))) == [("forward", "embedding", (0,), (0,))]


def test_one_defect_is_one_culprit() -> None:
    for name, module in (("embedded", "embedding"), ("attended", "block.attention")):
        place = found(run((0, add(name, 0.5)), (1, add("loss", 0.5, 0))))
        assert named(place) == [("forward", module, (0,), (0,))]


def test_each_microbatch_has_a_first_culprit() -> None:
    forward, backward = run((1, add("attended", 0.5))), run((1, add("~embedded", 0.5)))
    place = found(twice(forward, backward))
    assert [one[:3] for one in named(place)] == [
        ("forward", "block.attention", (0,)), ("backward", "block", (1,)),
    ]  # fmt: skip
    assert named(found(twice(run(), run()))) == []
    # The same module in another microbatch belongs to the first culprit.
    assert [one[:2] for one in named(found(twice(forward, forward)))] == [
        ("forward", "block.attention")
    ]
