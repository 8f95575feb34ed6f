"""Which backend is used where."""

from __future__ import annotations

import pytest
import torch

from ringproof.errors import InputError
from ringproof.harness.tape.backend import TapeBackend, choose_backend

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def test_the_tape_on_a_cpu() -> None:
    assert choose_backend("auto", CPU) == choose_backend("tape", CPU) == TapeBackend()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", ["cuda", "transformer-engine"])
@pytest.mark.parametrize("device", [CPU, GPU])
def test_no_gpu(name: str, device: torch.device) -> None:
    with pytest.raises(
        InputError, match=rf"--graph-backend: there is no GPU here \(got {name}\); "
    ):
        choose_backend(name, device)


@pytest.mark.parametrize(
    ("name", "device", "said"),
    [("vulkan", CPU, "--graph-backend: unknown"), ("tape", GPU, "the model is on cuda")],
)
def test_what_is_refused_anywhere(name: str, device: torch.device, said: str) -> None:
    with pytest.raises(InputError, match=said):
        choose_backend(name, device)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu() -> None:
    assert choose_backend("auto", GPU).name == choose_backend("cuda", GPU).name == "cuda"
    with pytest.raises(InputError, match="the model is on cpu"):
        choose_backend("cuda", CPU)
