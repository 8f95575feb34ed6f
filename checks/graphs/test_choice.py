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


def test_unknown() -> None:
    with pytest.raises(InputError, match="--graph-backend: unknown"):
        choose_backend("vulkan", CPU)


def test_the_tape_is_for_the_cpu() -> None:
    with pytest.raises(InputError, match="the model is on cuda"):
        choose_backend("tape", GPU)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu() -> None:
    assert choose_backend("auto", GPU).name == choose_backend("cuda", GPU).name == "cuda"
    with pytest.raises(InputError, match="the model is on cpu"):
        choose_backend("cuda", CPU)
