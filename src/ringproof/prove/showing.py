"""Show records of verdicts: on a terminal, and as one self-contained HTML file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ringproof.prove.prove import NO_TESTS
from ringproof.prove.results import ProofState, Verdict
from ringproof.prove.touches import Evidence
from ringproof.styles import BAD, GOOD, shown_on
from ringproof.templates import fill_template

Record = Mapping[str, Any]
"""A record of one skill; see `ringproof.prove.evidence`."""

_RESTS: Mapping[Evidence, str] = MappingProxyType(
    {
        Evidence.UPSTREAM: "executed in upstream's code",
        Evidence.READ: "read in upstream's code",
        Evidence.REFERENCE: "executed in ringproof's code only",
        Evidence.DERIVED: "derived",
    }
)
_DETAIL_LINES = 30
_GOOD = "nothing refuted"


def render_report(
    records: Sequence[Record], problems: Sequence[str], stale: Sequence[str], seen: str = ""
) -> str:
    """Render the page.

    Args:
        seen: How many statements were seen to fail, in words.
    """
    values = {
        "records": records,
        "problems": problems,
        "stale": stale,
        "heading": _heading(records, problems),
        "alone": _alone(records),
        "about": "; ".join(filter(None, (_about_upstream(records), seen))),
        "verdicts": {verdict.value: verdict for verdict in Verdict},
        "run": records[0],
    }
    filters = {"spread": _spread, "brief": _brief}
    return fill_template("ringproof.prove", "report.html.j2", values, filters=filters)


def _brief(text: str) -> str:
    """Shorten hashes for reading; the records have them in full."""
    return re.sub(r"\b([0-9a-f]{12})[0-9a-f]{52}\b", r"\1", text)


def _spread(spread: Mapping[str, float]) -> str:
    bounds = (spread["min"], spread["max"])
    low, high = (str(one) if isinstance(one, int) else f"{one:.4g}" for one in bounds)
    return low if low == high else f"{low} to {high}"


def print_records(
    records: Sequence[Record],
    problems: Sequence[str],
    console: Console,
    refuted: str = "",
    *,
    verbose: bool = False,
) -> None:
    """Print the verdict, what is wrong, and how many statements of each skill have which verdict.

    Args:
        refuted: How many statements were seen to fail, in words.
        verbose: Whether to list every statement, and why it is not or only partly proven.
    """

    def say(line: str) -> None:
        text = Text.from_markup(line)
        console.print(shown_on(console, text), soft_wrap=True, highlight=False)

    heading = _heading(records, problems)
    good = heading.startswith(_GOOD)
    say(f"[{f'bold {GOOD}' if good else BAD}]{escape(heading)}[/]")
    for problem in problems:
        say(f"[{BAD}]FAIL[/]  {escape(problem)}")
    for record in records:
        for claim in record["claims"]:
            if claim["verdict"] == Verdict.REFUTED.value:
                _print_refuted(record["skill"], claim, console)
    say(_about_upstream(records))
    for line in filter(None, (refuted, _alone(records))):
        say(escape(line))
    seen = {claim["verdict"] for claim in _claims(records)}
    for verdict in (verdict for verdict in Verdict if verdict.value in seen):
        say(f"{_signed(verdict.value)}: {verdict.meaning}")
    console.print(_counts(records))
    for record in records if verbose else ():
        console.print(_table(record))
        for line in _open_points(record):
            say(line)
    executed = sum(record["totals"]["proofs_executed"] for record in records)
    where, seconds = escape(records[0]["environment"]["class"]), records[0]["seconds"]
    counts = f"{_number_of(len(records), 'skill')}, {_number_of(executed, 'proof')}"
    more = "" if verbose else "; --verbose lists every statement, and why it is not proven"
    say(f"{counts} executed on {where} in {seconds:.1f} s{more}")


def _claims(records: Sequence[Record]) -> list[Record]:
    return [claim for record in records for claim in record["claims"]]


def _alone(records: Sequence[Record]) -> str:
    """Return a line about the statements whose tests are not beside the skills; empty for none."""
    claims = _claims(records)
    details = [[proof["detail"] for proof in claim["proofs"]] for claim in claims]
    lacking = sum(NO_TESTS in own for own in details)
    if not lacking:
        return ""
    return (
        f"{lacking} of {len(claims)} statements have tests that are not beside the skills: "
        f"{NO_TESTS}, or of the repository that the skills are from"
    )


def _signed(word: str) -> str:
    verdict = next(one for one in Verdict if one.value == word)
    return f"[{verdict.style}]{verdict.sign} {word}[/]"


def _counts(records: Sequence[Record]) -> Table:
    """Return a table of the number of statements of each skill with each verdict that occurs."""
    seen = Counter(claim["verdict"] for claim in _claims(records))
    table = Table(box=None, pad_edge=False)
    table.add_column("skill", overflow="fold")
    for verdict in (one for one in Verdict if seen[one.value]):
        table.add_column(_signed(verdict.value), justify="right", no_wrap=True)
    for record in records:
        own = Counter(claim["verdict"] for claim in record["claims"])
        cells = (str(own[one.value]) for one in Verdict if seen[one.value])
        table.add_row(escape(record["skill"]), *cells)
    return table


def _table(record: Record) -> Table:
    table = Table(title=record["skill"], title_justify="left", title_style="bold", box=None)
    table.add_column("id", overflow="fold")
    for heading in ("kind", "verdict", "evidence"):
        table.add_column(heading)
    for heading in ("proofs", "seconds"):
        table.add_column(heading, justify="right")
    for claim in record["claims"]:
        states = [ProofState(proof["outcome"]) for proof in claim["proofs"]]
        pointed = [state for state in states if state is not ProofState.DECLARED]
        executed = {ProofState.PASSED, ProofState.FAILED}.intersection(pointed)
        table.add_row(
            escape(claim["id"]),
            claim["kind"],
            _signed(claim["verdict"]),
            claim["evidence"] or "-",
            f"{states.count(ProofState.PASSED)}/{len(pointed)}" if pointed else "-",
            f"{claim['seconds']:.1f}" if executed else "-",
        )
    return table


def _open_points(record: Record) -> Iterator[str]:
    """Yield the reasons why statements are not or only partly proven, each with its statements."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for claim in record["claims"]:
        if claim["verdict"] != Verdict.REFUTED.value and claim["reason"]:
            reasons.setdefault((claim["verdict"], claim["reason"]), []).append(claim["id"])
    for (verdict, reason), names in reasons.items():
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        yield f"  {_signed(verdict)}: {escape(reason)} ({escape(shown)})"


