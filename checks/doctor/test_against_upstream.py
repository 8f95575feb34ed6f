"""The rules about refusals, held against upstream's own argument checks on random launches."""

from __future__ import annotations

import pytest

from checks.doctor.random_launches import random_launches
from checks.skills.shared import REPOSITORY
from ringproof.doctor.examine import examine
from ringproof.doctor.lines import load_cards, stack_named
from ringproof.doctor.reading import of_launch
from ringproof.doctor.rules import Effect
from ringproof.rehearsal.launch.reading import Launch

LAUNCHES = 500
COMMITS = {
    "dev": "d48bd6be0a85cc0d6d3cc71e8750cf357cc6bdb1",
    "main": "d98e8a64ddf34856e74b24714e3bedb2f5a39553",
    "r0.19": "f8837c04ef6cbef6cdefb8de001aad63178aebbf",
    "release": "55ac7082517c3878ae653c07c09c534b8aed49f6",
    "pr5618": "292388f6e432fe8228a79eeccd86290552f032ea",
    "pr6479": "986bf457874162909e1ee3ef1b59062b97fa44d5",
}
ASKING = "ringproof.rehearsal.rank.asking:answers"


def settings_of(one):
    launch = Launch("pretrain_gpt.py", one.arguments, one.environment, 1, one.world, "random")
    return of_launch(launch)


@pytest.fixture(scope="module", params=COMMITS)
def asked(request, stage):
    if request.param == "release":
        pytest.importorskip("six", reason="0.16.1's program imports it: pip install six regex")
        pytest.importorskip("regex", reason="0.16.1's program imports it: pip install six regex")
    upstream = stage.upstream(f"NVIDIA/Megatron-LM@{COMMITS[request.param]}")
    lines = stack_named(request.param, load_cards(REPOSITORY / "skills"), "--line")
    launches = list(random_launches(LAUNCHES, 7))
    said = stage.call(
        ASKING,
        1,
        [
            {"arguments": one.arguments, "world": one.world, "environment": dict(one.environment)}
            for one in launches
        ],
        upstream=upstream,
    )[0]
    return lines, launches, said


def refusals(settings, lines):
    found = examine(settings, lines).findings
    return [finding.rule for finding in found if finding.effect is Effect.REFUSED]


def test_what_upstream_refuses_is_refused_and_nothing_else(asked):
    lines, launches, said = asked
    refused = sum(answer is not None for answer in said)
    assert len(launches) / 4 < refused < len(launches)
    for one, answer in zip(launches, said, strict=True):
        rules = refusals(settings_of(one), lines)
        assert bool(rules) == (answer is not None), (one, answer, [rule.name for rule in rules])
        if answer is not None:
            assert any(rule.message in answer["message"] for rule in rules), (one, answer)


def test_a_line_that_is_not_this_one_disagrees(asked):
    """The control: the rules of another line are wrong here."""
    lines, launches, said = asked
    other = "main" if "dynamic-v1" in lines.lines else "dev"
    wrong = stack_named(other, load_cards(REPOSITORY / "skills"), "--line")
    differ = [
        one for one, answer in zip(launches, said, strict=True)
        if bool(refusals(settings_of(one), wrong)) != (answer is not None)
    ]  # fmt: skip
    assert differ
