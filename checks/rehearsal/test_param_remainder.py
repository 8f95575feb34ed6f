"""The Adam kernel that keeps float32 parameters as bfloat16 and a rest of 16 bits."""

from __future__ import annotations

import torch

from ringproof.rehearsal.standins import kernels


def _whole(parameter: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
    """The float32 numbers of rounded bfloat16 parameters and their rests."""
    high = parameter.view(torch.int16).int() - (rest < 0).int()
    return ((high << 16) + (rest.int() & 0xFFFF)).view(torch.float32)


def test_the_two_halves_are_the_float32_parameters_in_every_bit() -> None:
    """As the kernel on float32 parameters does it, whose rounding to bfloat16 is to the nearest."""
    generator = torch.Generator().manual_seed(1)
    exact = torch.randn(4096, generator=generator)
    parameter = exact.bfloat16()
    rest = (exact.view(torch.int32) & 0xFFFF).to(torch.int16)
    parameter.view(torch.int16).copy_((exact.view(torch.int32) >> 16) + (rest < 0).int())
    assert torch.equal(_whole(parameter, rest), exact)
    moments = [[torch.zeros(4096)] for _ in range(4)]
    settings = (1e-3, 0.9, 0.95, 1e-8, 1, 1, 1, 0.1)
    for step in range(1, 4):
        gradient = torch.randn(4096, generator=generator)
        given = (*settings[:4], step, *settings[5:])
        overflow = torch.zeros(1, dtype=torch.int32)
        lists = [[gradient], [parameter], *moments[:2], [rest]]
        kernels.multi_tensor_adam_param_remainder(2048, overflow, lists, *given)
        kernels.multi_tensor_adam(2048, overflow, [[gradient], [exact], *moments[2:]], *given)
    assert torch.equal(_whole(parameter, rest), exact)
    assert not torch.equal(parameter.float(), exact)
    # Halves round up here, and to even in torch.
    assert (parameter.float() - exact).abs().max() <= (exact.bfloat16().float() - exact).abs().max()
