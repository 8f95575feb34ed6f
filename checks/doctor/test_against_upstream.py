"""The rules about refusals, held against upstream's own argument checks on random launches."""

from __future__ import annotations

import pytest

from checks.doctor.random_launches import random_launches
from checks.doctor.upstream_lines import COMMITS, stack_at, upstream_at
from ringproof.doctor.examine import examine
from ringproof.doctor.reading import of_launch
from ringproof.doctor.rule import Effect

LAUNCHES = 500
ASKING = "checks.doctor.asking:answers"
BEYOND = (
    "Number of layers should be divisible", "num_attention_heads (", "num_query_groups (",
    "When interleaved schedule is used", "Group query attention is mutually exclusive",
    "Bias in Moe is only supported", "fsdp_dtensor", "requires CUDA_DEVICE_MAX_CONNECTIONS",
    "eval_global_batch_size (", "--step-batch-size-schedule",
    "Do not use --enable-cuda-graph",
)  # fmt: skip
"""What upstream refuses beside context parallelism, and no rule repeats."""


@pytest.fixture(scope="module", params=COMMITS)
def asked(request, stage):
    upstream, lines = upstream_at(stage, request.param), stack_at(request.param)
    launches = list(random_launches(LAUNCHES, 7))
    asked = [{"arguments": one.arguments, "world": one.ranks, "environment": dict(one.environment)}
             for one in launches]  # fmt: skip
    return lines, launches, stage.call(ASKING, 1, asked, upstream=upstream)[0]


def refusals(launch, lines):
    found = examine(of_launch(launch), lines).findings
    return [finding.rule for finding in found if finding.effect is Effect.REFUSED]


def test_what_upstream_refuses_is_refused_and_nothing_else(asked):
    lines, launches, said = asked
    refused = sum(answer is not None for answer in said)
    assert len(launches) / 4 < refused < len(launches)
    for one, answer in zip(launches, said, strict=True):
        rules = refusals(one, lines)
        if answer is None:
            assert not rules, (one, [rule.name for rule in rules])
        else:
            known = (*(rule.message for rule in rules), *BEYOND)
            assert any(message in answer for message in known), (one, answer)
    told = [one for one, answer in zip(launches, said, strict=True)
            if answer is not None and refusals(one, lines)]  # fmt: skip
    assert len(told) > refused / 2, "most of what is refused is about CP, and has a rule"


def test_a_line_that_is_not_this_one_disagrees(asked):
    """The control: the rules of another line are wrong here."""
    lines, launches, said = asked
    other = "main" if "dynamic-v1" in lines.lines else "dev"
    wrong = stack_at(other)
    assert any(answer is None and refusals(one, wrong)
               for one, answer in zip(launches, said, strict=True))  # fmt: skip
