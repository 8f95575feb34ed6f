"""Faults of sums: something is added up too often, not at all, or divided."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

from ringproof.reference.training import gradients, sharded
from ringproof.reference.training.gradients import ReductionGroups
from smoke.faults.seams import Parameters, Site, reduced


def summed_twice(site: Site) -> Any:
    def again(parameters: Parameters, groups: ReductionGroups) -> None:
        gradients.sum_in_place([p.gradient for p in parameters], groups.domain)

    return reduced(after=again)


def mean_over_domain(site: Site) -> Any:
    def divide(parameters: Parameters, groups: ReductionGroups) -> None:
        for parameter in parameters:
            parameter.gradient.div_(groups.domain.size())

    return reduced(after=divide)


def own_gradients_only(site: Site) -> Any:
    return mock.patch.object(gradients, "sum_in_place", lambda tensors, group: None)


def partial_not_summed(site: Site) -> Any:
    return reduced(lambda parameters: _of_kind(parameters, partial_over_tensor_parallel=False))


def shared_not_summed(site: Site) -> Any:
    return reduced(lambda parameters: _of_kind(parameters, shared=False))


def _of_kind(parameters: Parameters, **fields: Any) -> Parameters:
    return tuple(replace(p, kind=replace(p.kind, **fields)) for p in parameters)


def norm_counts_copies(site: Site) -> Any:
    return mock.patch.object(gradients, "_counts", lambda parameter, groups: True)


def fsdp_takes_the_mean(site: Site) -> Any:
    return mock.patch.object(sharded, "_sum_gradients")
