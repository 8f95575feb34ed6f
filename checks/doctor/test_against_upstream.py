"""The rules about refusals, held against upstream's own argument checks on random launches."""

from __future__ import annotations

import pytest

from checks.doctor.random_launches import random_launches
from checks.doctor.upstream_lines import COMMITS, stack_at, upstream_at
from ringproof.doctor.examine import examine
from ringproof.doctor.reading import of_launch
from ringproof.doctor.refused import REFUSED
from ringproof.doctor.rule import Effect

LAUNCHES = 500
ASKING = "checks.doctor.asking:answers"


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


def due(launch, lines, answer):
    """Rules of this line that name the message with which upstream refuses a launch."""
    facts = examine(of_launch(launch), lines).facts
    return [rule for rule in REFUSED if rule.effect_on(facts)
            and (rule.message in answer if rule.message else not answer)]  # fmt: skip


def disagree(launch, answer, lines, rules):
    """Whether rules refuse what upstream accepts, or none names its message and one should."""
    if answer is None:
        return bool(rules)
    named = due(launch, lines, answer)
    return bool(named) and not set(named) & set(rules)


def test_what_upstream_refuses_with_the_message_of_a_rule_is_refused_and_nothing_else(asked):
    lines, launches, said = asked
    refused = [pair for pair in zip(launches, said, strict=True) if pair[1] is not None]
    assert len(launches) / 4 < len(refused) < len(launches)
    for one, answer in zip(launches, said, strict=True):
        rules = refusals(one, lines)
        assert not disagree(one, answer, lines, rules), (one, answer, [rule.name for rule in rules])
    told = [one for one, answer in refused if due(one, lines, answer)]
    assert len(told) > len(refused) / 6, "much of what is refused about CP has a rule"


def test_a_line_that_is_not_this_one_disagrees(asked):
    """The control: the rules of another line are wrong here."""
    lines, launches, said = asked
    other = "main" if "dynamic-v1" in lines.lines else "dev"
    wrong = stack_at(other)
    assert any(disagree(one, answer, lines, refusals(one, wrong))
               for one, answer in zip(launches, said, strict=True))  # fmt: skip
