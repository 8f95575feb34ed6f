"""The diagnosis of a run as text and as JSON."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import asdict
from typing import Any

from ringproof.errors import printable
from ringproof.findings.printable import showable
from ringproof.logs.diagnosis.index import Symptom
from ringproof.logs.diagnosis.reading import CUT, MOST_SHOWN
from ringproof.logs.diagnosis.recorder import DumpedGroup, explained, rank_text
from ringproof.logs.diagnosis.verdict import Diagnosis, SharedError
from ringproof.logs.training.curves import curve_line
from ringproof.reference.topology.census_line import format_ranks

VERSION = 1
_MOST_NAMES = 6
_MOST_LINES = 8
_MOST_TEXT = 300


def names(who: Collection[str]) -> str:
    """Return ranks in words."""
    ranks = sorted(int(name[5:]) for name in who if name.startswith("rank "))
    rest = sorted(name for name in who if not name.startswith("rank "))
    shown = [rank_text(ranks)] if ranks else []
    shown += rest[:_MOST_NAMES]
    if len(rest) > _MOST_NAMES:
        shown.append(f"{len(rest) - _MOST_NAMES} more")
    return printable(", ".join(shown))[:_MOST_TEXT]


def title(finding: SharedError) -> str:
    """Return what was raised, on one line."""
    first = finding.first
    said = printable(" ".join(first.message.split()))[:_MOST_TEXT]
    error = "error" if first.error == "usage" else first.error
    return f"{error}: {said}" if said else error


def as_text(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield the diagnosis for a reader, line by line."""
    yield f"diagnosis: {_headline(diagnosis)}"
    if diagnosis.cause is not None:
        yield from _finding(diagnosis.cause)
        if diagnosis.missing:
            yield f"  no timeout of ranks {format_ranks(diagnosis.missing)}: look there first"
    for symptom in diagnosis.silent:
        yield from (f"  evidence  {printable(text)}" for text in diagnosis.engine_lines)
        yield f"  attention {diagnosis.engine}"
        yield from _advice(symptom)
    if diagnosis.stuck:
        told = [text for stuck in diagnosis.stuck[:_MOST_LINES] for text in explained(stuck)]
        yield f"  dumps     {told[0]}"
        yield from (f"            {text}" for text in told[1:])
        if diagnosis.hang is not None and diagnosis.cause is None:
            yield from _advice(diagnosis.hang)
    for other in diagnosis.others[:_MOST_LINES]:
        known = other.symptom.statements if other.symptom else ()
        said = f" ({', '.join(known)})" if known else "" if other.symptom else " (not understood)"
        yield f"also: {names(other.who)}: {title(other)}{said}, {_place(other)}"
    for after in diagnosis.follow_ups:
        yield f"follow-up: {_count(after)}: {title(after)}, first at {_place(after)}"
    for past in diagnosis.earlier[:_MOST_LINES]:
        yield f"earlier, training went on: {names(past.who)}: {title(past)}, {_place(past)}"
    for finding in diagnosis.curves:
        yield f"curve{', training went on' if finding.past else ''}: {curve_line(finding)}"
    yield from (f"note: {printable(note)}" for note in diagnosis.notes)
    yield f"read {diagnosis.logs} logs with {diagnosis.lines:,} lines, and {diagnosis.dumps} dumps"


def _headline(diagnosis: Diagnosis) -> str:
    cause = diagnosis.cause
    if cause is not None:
        known = cause.symptom
        if known is None:
            return f"{names(cause.who)} failed first, with an error that the index does not know"
        if known.kind == "nan":
            return f"numbers are not finite, first in {names(cause.who)}"
        if known.kind == "hang":
            return f"a hang: {_count(cause)} waited in a collective until the timeout"
        said = known.statements[0] if known.statements else known.id
        return f"{said}, {names(cause.who)} failed first"
    if diagnosis.silent:
        return diagnosis.silent[0].cause
    if diagnosis.stuck:
        return _hang_headline(diagnosis.stuck[0])
    if diagnosis.follow_ups:
        return "ranks lost another one, whose own error is in none of these logs"
    for finding in diagnosis.curves:
        if not finding.past:
            return f"no error, but {finding.text} at step {finding.step:,}"
    return "nothing found"


