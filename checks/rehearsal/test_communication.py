"""What the stand-in of NCCL notices about tensors that are being sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
from ringproof.rehearsal.standins.communication import SentTensor  # noqa: E402 - needs torch


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
