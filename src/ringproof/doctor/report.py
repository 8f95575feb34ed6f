"""An examination as lines for people and as data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ringproof.doctor.examine import BrokenRule, Examination
from ringproof.doctor.facts import NEW, Facts, power_below
from ringproof.doctor.repair import changes
from ringproof.doctor.rule import Effect
from ringproof.doctor.settings import TITLES, WITHOUT_MEGATRON

MOST_NAMES = 8
"""Settings that a line of the report names."""
REFUSES = "; upstream's own program refuses it"
NOT_RUN = "; upstream's own checks did not run"
NO_STEP = "; upstream's own checks accept it, and no step was run"
CANNOT_TELL = "; upstream's own program cannot tell"


def lines(examination: Examination, after: Examination) -> Iterator[str]:
    """Yield the report of one line of upstream; ``after`` is the repaired configuration."""
    settings, stack = examination.settings, examination.stack
    yield verdict(examination)
    yield f"{settings.source}, read as {TITLES[settings.program]}"
    if settings.program not in WITHOUT_MEGATRON:
        yield f"on {stack.name}: {', '.join(sorted(stack.lines)) or 'no line that the skills know'}"
    for skill in _asked(examination):
        if skill in stack.blocked:
            yield f"  {skill} cannot train here: {stack.blocked[skill]}"
    for finding in examination.findings:
        yield ""
        yield from _finding(finding)
    different = changes(settings, after.settings)
    if different:
        yield ""
        yield "to change (--fix prints it):"
        for name, (old, new) in different.items():
            yield f"  {name}: {_shown(old)} -> {_shown(new)}"
    yield ""
    yield from _facts(examination)
    yield from basis(examination)


def _facts(examination: Examination) -> Iterator[str]:
    """Yield what was read and computed, for people to compare with what they meant."""
    if examination.misread:
        yield "  sizes are not shown: an option that the parser refuses may have meant one of them"
    for name, value in sizes(examination).items():
        whole = f"{value:g}" if isinstance(value, float) else str(value)
        shown = ", ".join(value) if isinstance(value, list) else whole
        yield f"  {name}: {shown}"
    for note in examination.settings.notes:
        yield f"  note: {note}"


def basis(examination: Examination) -> Iterator[str]:
    """Yield what the verdict rests on, and what it does not."""
    decided, left = examination.decided, examination.left
    some = f": {', '.join(decided[:MOST_NAMES])}" if decided else ""
    more = ", ..." if len(decided) > MOST_NAMES else ""
    count = f"{len(decided)} setting{'s' if len(decided) != 1 else ''}"
    yield f"rests on {count} that rules looked at{some}{more}"
    if left:
        more = ", ..." if len(left) > MOST_NAMES else ""
        others = f"{len(left)} other{'s' if len(left) > 1 else ''}"
        yield f"not examined: {others}: {', '.join(left[:MOST_NAMES])}{more}"


def _finding(finding: BrokenRule) -> Iterator[str]:
    rule = finding.rule
    yield f"{finding.effect.value}: {finding.says}"
    if rule.message and finding.effect in (Effect.REFUSED, Effect.FAILS):
        where = f" ({rule.by})" if rule.by else ""
        other = f' or "{rule.or_message}..."' if rule.or_message else ""
        yield f'  upstream says: "{rule.message}..."{other}{where}'
    elif finding.effect is Effect.REFUSED:
        yield f"  upstream raises an exception without a text ({rule.by})"
    yield f"  remedy: {finding.remedy}"
    yield f"  see: {rule.statement}"


def verdict(examination: Examination) -> str:
    """Return the line that says how many rules are broken, and with which effects."""
    counts = examination.counts
    if not counts and examination.not_examined:
        return f"verdict: not examined: {examination.not_examined}"
    if not counts:
        return "verdict: nothing found"
    said = ", ".join(f"{counts[effect]} {effect.value}" for effect in Effect if counts[effect])
    return f"verdict: {said}"


def table(examinations: Mapping[str, Examination], refused: str = "") -> Iterator[str]:
    """Yield the verdict, and one line per line of upstream.

    Args:
        refused: The line whose own program was run and refuses the launch.
    """
    wide = max(map(len, examinations))
    bad = sum(one.bad or name == refused for name, one in examinations.items())
    found = f"bad on {bad} of" if bad else "nothing bad found on"
    told = f"verdict: {found} {len(examinations)} lines (series of releases, and branches)"
    yield f"{told}; no upstream is given"
    for name, one in examinations.items():
        missing = [skill for skill in _asked(one) if skill in one.stack.blocked]
        told = f"; {', '.join(missing)} cannot train there" if missing else ""
        told += REFUSES if name == refused else ""
        yield f"  {name:{wide}}  {verdict(one).partition(': ')[2]}{told}"
    yield "choose one with --line NAME, or name a checkout with --upstream PATH"


def sizes(examination: Examination) -> dict[str, object]:
    """Return sizes that are known, for people to compare with what they meant; in tokens."""
    facts = examination.facts
    if examination.misread:
        return {}
    found: dict[str, object] = {
        "ranks": facts.ranks,
        "TP": facts.tp,
        "PP": facts.pp,
        "CP": facts.cp,
        "DP": facts.dp,
        "tokens per rank": facts.length // facts.cp if facts.length and facts.cp else None,
        "query heads per TP rank": facts.heads // facts.tp if facts.heads and facts.tp else None,
        "KV heads per TP rank": facts.key_value_heads / facts.tp if facts.heads else None,
    }
    if facts.dynamic:
        found |= _dynamic_sizes(facts)
    groups = _groups(facts)
    if groups:
        found["process groups to expect"] = groups
    return {name: value for name, value in found.items() if value is not None}


def _dynamic_sizes(facts: Facts) -> dict[str, object]:
    if facts.domain is None:
        return {"budget": facts.budget}
    return {
        "DP x CP": facts.domain,
        "budget": facts.budget,
        "longest sequence": power_below(facts.domain) * facts.budget if facts.budget else None,
        "multiple of lengths": 2 * facts.domain * facts.split,
    }


def _groups(facts: Facts) -> list[str]:
    """Descriptions of groups, as ``parallel_state`` names them."""
    found = []
    if facts.levels and facts.cp > 1:
        levels = range(len(facts.levels))
        found += [f"HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L{level}" for level in levels]
    if facts.dynamic and facts.domain and not facts.at("dynamic-v2"):
        new = facts.at(*NEW)
        if new and not facts.new_name:
            return found
        name = "DYNAMIC_DP_CP_GROUP" if new else "HYBRID_DP_CP_GROUP"
        size = max(facts.smallest, 1) if new else 2
        while size < power_below(facts.domain):
            found.append(f"{name}_{size}")
            size *= 2
    return found


def data(examinations: Sequence[tuple[Examination, Examination]]) -> dict[str, Any]:
    """Return everything as JSON values: each examination with its repaired form."""
    return {"version": 1, "examinations": [_data(*pair) for pair in examinations]}


def _data(examination: Examination, after: Examination) -> dict[str, Any]:
    settings = examination.settings
    return {
        "source": settings.source,
        "program": settings.program,
        "upstream": examination.stack.name,
        "lines": sorted(examination.stack.lines),
        "cannot_train": dict(examination.stack.blocked),
        "bad": examination.bad,
        "not_examined": examination.not_examined,
        "decided": list(examination.decided),
        "left": list(examination.left),
        "sizes": sizes(examination),
        "notes": list(settings.notes),
        "findings": [_as_data(finding) for finding in examination.findings],
        "changes": {
            name: {"before": old, "after": new}
            for name, (old, new) in changes(settings, after.settings).items()
        },
        "bad_after_changes": after.bad,
        "settings": {name: list(words) for name, words in settings.values.items()},
    }


def _as_data(finding: BrokenRule) -> dict[str, Any]:
    rule = finding.rule
    return {
        "statement": rule.statement,
        "effect": finding.effect.value,
        "says": finding.says,
        "message": rule.message,
        "or_message": rule.or_message,
        "by": rule.by,
        "remedy": finding.remedy,
    }


def _asked(examination: Examination) -> list[str]:
    """Skills whose feature the settings turn on."""
    facts = examination.facts
    found = []
    if facts.old_name or facts.new_name:
        found.append("dynamic-context-parallel")
    if facts.hierarchical:
        found.append("hierarchical-context-parallel")
    if facts.dynamic and facts.graphs != "none":
        found.append("dynamic-cp-cuda-graphs")
    return found


def _shown(text: str | None) -> str:
    return "not given" if text is None else text or "on"
