"""Show verdicts: on a terminal, and as one self-contained HTML file written from the records."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from jinja2 import PackageLoader, StrictUndefined
from jinja2.sandbox import SandboxedEnvironment
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ringproof.harness.proofs.evidence import SkillResult
from ringproof.harness.proofs.executed import Evidence
from ringproof.harness.proofs.prove import NO_TESTS, ProveResult
from ringproof.harness.proofs.verdicts import ProofState, StatementResult, Verdict


def render_report(
    records: Sequence[Mapping[str, Any]], problems: Sequence[str], stale: Sequence[str]
) -> str:
    """Render the page."""
    environment = SandboxedEnvironment(
        loader=PackageLoader("ringproof.harness.proofs"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["spread"] = _spread
    environment.filters["brief"] = _brief
    totals: Counter[str] = Counter()
    about: Counter[str] = Counter()
    claims = [claim for record in records for claim in record["claims"]]
    for record in records:
        totals.update({verdict.value: record["totals"][verdict.value] for verdict in Verdict})
        about.update(record["about_upstream"])
    return environment.get_template("report.html.j2").render(
        records=records,
        problems=problems,
        stale=stale,
        heading=_heading(totals, problems),
        alone=_alone([[proof["detail"] for proof in claim["proofs"]] for claim in claims]),
        about=_about_upstream(about),
        verdicts={verdict.value: verdict for verdict in Verdict},
        run=records[0],
    )


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def _brief(text: str) -> str:
    """Shorten hashes for reading; the records have them in full."""
    return re.sub(r"\b([0-9a-f]{12})[0-9a-f]{52}\b", r"\1", text)


def _spread(spread: Mapping[str, float]) -> str:
    low, high = _number(spread["min"]), _number(spread["max"])
    return low if low == high else f"{low} to {high}"


_STYLES: Mapping[Verdict, str] = MappingProxyType(
    {
        Verdict.PROVEN: "green",
        Verdict.IN_REFERENCE: "dark_cyan",
        Verdict.PARTLY: "dark_orange",
        Verdict.REFUTED: "bold red",
        Verdict.UNPROVEN: "yellow",
        Verdict.NOT_HERE: "cyan",
    }
)
_RESTS: Mapping[Evidence, str] = MappingProxyType(
    {
        Evidence.UPSTREAM: "executed in upstream's code",
        Evidence.READ: "read in upstream's code",
        Evidence.REFERENCE: "executed in ringproof's code only",
        Evidence.DERIVED: "derived",
    }
)
_DETAIL_LINES = 30


def print_result(result: ProveResult, console: Console) -> None:
    """Print the verdicts, the problems and the totals."""
    seen = {statement.verdict for statement in _statements(result)}
    for verdict in (verdict for verdict in Verdict if verdict in seen):
        legend = f"[{_STYLES[verdict]}]{_signed(verdict)}[/]: {verdict.meaning}"
        console.print(legend, soft_wrap=True)
    for skill in result.skills:
        console.print(_table(skill))
        for line in _open_points(skill):
            console.print(line, soft_wrap=True)
    for skill in result.skills:
        for statement in skill.statements:
            if statement.verdict is Verdict.REFUTED:
                _print_refuted(skill, statement, console)
    for problem in result.problems:
        console.print(f"[bold red]FAIL[/]  {escape(problem)}", soft_wrap=True)
    details = ([proof.detail for proof in statement.proofs] for statement in _statements(result))
    if alone := _alone(list(details)):
        console.print(alone, soft_wrap=True)
    console.print(_summary(result), soft_wrap=True)


def _statements(result: ProveResult) -> Iterator[StatementResult]:
    return (statement for skill in result.skills for statement in skill.statements)


def _alone(details: Sequence[Sequence[str]]) -> str:
    """Return a line about the statements whose tests are not beside the skills; empty for none.

    Args:
        details: Details of the proofs of each statement.
    """
    lacking = sum(NO_TESTS in own for own in details)
    if not lacking:
        return ""
    return (
        f"{lacking} of {len(details)} statements have tests that are not beside the skills: "
        f"{NO_TESTS}, or of the repository that the skills are from"
    )


def _signed(verdict: Verdict) -> str:
    return f"{verdict.sign} {verdict.value}"


def _table(skill: SkillResult) -> Table:
    table = Table(title=skill.skill, title_justify="left", title_style="bold", box=None)
    table.add_column("id", overflow="fold")
    table.add_column("kind")
    table.add_column("verdict")
    table.add_column("evidence")
    table.add_column("proofs", justify="right")
    table.add_column("seconds", justify="right")
    for result in skill.statements:
        style = _STYLES[result.verdict]
        passed = sum(proof.state is ProofState.PASSED for proof in result.proofs)
        pointed = [proof for proof in result.proofs if proof.state is not ProofState.DECLARED]
        table.add_row(
            escape(result.statement.id),
            result.statement.kind.value,
            f"[{style}]{_signed(result.verdict)}[/]",
            result.ground.evidence.value if result.ground.evidence else "-",
            f"{passed}/{len(pointed)}" if pointed else "-",
            f"{result.seconds:.1f}" if any(proof.executed for proof in pointed) else "-",
        )
    return table


def _open_points(skill: SkillResult) -> Iterator[str]:
    """Yield the reasons why statements are not or only partly proven, each with its statements."""
    reasons: dict[tuple[Verdict, str], list[str]] = {}
    for result in skill.statements:
        if result.verdict is not Verdict.REFUTED and result.reason:
            reasons.setdefault((result.verdict, result.reason), []).append(result.statement.id)
    for (verdict, reason), names in reasons.items():
        style = _STYLES[verdict]
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        yield f"  [{style}]{_signed(verdict)}[/]: {escape(reason)} ({escape(shown)})"


def _print_refuted(skill: SkillResult, result: StatementResult, console: Console) -> None:
    name = escape(f"{skill.skill}: {result.statement.id}")
    console.print(f"\n[bold red]refuted[/] {name}", soft_wrap=True)
    console.print(f"  says: {escape(result.statement.says.strip())}", soft_wrap=True)
    for proof in result.proofs:
        if proof.state in (ProofState.FAILED, ProofState.MISSING):
            console.print(f"  {escape(proof.id)}: {proof.state.value}", soft_wrap=True)
            for line in proof.detail.splitlines()[-_DETAIL_LINES:]:
                console.print(f"    {escape(line)}", soft_wrap=True, highlight=False)


def _summary(result: ProveResult) -> str:
    totals: Counter[str] = Counter()
    about: Counter[str] = Counter()
    for skill in result.skills:
        totals.update({verdict.value: skill.count(verdict) for verdict in Verdict})
        about.update(skill.about_upstream)
    where = escape(result.facts.environment.name)
    executed = sum(skill.executed for skill in result.skills)
    return (
        f"{_number_of(len(result.skills), 'skill')}, {_number_of(executed, 'proof')} executed on "
        f"{where} in {result.facts.seconds:.1f} s\n"
        f"[bold]{_heading(totals, result.problems)}[/]\n{_about_upstream(about)}"
    )


def _heading(totals: Mapping[str, int], problems: Sequence[str]) -> str:
    """Return the result of a run with the number of statements of each verdict that occurs."""
    word = "incomplete" if problems else "nothing refuted"
    if totals[Verdict.REFUTED.value]:
        word = "failed"
    counts = (f"{totals[verdict.value]} {verdict.value}" for verdict in Verdict)
    told = ", ".join(count for count in counts if not count.startswith("0 "))
    return f"{word}; {_number_of(sum(totals.values()), 'statement')}: {told}"


def _about_upstream(about: Mapping[str, int]) -> str:
    """Return how many statements about upstream rest on what, see `SkillResult.about_upstream`."""
    counts = [f"{about[kind.value]} {_RESTS[kind]}" for kind in Evidence if about[kind.value]]
    told = ", ".join((*counts, f"{about['none']} not proven here"))
    return f"{_number_of(sum(about.values()), 'statement')} about upstream: {told}"


def _number_of(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
