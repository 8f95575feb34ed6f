"""What is said of a wrong gradient besides its module, from traces that are made up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from checks.rehearsal.test_locate import TENSORS, add, found, one_rank, run
from ringproof.rehearsal.locate import saying
from ringproof.rehearsal.locate.locating import located
from ringproof.rehearsal.locate.reading import Array, RankRecord, RunTrace
from ringproof.rehearsal.protocol.trace import (
    APPLIED,
    GRADIENTS,
    LOSS,
    LOSS_CALLER,
    SCALING,
    TracedCall,
)

PLACES = {LOSS: "loss.py:1", LOSS_CALLER: "call.py:2", SCALING: "ddp.py:3", GRADIENTS: "end.py:4"}
ATTENTION = "block.attention"


def placed(record: RunTrace) -> RunTrace:
    """Say where the functions are that can scale all gradients."""
    ranks = (
        RankRecord(replace(one.trace, forwards={**one.trace.forwards, **PLACES}), one.data)
        for one in record.ranks
    )
    return RunTrace(tuple(ranks))


@pytest.mark.parametrize(
    ("scale", "phase", "at"), [(1.0, "loss", "loss.py:1"), (2.0, "scale", "end.py:4")]
)
def test_a_common_factor_is_the_losss_if_it_enters_the_backward(
    scale: float, phase: str, at: str
) -> None:
    one = found(placed(run(scale=scale, reduced=0.5))).culprit
    assert one is not None and (one.phase, one.module, one.computed_at) == (phase, "", at)
    assert one.factor == (
        "all values are multiplied by 0.5 (1/CP); what can scale all gradients, in the order of "
        "execution: loss.py:1 (the loss function), call.py:2 (its caller), ddp.py:3 (data "
        "parallelism), end.py:4 (the end of the reduction)"
    )
    assert ("1 times that of the reference where this layout needs 2" in one.tensor) is (
        phase == "loss"
    )


def test_the_line_of_a_loss_is_that_of_its_function() -> None:
    def lose(values: dict[str, Array]) -> None:
        values["~loss"] = values["~loss"] * np.linspace(0.5, 1.5, values["~loss"].shape[-1])

    one = found(placed(run((0, lose)))).culprit
    assert one is not None and (one.phase, one.computed_at) == ("loss", "loss.py:1")


def applying(record: RunTrace) -> RunTrace:
    """Let attention be given a key, and apply a function of autograd twice."""
    at = {name: index for index, name in enumerate(TENSORS)}
    ranks = []
    for one in record.ranks:
        *others, attention = one.trace.calls
        inputs = {"query": at["query"], "key": at["embedded"]}
        applied = (
            TracedCall(
                1, 0, 0, f"{ATTENTION}{APPLIED}Scale", number, 5, 5, 3, f"a.py:{number}",
                {"0": at[given]}, {"0": at[made]}, )
            for number, (given, made) in enumerate((("query", "attended"), ("attended", "loss")))
        )  # fmt: skip
        calls = (*others, replace(attention, inputs=inputs), *applied)
        # Both have the same backward, so that it does not tell them apart.
        made_by = one.trace.tensors[at["attended"]].made_by
        tensors = tuple(replace(tensor, made_by=made_by) for tensor in one.trace.tensors)
        ranks.append(RankRecord(replace(one.trace, calls=calls, tensors=tensors), one.data))
    return RunTrace(tuple(ranks))


def test_the_application_of_a_function_of_autograd_is_named() -> None:
    references = [applying(one_rank(off)) for off in (0.0, 1e-15)]
    place = located(applying(run((1, add("~query", 0.5)))), *references, (1,))
    one = place.culprit
    assert one is not None and (one.phase, one.module) == ("backward", ATTENTION)
    assert one.applied_at == "a.py:0 (application 1 of 2 in the module)"
    said = "computed at te.py:9, applied in the forward at a.py:0 (application 1 of 2 in the "
    assert saying.places(place).startswith(said)
    assert one.tensor == "gradient of input query"
    assert place.errors is not None and not any(APPLIED in name for name in place.errors.modules)


def test_all_wrong_gradients_of_a_module_are_listed() -> None:
    def scaled(values: dict[str, np.ndarray]) -> None:  # type: ignore[type-arg]
        for name in ("~query", "~embedded"):
            values[name] = values[name] + 0.5

    references = [applying(one_rank(off)) for off in (0.0, 1e-15)]
    one = located(applying(run((1, scaled))), *references, (1,)).culprit
    assert one is not None and one.module == ATTENTION
    assert one.tensor == "gradient of input query, gradient of input key"
