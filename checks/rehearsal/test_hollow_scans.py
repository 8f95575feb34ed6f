"""What Mamba's kernels keep at full size, against the same kernels that compute."""

from __future__ import annotations

from typing import Any

import torch

from ringproof.rehearsal.hollow.ledger import Ledger
from ringproof.rehearsal.hollow.mode import HollowMode
from ringproof.rehearsal.hollow.state_space import SCANS
from ringproof.rehearsal.hollow.storages import Storages
from ringproof.rehearsal.standins.state_space import COMPUTING

BATCH, TOKENS, HEADS, WIDTH, GROUPS, STATE, CHUNK = 2, 64, 4, 8, 2, 16, 16
INNER = HEADS * WIDTH
MIXED = INNER + 2 * GROUPS * STATE


def needed(*size: int) -> torch.Tensor:
    return torch.rand(size, requires_grad=True)


def calls() -> dict[str, tuple[tuple[Any, ...], dict[str, Any]]]:
    """Arguments of each kernel."""
    steps, decay, skip = needed(HEADS), needed(HEADS), needed(HEADS)
    return {
        "causal_conv1d_fn": ((needed(BATCH, MIXED, TOKENS), needed(MIXED, 4), needed(MIXED)), {}),
        "mamba_chunk_scan_combined": ((
            needed(BATCH, TOKENS, HEADS, WIDTH), needed(BATCH, TOKENS, HEADS), decay,
            needed(BATCH, TOKENS, GROUPS, STATE), needed(BATCH, TOKENS, GROUPS, STATE), CHUNK,
        ), {}),
        "mamba_split_conv1d_scan_combined": ((
            needed(BATCH, TOKENS, INNER + MIXED + HEADS), needed(MIXED, 4), needed(MIXED),
            steps, decay, skip, CHUNK,
        ), {"headdim": WIDTH, "ngroups": GROUPS}),
        "gated_norm": ((
            needed(BATCH, TOKENS, INNER), needed(BATCH, TOKENS, INNER), needed(INNER), WIDTH,
        ), {"eps": 1e-5, "norm_before_gate": False}),
    }  # fmt: skip


def test_outputs_and_gradients_have_the_shapes_of_the_kernels_that_compute() -> None:
    assert SCANS.keys() == COMPUTING.keys() == calls().keys()
    for name, (given, named) in calls().items():
        outs = [kernels[name](*given, **named) for kernels in (COMPUTING, SCANS)]
        assert outs[0].shape == outs[1].shape and outs[0].dtype == outs[1].dtype, name
        tensors = [x for x in given if isinstance(x, torch.Tensor)]
        for out in outs:
            gradients = torch.autograd.grad(out.sum(), tensors)
            assert [g.shape for g in gradients] == [x.shape for x in tensors], name


def test_a_layer_keeps_its_output_before_the_gate_and_nothing_quadratic() -> None:
    given, named = calls()["mamba_split_conv1d_scan_combined"]
    storages = Storages(Ledger())
    with HollowMode(storages), storages.wanted():
        out = SCANS["mamba_split_conv1d_scan_combined"](*given, **named)
        assert storages.ledger.bytes == 2 * out.nbytes == 2 * 4 * BATCH * TOKENS * INNER
        del out
        assert storages.ledger.bytes == 0
