"""`ringproof doctor` on real configurations: `corpus.yaml` holds each with its verdicts."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest

from checks.doctor.corpus import beyond, entries, expected, found
from checks.doctor.test_against_upstream import ASKING
from checks.doctor.upstream_lines import TRAINED, stack_at, upstream_at
from ringproof.doctor.examine import examine
from ringproof.doctor.rules import RULES, Effect
from ringproof.harness.upstreams.tree import FolderTree
from ringproof.rehearsal.launch.options import options_of

CORPUS = entries()
OPTION = re.compile(r"(?<!perhaps )--[\w-]+")
"""An option in a finding, without those that it proposes."""
REAL = [entry for entry in CORPUS if not entry.made]


@pytest.mark.parametrize("entry", CORPUS, ids=lambda entry: entry.id)
def test_doctor_says_what_the_corpus_says(entry, tmp_path):
    assert entry.verdict
    settings = entry.settings(tmp_path)
    for key, verdict in entry.verdict.items():
        assert found(examine(settings, stack_at(key))) == expected(verdict), key


def test_the_corpus_is_large_and_real():
    assert len(REAL) >= 60
    assert len({entry.id for entry in CORPUS}) == len(CORPUS)
    forms = Counter(entry.form for entry in REAL)
    assert forms.keys() == {"arguments", "overrides", "recipe", "nemo-rl"}
    assert min(forms.values()) >= 5, forms
    lines = {key.partition("+")[0] for entry in CORPUS for key in entry.verdict}
    assert lines >= {"dev", "main", "r0.19", "release", "pr6479", "dynamic-v2"}


def test_each_rule_speaks_on_one_configuration_and_is_silent_on_another(tmp_path):
    spoke, silent = set(), set()
    for entry in CORPUS:
        settings = entry.settings(tmp_path)
        for key in entry.verdict:
            one = examine(settings, _with_options(stack_at(key), entry, key))
            broken = {id(finding.rule) for finding in one.findings}
            applied = {id(rule) for rule in RULES if rule.effect_on(one.facts) is not None}
            spoke |= broken
            silent |= applied - broken
    named = {id(rule): f"{rule.statement} ({rule.effect.value}, {rule.lines})" for rule in RULES}
    assert [name for rule, name in named.items() if rule not in spoke] == []
    assert [name for rule, name in named.items() if rule not in silent] == []


def _with_options(stack, entry, line):
    """The stack with a parser that has all options of the entry but those that it notes."""
    names = {word for word in entry.words if word.startswith("--")}
    names.add("--eval-global-batch-size")  # whose check a parser without it does not make, either
    return replace(stack, options=frozenset(names.difference(entry.unknown.get(line, ()))))


@pytest.mark.parametrize("line", TRAINED)
def test_a_checkout_names_the_options_that_the_corpus_notes(line, stage, tmp_path):
    folder = upstream_at(stage, line).megatron
    stack = replace(stack_at(line), options=options_of(FolderTree(folder)))
    for one in CORPUS:
        if one.form == "arguments" and line in one.verdict:
            said = [finding.says for finding in examine(one.settings(tmp_path), stack).findings
                    if finding.rule.name == "unknown-option"]  # fmt: skip
            names = {name for text in said for name in OPTION.findall(text)}
            assert names == set(one.unknown.get(line, ())), one.id


@pytest.mark.parametrize("line", [*TRAINED, "pr6479"])
def test_the_refusals_are_those_of_upstream(line, stage, tmp_path):
    """On the whole corpus, at its full size, without options that this line's parser lacks."""
    asked = [one for one in CORPUS if one.form == "arguments" and line in one.verdict]
    read = [one.settings(tmp_path, one.unknown.get(line, ())) for one in asked]
    launches = [
        {"arguments": settings.arguments, "world": one.ranks, "blackwell": one.blackwell,
         "environment": dict(one.environment)}
        for one, settings in zip(asked, read, strict=True)
    ]  # fmt: skip
    upstream = upstream_at(stage, line)
    stack = stack_at(line)
    for one, settings, answer in zip(
        asked, read, stage.call(ASKING, 1, launches, upstream=upstream)[0], strict=True
    ):
        rules = [finding.rule for finding in examine(settings, stack).findings
                 if finding.effect is Effect.REFUSED]  # fmt: skip
        other = beyond(one.verdict[line])
        assert bool(rules or other) == (answer is not None), (one.id, answer)
        if answer is not None:
            messages = [other] if other else [rule.message for rule in rules]
            said = answer["message"].replace('"', "'")
            assert any(message in said for message in messages), (one.id, answer)
