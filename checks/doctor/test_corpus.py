"""`ringproof doctor` on real configurations: `corpus.yaml` holds each with its verdicts."""

from __future__ import annotations

import functools
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from checks.doctor.test_against_upstream import ASKING
from checks.doctor.upstream_lines import TRAINED, stack_at, upstream_at
from checks.skills.shared import REPOSITORY
from ringproof.doctor.examine import BAD, RULES, Examination, examine
from ringproof.doctor.reading import of_launch, read_settings
from ringproof.doctor.repair import launchable, repaired, with_changes, with_checked_remedies
from ringproof.doctor.rule import Effect
from ringproof.doctor.settings import Settings
from ringproof.launch.flags import Flags
from ringproof.launch.options import options_of
from ringproof.launch.reading import Launch
from ringproof.upstream.tree import FolderTree

FILE = Path(__file__).with_name("corpus.yaml")
NODE = 8
BEYOND = "beyond: "
"""Begins the verdict where upstream refuses what no rule judges; its message follows."""
LATER = "later: "
"""The same, where upstream's checks accept a launch with which its program ends."""
EFFECTS = {
    "refused": Effect.REFUSED,
    "fails": Effect.FAILS,
    "wrong": Effect.WRONG,
    "idle": Effect.IDLE,
    "depends": Effect.DEPENDS,
    "slow": Effect.SLOW,
}


@dataclass(frozen=True)
class Entry:
    """One configuration.

    Attributes:
        made: Whether it was made from another by changing settings.
        form: ``arguments`` of Megatron-LM, or the form of another program.
        words: The configuration.
        unknown: By line, options that its parser does not have and that doctor knows only with a
            checkout.
        verdict: By line, effects with statements; or what begins with `BEYOND`.
        key: What an expert says about a report; empty where the configuration is not one.
        outcome: What doctor makes of the report, one of `OUTCOMES`.
        ampere: Whether the GPUs are older than Hopper.
    """

    id: str
    made: bool
    form: str
    words: tuple[str, ...]
    ranks: int | None
    node: int
    environment: Mapping[str, str]
    blackwell: bool
    unknown: Mapping[str, tuple[str, ...]]
    verdict: Mapping[str, str]
    key: str = ""
    outcome: str = ""
    ampere: bool = False

    def settings(self, folder: Path, without: Sequence[str] = ()) -> Settings:
        """Return the settings as doctor reads them.

        Args:
            folder: For a file, where the form is one.
            without: Options that are left out.
        """
        if self.form == "arguments":
            words = Flags(self.words).without(*without).words
            launch = Launch("pretrain_gpt.py", words, self.environment, 1, self.ranks or 1, self.id)
            settings = of_launch(launch)
            gpus = {"blackwell": self.blackwell, "ampere": self.ampere}
            return replace(settings, ranks_per_node=self.node, **gpus)
        return read_settings(self._given(folder), {}, ranks=self.ranks)

    def _given(self, folder: Path) -> list[str]:
        pairs = [word.split("=", 1) for word in self.words]
        if self.form == "recipe":
            text = "".join(f"{name} = {_python(value)}\n" for name, value in pairs)
            return [_written(folder / f"{self.id}.py", text)]
        if self.form == "yaml":
            reader = YAML(typ="safe", pure=True)
            root: dict[str, Any] = {}
            for name, value in pairs:
                *sections, last = name.split(".")
                functools.reduce(lambda at, key: at.setdefault(key, {}), sections, root)[last] = (
                    reader.load(value)
                )
            path = folder / f"{self.id}.yaml"
            YAML().dump(root, path)
            return [str(path)]
        return list(self.words)


def found(examination: Examination) -> set[tuple[Effect, str]]:
    """Return what doctor says, without the values."""
    return {(finding.effect, finding.rule.statement) for finding in examination.findings}


def expected(verdict: str) -> set[tuple[Effect, str]]:
    """Return what doctor has to say."""
    words = [part.split() for part in verdict.split("; ") if not part.startswith((BEYOND, LATER))]
    return {(EFFECTS[part[0]], part[1]) for part in words if part != ["ok"]}


def beyond(verdict: str, begin: str = BEYOND) -> str:
    """Return the message with which upstream refuses what no rule judges; else empty."""
    parts = (part for part in verdict.split("; ") if part.startswith(begin))
    return next(parts, "").removeprefix(begin)


def entries() -> tuple[Entry, ...]:
    """Return the corpus."""
    by_id: dict[str, Entry] = {}
    for data in YAML(typ="safe", pure=True).load(FILE.read_text(encoding="utf-8")):
        base = by_id.get(data.get("like", ""))
        by_id[data["id"]] = _entry(data, base)
    return tuple(by_id.values())


