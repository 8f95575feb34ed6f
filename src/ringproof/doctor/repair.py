"""A corrected configuration, in the form in which it was given."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ruamel.yaml import YAML

from ringproof.doctor.examine import BAD, BrokenRule, Examination, examine
from ringproof.doctor.reading import of_launch
from ringproof.doctor.settings import Settings
from ringproof.errors import InputError
from ringproof.launch.flags import Flags
from ringproof.launch.reading import read_script

ROUNDS = 5
"""Times that repairs are applied: one may make another rule speak."""


def repaired(examination: Examination) -> Examination:
    """Apply the repairs to the settings, and examine them again until none is left.

    A rule whose repairs the examination does not have is not repaired later, either, and one that
    is broken and not among its findings is not among those of the result.
    """
    broken = {one.rule for one in examine(examination.settings, examination.stack).findings}
    unsaid = broken - {one.rule for one in examination.findings}
    given_up = {one.rule for one in examination.findings
                if one.rule.repairs(examination.facts).keys() - examination.repairs.keys()
                }  # fmt: skip
    for _ in range(ROUNDS):
        if not examination.repairs:
            break
        changed = with_changes(examination.settings, examination.repairs)
        if changed.values == examination.settings.values:
            break
        examination = examine(changed, examination.stack)
        names = {name for one in examination.findings if one.rule in given_up | unsaid
                 for name in one.rule.repairs(examination.facts)}  # fmt: skip
        kept = {name: it for name, it in examination.repairs.items() if name not in names}
        found = tuple(one for one in examination.findings if one.rule not in unsaid)
        examination = replace(examination, findings=found, repairs=kept)
    return examination


def with_checked_remedies(examination: Examination) -> Examination:
    """Apply each remedy alone, examine the result, and say what else it would need.

    A remedy that breaks another rule names that rule's remedy, and is no repair any more where all
    repairs together do not keep it, either.
    """
    found, repairs = [], dict(examination.repairs)
    for finding in examination.findings:
        own = finding.rule.repairs(examination.facts)
        alone = examine(with_changes(examination.settings, own), examination.stack)
        needs = _broken_by(alone, examination, finding) if own else ()
        if needs:
            remedies = dict.fromkeys(f"{one.remedy} ({one.says})" for one in needs)
            more = f"{finding.remedy}; this also needs: {'; '.join(remedies)}"
            finding = replace(finding, remedy=more)
            if _broken_by(repaired(alone), examination, finding):
                repairs = {name: value for name, value in repairs.items() if name not in own}
        found.append(finding)
    return replace(examination, findings=tuple(found), repairs=repairs)


def _broken_by(
    changed: Examination, before: Examination, finding: BrokenRule
) -> tuple[BrokenRule, ...]:
    """Return what is wrong after a remedy: its own rule, still, and rules that were kept before."""
    known = {one.rule for one in before.findings} - {finding.rule}
    return tuple(one for one in changed.findings if one.effect in BAD and one.rule not in known)


def launchable(before: Settings, after: Settings) -> Settings:
    """Return changed settings of a launch with the words that say so."""
    return replace(after, arguments=_flags(before, changes(before, after)).words)


def with_changes(settings: Settings, repairs: Mapping[str, str | None]) -> Settings:
    """Return settings in which some are given, or left out where the value is ``None``."""
    values, names = dict(settings.values), dict(settings.names)
    for name, value in repairs.items():
        if value is None:
            values.pop(name, None)
            names.pop(name, None)
        else:
            names[name] = settings.written(name)
            values[name] = tuple(shlex.split(value)) if settings.program == "megatron" else (value,)
            if settings.program != "megatron" and not value:
                values[name] = ("true",)
    return replace(settings, values=values, names=names)


def changes(before: Settings, after: Settings) -> dict[str, tuple[str | None, str | None]]:
    """Return what differs: name, value before and after; ``None`` where it is not given."""
    found: dict[str, tuple[str | None, str | None]] = {}
    for name in {**before.values, **after.values}:
        old, new = before.values.get(name), after.values.get(name)
        if old != new:
            written = after.names.get(name) or before.written(name)
            join = shlex.join if before.program == "megatron" else " ".join
            found[written] = (
                None if old is None else join(old),
                None if new is None else join(new),
            )
    return found


def written_again(
    before: Settings, after: Settings, path: Path | None, sets: Mapping[str, str]
) -> str:
    """Return the configuration with the changes made, in the form in which it was given.

    A script keeps its order and its comments if its options can be changed where they stand;
    reading the result again shows whether they could. Otherwise the command is returned.
    """
    different = changes(before, after)
    if path is not None and path.suffix in (".yaml", ".yml") and before.program != "megatron":
        return _yaml(path, different)
    if before.program != "megatron":
        return "\n".join(
            f"{name}={_value(new)}" for name, (_, new) in different.items() if new is not None
        )
    if path is not None and path.suffix not in (".yaml", ".yml") and before.arguments:
        text = _script(path, different)
        if text and _says(text, path, sets, after):
            return text
    return _command(before, different)


def _value(text: str) -> str:
    return f"[{','.join(text.split())}]" if re.fullmatch(r"\d+( \d+)+", text) else text


def _command(before: Settings, different: Mapping[str, tuple[str | None, str | None]]) -> str:
    return shlex.join(_flags(before, different).words)


def _flags(before: Settings, different: Mapping[str, tuple[str | None, str | None]]) -> Flags:
    flags = Flags(before.arguments)
    for name, (_, new) in different.items():
        flags = flags.without(name) if new is None else flags.with_(name, *shlex.split(new))
    return flags


def _script(path: Path, different: Mapping[str, tuple[str | None, str | None]]) -> str:
    """The script with options changed in place; empty if one does not stand in it exactly once."""
    text = path.read_text(encoding="utf-8")
    added = []
    for name, (old, new) in different.items():
        if old is None:
            added.append(f"{name} {new}".strip())
            continue
        pattern = re.escape(name) + r"(?![\w-])" + "".join(r"[ =]+\S+" for _ in shlex.split(old))
        found = list(re.finditer(pattern, text))
        if len(found) != 1:
            return ""
        start, end = found[0].span()
        text = text[:start] + (f"{name} {new}".strip() if new is not None else "") + text[end:]
    place = re.search(r"--[a-z][\w-]*", text[_launch_at(text) :])
    if added:
        if place is None:
            return ""
        at = _launch_at(text) + place.start()
        text = text[:at] + " ".join(added) + " " + text[at:]
    return text


def _launch_at(text: str) -> int:
    """Where Megatron-LM's own options begin: at the first that only it has."""
    found = re.search(r"--(tensor-model|context)-parallel-size|--num-layers", text)
    return found.start() if found else len(text)


def _says(text: str, path: Path, sets: Mapping[str, str], after: Settings) -> bool:
    """Whether a changed script says what it should."""
    try:
        return of_launch(read_script(path, sets, script=text)).values == after.values
    except InputError:
        return False


def _yaml(path: Path, different: Mapping[str, tuple[str | None, str | None]]) -> str:
    reader = YAML(typ="rt")
    reader.preserve_quotes = True
    data = reader.load(path.read_text(encoding="utf-8"))
    for name, (_, new) in different.items():
        *folders, last = name.split(".")
        place = data
        for folder in folders:
            if not isinstance(place.get(folder), dict):
                place[folder] = {}
            place = place[folder]
        if new is None:
            place.pop(last, None)
        else:
            place[last] = YAML(typ="safe", pure=True).load(_value(new))
    written = io.StringIO()
    reader.dump(data, written)
    return written.getvalue()