def _hang_headline(stuck: DumpedGroup) -> str:
    missing = stuck.free or stuck.silent
    told = f"a hang: ranks waited in {printable(stuck.description)}"
    return f"{told} for {rank_text(missing)}" if missing else told


def _finding(finding: SharedError) -> Iterator[str]:
    for event in finding.evidence:
        said = showable(event.text, MOST_SHOWN)
        yield f"  evidence  {printable(event.file)}:{event.line}: {said}"
    first = finding.first
    if first.place:
        where = f" in {first.functions[-1]}" if first.functions else ""
        yield f"  raised    {printable(first.place)}{printable(where)}"
    for message, who in sorted(finding.waits.items())[:_MOST_LINES]:
        yield f"  waits     {names(who)}: {printable(message)}"
    if finding.symptom is None:
        yield f"  error     {title(finding)}"
        if first.error == CUT:
            yield "  remedy    The log ends before the exception; give the logs of all ranks."
        return
    yield from _advice(finding.symptom)


def _advice(symptom: Symptom) -> Iterator[str]:
    if symptom.statements:
        yield f"  cards     {', '.join(symptom.statements)}"
    yield f"  cause     {symptom.cause}"
    yield f"  remedy    {symptom.remedy}"


def _count(finding: SharedError) -> str:
    number = len(finding.who)
    return names(finding.who) if number <= 2 else f"{number} ranks ({names(finding.who)})"


def _place(finding: SharedError) -> str:
    return f"{printable(finding.first.file)}:{finding.first.line}"


def as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the diagnosis as plain data."""
    return {
        "version": VERSION,
        "found": diagnosis.found,
        "headline": _headline(diagnosis),
        "cause": _data(diagnosis.cause) if diagnosis.cause else None,
        "others": [_data(one) for one in diagnosis.others],
        "follow_ups": [_data(one) for one in diagnosis.follow_ups],
        "earlier": [_data(one) for one in diagnosis.earlier],
        "silent": [_symptom(one) for one in diagnosis.silent],
        "engine": diagnosis.engine,
        "hang": _symptom(diagnosis.hang) if diagnosis.hang else None,
        "stuck": [
            {
                "group": one.name,
                "description": one.description,
                "waiting": {
                    str(rank): {"operation": waiting.operation, "number": waiting.sequence}
                    for rank, waiting in sorted(one.waiting.items())
                },
                "behind": one.behind,
                "without_dump": one.silent,
                "disagree": one.differ,
            }
            for one in diagnosis.stuck
        ],
        "curves": [asdict(one) for one in diagnosis.curves],
        "without_timeout": diagnosis.missing,
        "notes": diagnosis.notes,
        "read": {"logs": diagnosis.logs, "lines": diagnosis.lines, "dumps": diagnosis.dumps},
    }


def _symptom(symptom: Symptom) -> dict[str, Any]:
    return {
        "symptom": symptom.id,
        "kind": symptom.kind,
        "statements": symptom.statements,
        "cause": symptom.cause,
        "remedy": symptom.remedy,
    }


def _data(finding: SharedError) -> dict[str, Any]:
    first = finding.first
    return {
        **(_symptom(finding.symptom) if finding.symptom else {"symptom": None}),
        "error": first.error,
        "message": first.message[: 10 * _MOST_TEXT],
        "raised": first.place,
        "function": first.functions[-1] if first.functions else "",
        "ranks": names(finding.who),
        "count": finding.count,
        "waits": {message: sorted(who) for message, who in sorted(finding.waits.items())},
        "evidence": [
            {"file": event.file, "line": event.line, "text": showable(event.text, MOST_SHOWN)}
            for event in finding.evidence
        ],
    }
