"""What the stand-in of NCCL notices about tensors that are being sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
from ringproof.rehearsal.standins import communication  # noqa: E402 - needs torch
from ringproof.rehearsal.standins.communication import SentTensor  # noqa: E402


def _release(tensor: torch.Tensor) -> None:
    tensor.data = torch.empty(1)


@pytest.mark.parametrize(("change", "found"), [
    (_release, ["released"]), (torch.Tensor.zero_, ["overwritten"]), (torch.Tensor.sum, []),
])  # fmt: skip
def test_what_happens_to_a_tensor_during_its_send(
    change: Callable[[torch.Tensor], object], found: list[str]
) -> None:
    races: Counter[tuple[str, str, str]] = Counter()
    tensor = torch.arange(4.0)
    sent = SentTensor(tensor, races)
    memory = sent._memory
    change(tensor)
    sent.end()
    assert [kind for kind, _, _ in races] == found
    assert found != ["released"] or torch.equal(memory, torch.arange(4.0))


def _gather(outputs: list[torch.Tensor], tensor: torch.Tensor, **_: object) -> None:
    """Gather among ranks that all have the same, as gloo does: tensors of one shape only."""
    assert {one.shape for one in outputs} == {tensor.shape}
    for one in outputs:
        one.copy_(tensor)


def _scatter(output: torch.Tensor, inputs: list[torch.Tensor], **_: object) -> None:
    assert {one.shape for one in inputs} == {output.shape}
    output.copy_(inputs[1])


def test_tensors_of_different_lengths_are_gathered_and_scattered() -> None:
    outputs = [torch.zeros(3, 2), torch.zeros(5, 2)]
    given = {"tensor_list": outputs, "tensor": torch.ones(3, 2), "group": None}
    assert not communication._even("all_gather", given)
    communication._padded("all_gather", given, _gather)
    assert outputs[0].eq(1).all() and outputs[1].sum() == 6  # the padding is zero
    inputs = [torch.zeros(5, 2), torch.ones(3, 2)]
    mine = {"output": torch.zeros(3, 2), "input_list": inputs}
    communication._padded("reduce_scatter", mine, _scatter)
    assert mine["output"].eq(1).all()
    assert communication._even("all_gather", {"tensor_list": [torch.zeros(2)] * 2})
