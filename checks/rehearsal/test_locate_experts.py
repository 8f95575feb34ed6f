"""Gradients of experts that ranks of an EP group hold, from traces made up here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from checks.rehearsal.test_locate import WIDTH, one_rank, run
from ringproof.rehearsal.locate.locating import located
from ringproof.rehearsal.locate.reading import RankRecord, RunTrace
from ringproof.rehearsal.locate.result import WrongPlace
from ringproof.rehearsal.protocol.trace import REDUCED

NAMES = {"weight": "block.mlp.experts.linear_fc1.weight0", "bias": "block.mlp.experts.{}"}


def dealt(record: RunTrace, last: str) -> RunTrace:
    """Let the first rank hold the first expert alone, and the last rank the second one."""
    ranks = []
    for one in record.ranks:
        number, size = one.trace.rank, len(record.ranks)
        held = tuple(
            replace(parameter, name=NAMES[kind].format(last))
            for parameter in one.trace.parameters
            for kind in (parameter.name.rpartition(".")[2],)
            if size == 1 or (kind == "bias") is (number == 1)
        )
        trace = replace(one.trace, overlapped=True, parameters=held)
        ranks.append(RankRecord(trace, one.data))
    return RunTrace(tuple(ranks))


def found(second: float, last: str = "linear_fc1.weight1") -> WrongPlace:
    """Return what is wrong where the gradient of the second expert has a factor."""
    ranks = run().ranks[0], run(reduced=second).ranks[1]
    references = (dealt(one_rank(off), last) for off in (0.0, 1e-15))
    return located(dealt(RunTrace(ranks), last), *references, (1,))


@pytest.mark.parametrize("last", ["linear_fc1.weight1", "local_experts.1.weight"])
def test_an_expert_is_compared_with_itself_on_whichever_rank_it_is(last: str) -> None:
    assert found(1.0, last).culprit is None
    place = found(2.0, last)
    assert place.culprit is not None
    module, _, name = f"block.mlp.experts.{last}".rpartition(".")
    said = (place.culprit.phase, place.culprit.module, place.culprit.tensor, place.culprit.ranks)
    assert said == ("gradient", module, f"gradient of {name}", (1,))
    assert place.culprit.factor == "all values are multiplied by 2 (CP)"
    assert not any("experts" in what for what, _ in place.left_out)


def test_experts_without_a_number_are_listed() -> None:
    place = found(2.0, "weight")
    assert place.culprit is None
    lost = "gradients of parameters without a counterpart, such as block.mlp.experts.weight"
    assert (lost, 1) in place.left_out


def test_a_part_of_another_size_is_listed_where_only_reduced_gradients_are_known() -> None:
    """FSDP has no gradients before their reduction."""

    def only_reduced(record: RunTrace, *, other: bool) -> RunTrace:
        ranks = []
        for one in dealt(record, "linear_fc1.weight1").ranks:
            held = [p for p in one.trace.parameters if p.kind == REDUCED]
            held = [
                replace(p, value=replace(p.value, shape=(WIDTH - 1,)))
                if other and p.name.endswith("weight1") else p
                for p in held
            ]  # fmt: skip
            ranks.append(RankRecord(replace(one.trace, parameters=tuple(held)), one.data))
        return RunTrace(tuple(ranks))

    references = (only_reduced(one_rank(off), other=True) for off in (0.0, 1e-15))
    place = located(only_reduced(run(), other=False), *references, (1,))
    lost = "gradients of parameters without a counterpart, such as block.mlp.experts.linear_fc1"
    assert place.culprit is None
    assert (f"{lost}.weight1", 1) in place.left_out