def _entry(data: Mapping[str, Any], base: Entry | None) -> Entry:
    verdict = {key: text for keys, text in data["verdict"].items() for key in keys.split()}
    unknown = {key: tuple(names.split()) for keys, names in data.get("unknown", {}).items()
               for key in keys.split()}  # fmt: skip
    return Entry(
        id=data["id"],
        made=base is not None,
        form=base.form if base else data.get("form", "arguments"),
        words=tuple(shlex.split(data["config"])) if base is None else _changed(base, data),
        ranks=data.get("ranks", base.ranks if base else None),
        node=data.get("node", base.node if base else NODE),
        environment=data.get("env", base.environment if base else {}),
        blackwell=data.get("blackwell", False),
        unknown=base.unknown if base else unknown,
        verdict=verdict,
        key=data.get("key", ""),
        outcome=data.get("outcome", ""),
        ampere=data.get("ampere", False),
    )


def _changed(base: Entry, data: Mapping[str, Any]) -> tuple[str, ...]:
    words = tuple(shlex.split(data.get("set", "")))
    if base.form != "arguments":
        return (*base.words, *words)
    flags, changes = Flags(base.words).without(*data.get("drop", "").split()), Flags(words)
    for name in changes.names():
        flags = flags.with_(name, *(changes.get(name) or ()))
    return flags.words


def _python(value: str) -> str:
    return value if re.fullmatch(r"\d+|True|False|None|\[.*\]", value) else repr(value)


def _written(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


CORPUS = entries()
OUTCOMES = ("solved", "helped", "silent")
"""What doctor makes of a report; a wrong answer is none of them."""
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
    assert forms.keys() == {"arguments", "overrides", "recipe", "yaml"}
    assert min(forms.values()) >= 5, forms
    lines = {key.partition("+")[0] for entry in CORPUS for key in entry.verdict}
    assert lines >= {"dev", "main", "r0.19", "release", "pr6479", "dynamic-v2"}


def test_reports_are_answered():
    reports = [entry for entry in CORPUS if entry.key]
    assert len(reports) >= 20
    counted = Counter(entry.outcome for entry in reports)
    assert counted.keys() <= set(OUTCOMES)
    row = " | ".join(str(counted[outcome]) for outcome in OUTCOMES)
    page = (REPOSITORY / "docs" / "doctor-proof.md").read_text(encoding="utf-8")
    assert f"| with them | {row} | 0 |" in page
    assert counted["solved"] + counted["helped"] >= 0.8 * len(reports), counted
    for one in reports:
        speaks = any(verdict != "ok" for verdict in one.verdict.values())
        assert speaks or one.outcome == "silent" or "nothing is wrong" in one.key, one.id


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
            said = answer.replace('"', "'")
            assert any(message in said for message in messages), (one.id, answer)


@pytest.mark.parametrize("entry", CORPUS, ids=lambda entry: entry.id)
def test_a_remedy_breaks_no_rule_or_names_what_else_it_needs(entry, tmp_path):
    settings = entry.settings(tmp_path)
    for key in entry.verdict:
        plain = examine(settings, stack_at(key))
        checked = with_checked_remedies(plain)
        assert found(checked) == found(plain), key
        for finding in checked.findings:
            own = finding.rule.repairs(plain.facts)
            alone = examine(with_changes(settings, own), plain.stack)
            missing = [text for text in _newly_bad(alone, plain) if text not in finding.remedy]
            assert not own or not missing, (key, finding.rule.statement)
        assert _newly_bad(repaired(checked), plain) == [], key


def _newly_bad(changed, before):
    known = {one.rule for one in before.findings}
    return [one.remedy for one in changed.findings if one.effect in BAD and one.rule not in known]


@pytest.mark.slow
@pytest.mark.parametrize("line", [*TRAINED, "pr6479"])
def test_upstream_accepts_what_doctor_repairs(line, stage, tmp_path):
    """What it still refuses is a finding that doctor leaves, or one that it does not judge."""
    asked, left = [], []
    for one in CORPUS:
        if one.form == "arguments" and line in one.verdict:
            settings = one.settings(tmp_path, one.unknown.get(line, ()))
            before = with_checked_remedies(examine(settings, stack_at(line)))
            after = repaired(before)
            if after.settings.values != settings.values:
                words = launchable(settings, after.settings).arguments
                asked.append({"arguments": words, "world": one.ranks, "blackwell": one.blackwell,
                              "environment": dict(one.environment)})  # fmt: skip
                refused = [f.rule.message for f in after.findings if f.effect is Effect.REFUSED]
                left.append((one.id, [*refused, *filter(None, [beyond(one.verdict[line])])]))
    assert len(asked) >= (1 if line == "pr6479" else 5)  # few of its cases have a change
    answers = stage.call(ASKING, 1, asked, upstream=upstream_at(stage, line))[0]
    for (name, messages), answer in zip(left, answers, strict=True):
        told = (answer or "").replace('"', "'")
        assert answer is None or any(message in told for message in messages), (name, answer)
