"""The diagnosis of a run as text and as JSON. Its words are in ``logs/templates``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from ringproof.errors import printable
from ringproof.findings.printable import showable
from ringproof.logs.diagnosis.cause import Diagnosis
from ringproof.logs.diagnosis.errors import CUT, MOST_SHOWN, RankError
from ringproof.logs.diagnosis.places import upstream_place
from ringproof.logs.diagnosis.recorder import explained
from ringproof.logs.diagnosis.shared import SharedError
from ringproof.logs.diagnosis.symptoms import Symptom
from ringproof.logs.rendering import count_names, names, rank_text, rendered_lines
from ringproof.logs.training.curves import curve_line

VERSION = 1
_MOST_STUCK = 8
_MOST_MESSAGE = 3000


def as_text(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield the diagnosis for a reader, line by line."""
    stuck = diagnosis.stuck[:_MOST_STUCK]
    yield from rendered_lines(
        "diagnosis.txt",
        diagnosis=diagnosis,
        headline=headline(diagnosis),
        waits=[text for one in stuck for text in explained(one)],
        curve_line=curve_line,
        cut=CUT,
        upstream_place=upstream_place,
    )


def headline(diagnosis: Diagnosis) -> str:
    """Return the diagnosis in one line."""
    cause, live = diagnosis.cause, [one for one in diagnosis.curves if not one.past]
    if cause is not None:
        return _cause_headline(cause)
    if diagnosis.silent:
        return diagnosis.silent[0].cause
    if diagnosis.stuck:
        stuck = diagnosis.stuck[0]
        missing = stuck.free or stuck.silent
        waited = f"a hang: ranks waited in {printable(stuck.description)}"
        return f"{waited} for {rank_text(missing)}" if missing else waited
    if diagnosis.follow_ups:
        first = diagnosis.follow_ups[0]
        if first.symptom and first.symptom.id in ("exited", "cancelled"):
            return f"{names(first.who)} ended, and the error is in none of these logs"
        if first.symptom and first.symptom.id == "interrupted":
            return f"{names(first.who)} was interrupted, and none of these logs shows an error"
        return "ranks lost another one, whose own error is in none of these logs"
    if live:
        return f"no error, but {live[0].text} at step {live[0].step:,}"
    if diagnosis.unread:
        lines = "line looks" if diagnosis.unread_lines == 1 else "lines look"
        return f"unread: {diagnosis.unread_lines:,} {lines} like errors, and none was understood"
    return "nothing found"


def _cause_headline(cause: SharedError) -> str:
    known = cause.symptom
    if known is None:
        return f"{names(cause.who)} failed first, with an error that the index does not know"
    if known.kind == "nan":
        return f"numbers are not finite, first in {names(cause.who)}"
    if known.kind == "hang":
        if not cause.waits:
            said = printable(" ".join(cause.first.message.split()))[:100]
            return f"a hang, by {names(cause.who)}: {cause.first.error}: {said}"
        waited = f"a hang: {count_names(cause.who)} waited in"
        if known.id == "collectives-differ":
            return f"{waited} different collectives of one number"
        for_whom = f" for {rank_text(cause.absent)}" if cause.absent else ""
        return f"{waited} {printable(cause.group or 'a collective')[:80]}{for_whom}"
    return f"{(*known.statements, known.id)[0]}, {names(cause.who)} failed first"


def as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the diagnosis as plain data."""
    return {
        "version": VERSION,
        "found": diagnosis.found,
        "headline": headline(diagnosis),
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
        "restart": asdict(diagnosis.restart),
        "unread": {
            "lines": diagnosis.unread_lines,
            "last": [_evidence(event) for event in diagnosis.unread],
        },
        "notes": diagnosis.notes,
        "read": {"logs": diagnosis.logs, "lines": diagnosis.lines, "dumps": diagnosis.dumps},
    }


def _symptom(symptom: Symptom) -> dict[str, Any]:
    return {
        "symptom": symptom.id,
        **symptom.model_dump(include={"kind", "statements", "cause", "remedy"}),
    }


def _data(shared: SharedError) -> dict[str, Any]:
    first = shared.first
    return {
        **(_symptom(shared.symptom) if shared.symptom else {"symptom": None}),
        "error": first.error,
        "message": first.message[:_MOST_MESSAGE],
        "raised": first.place,
        "function": first.functions[-1] if first.functions else "",
        "ranks": names(shared.who),
        "count": shared.count,
        "waits": {message: sorted(who) for message, who in sorted(shared.waits.items())},
        "code": first.code,
        "upstream": upstream_place(first.place),
        "group": shared.group,
        "absent": shared.absent,
        "evidence": [_evidence(event) for event in shared.evidence],
    }


def _evidence(event: RankError) -> dict[str, Any]:
    return {"file": event.file, "line": event.line, "text": showable(event.text, MOST_SHOWN)}