def _print_refuted(skill: str, claim: Record, console: Console) -> None:
    console.print(f"\n[{BAD}]refuted[/] {escape(skill)}: {escape(claim['id'])}", soft_wrap=True)
    console.print(f"  says: {escape(claim['says'].strip())}", soft_wrap=True)
    for proof in claim["proofs"]:
        if proof["outcome"] in (ProofState.FAILED.value, ProofState.MISSING.value):
            console.print(f"  {escape(proof['id'])}: {proof['outcome']}", soft_wrap=True)
            for line in proof["detail"].splitlines()[-_DETAIL_LINES:]:
                console.print(f"    {escape(line)}", soft_wrap=True, highlight=False)


def _heading(records: Sequence[Record], problems: Sequence[str]) -> str:
    """Return the result of a run with the number of statements of each verdict that occurs.

    Where no statement has a proof, it says where to begin.
    """
    claims = _claims(records)
    if {claim["verdict"] for claim in claims} == {Verdict.UNPROVEN.value}:
        skill, first = next((one["skill"], one["claims"][0]) for one in records if one["claims"])
        return (
            f"{_number_of(len(claims), 'statement')}, none has a proof yet; begin here: write a "
            f"test of {first['id']} and name it in the card of {skill}, as "
            "docs/how-to/prove-in-ci.md shows"
        )
    counts = Counter(claim["verdict"] for claim in claims)
    word = "incomplete" if problems else _GOOD
    if counts[Verdict.REFUTED.value]:
        word = "failed"
    told = (f"{counts[one.value]} {one.value}" for one in Verdict if counts[one.value])
    return f"{word}; {_number_of(sum(counts.values()), 'statement')}: {', '.join(told)}"


def _about_upstream(records: Sequence[Record]) -> str:
    """Return how many statements about upstream rest on what, see `SkillResult.about_upstream`."""
    about: Counter[str] = Counter()
    for record in records:
        about.update(record["about_upstream"])
    counts = [f"{about[kind.value]} {_RESTS[kind]}" for kind in Evidence if about[kind.value]]
    partly = sum(bool(claim["executed"]) and claim["verdict"] == Verdict.PARTLY.value
                 for claim in _claims(records) if claim["lines"])  # fmt: skip
    lacking = f"{about['none']} not proven here"
    if partly:
        lacking += f" ({partly} of them executed in part)"
    told = ", ".join((*counts, lacking))
    return f"{_number_of(sum(about.values()), 'statement')} about upstream: {told}"


def _number_of(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
