"""What goes wrong on purpose in the proofs of training: the negative controls."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from unittest import mock

import torch.distributed as dist
from torch.nn import functional

from ringproof.reference.training import gradients, pipeline, sharded


@contextmanager
def broken(fault: str) -> Iterator[None]:
    """Something in the stages that is not as it should be, for a while."""
    batch, pad = pipeline.StepState.batch, functional.pad
    with ExitStack() as changes:
        if fault == "stale-batch":  # only the last stage of two looks at labels
            changes.enter_context(
                mock.patch.object(
                    pipeline.StepState, "batch", lambda self, index: batch(self, max(0, index - 1))
                )
            )
        if fault == "poisoned-padding":
            changes.enter_context(
                mock.patch.object(
                    pipeline.functional, "pad", lambda x, widths: pad(x, widths, value=math.nan)
                )
            )
        if fault == "fsdp-mean":
            changes.enter_context(mock.patch.object(sharded, "_sum_gradients"))
        if fault == "reduced-every-time":
            changes.enter_context(
                mock.patch.object(sharded, "reduce_with_last", lambda call: lambda last: None)
            )
        yield


def faulty(
    parameters: tuple[gradients.TrainedParameter, ...], fault: str
) -> tuple[gradients.TrainedParameter, ...]:
    """Parameters whose kinds are wrong, as a mistake in a model would have them."""
    if fault == "partial-forgotten":
        return tuple(
            replace(p, kind=replace(p.kind, partial_over_tensor_parallel=False)) for p in parameters
        )
    if fault == "replicated-counted-again":  # each TP rank's copy enters the norm
        return tuple(replace(p, kind=replace(p.kind, split=p.kind.split or 0)) for p in parameters)
    if fault == "embedding-forgotten":
        return tuple(replace(p, kind=replace(p.kind, shared=False)) for p in parameters)
    return parameters


def before_reduction(
    parameters: Sequence[gradients.TrainedParameter], fault: str, microbatches: int
) -> None:
    """Wrong in the gradients before they are reduced."""
    if fault == "mean-of-microbatches":
        for p in parameters:
            p.gradient.div_(microbatches)


def after_reduction(
    parameters: Sequence[gradients.TrainedParameter], fault: str, domain: dist.ProcessGroup
) -> None:
    """Wrong in the gradients after they are reduced."""
    tensors = [p.gradient for p in parameters]
    if fault == "summed-twice":
        gradients.sum_in_place(tensors, domain)
    if fault == "mean-over-domain":
        for tensor in tensors:
            tensor.div_(domain.size())
