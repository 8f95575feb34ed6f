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

from ringproof.harness.cards.proof import ProofKind
from ringproof.harness.proofs.evidence import SkillResult
from ringproof.harness.proofs.executed import Evidence
from ringproof.harness.proofs.prove import NO_TESTS, ProveResult
from ringproof.harness.proofs.verdicts import (
    ProofResult,
    ProofState,
    StatementResult,
    Verdict,
)


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
    totals = {
        verdict.value: sum(record["totals"][verdict.value] for record in records)
        for verdict in Verdict
    }
    about: Counter[str] = Counter()
    for record in records:
        about.update(record["about_upstream"])
    return environment.get_template("report.html.j2").render(
        records=records,
        problems=problems,
        stale=stale,
        totals=totals,
        verdicts=[verdict.value for verdict in Verdict],
        meanings=_MEANINGS,
        signs=_SIGNS,
        about=about,
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
_SIGNS: Mapping[str, str] = MappingProxyType(
    {
        Verdict.PROVEN.value: "\u2713",
        Verdict.IN_REFERENCE.value: "\u2248",
        Verdict.PARTLY.value: "\u25d0",
        Verdict.REFUTED.value: "\u2717",
        Verdict.UNPROVEN.value: "?",
        Verdict.NOT_HERE.value: "\u2013",
    }
)
"""Signs of the verdicts, so that no two differ in their colour only."""
_MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        Verdict.PROVEN.value: "all of its proofs ran and passed",
        Verdict.IN_REFERENCE.value: "about upstream, but only ringproof's own code ran",
        Verdict.PARTLY.value: "some proofs passed, and others could not run here",
        Verdict.REFUTED.value: "a proof failed or does not exist",
        Verdict.UNPROVEN.value: "the card says that nothing proves it",
        Verdict.NOT_HERE.value: "no proof could run here",
    }
)
_DETAIL_LINES = 30


def print_result(result: ProveResult, console: Console) -> None:
    """Print the verdicts, the problems and the totals."""
    seen = {statement.verdict for skill in result.skills for statement in skill.statements}
    for verdict in (verdict for verdict in Verdict if verdict in seen):
        meaning = _MEANINGS[verdict.value]
        console.print(f"[{_STYLES[verdict]}]{_signed(verdict)}[/]: {meaning}", soft_wrap=True)
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
    if apart := sum(NO_TESTS in proof.detail for proof in _tests(result)):
        console.print(f"{apart} tests are not beside the skills: {NO_TESTS}", soft_wrap=True)
    console.print(_summary(result), soft_wrap=True)


def _tests(result: ProveResult) -> Iterator[ProofResult]:
    """Yield each test of the cards once."""
    for skill in result.skills:
        yield from (proof for proof in skill.proofs.values() if proof.kind is ProofKind.PYTEST)


def _signed(verdict: Verdict) -> str:
    return f"{_SIGNS[verdict.value]} {verdict.value}"


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
            result.ground.evidence.value if result.ground else "-",
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
    counts = (
        f"[{_STYLES[verdict]}]{sum(skill.count(verdict) for skill in result.skills)}"
        f" {verdict.value}[/]"
        for verdict in Verdict
    )
    where = escape(result.facts.environment.name)
    executed = sum(skill.executed for skill in result.skills)
    word = "skill" if len(result.skills) == 1 else "skills"
    about: Counter[str] = Counter()
    for skill in result.skills:
        about.update(skill.about_upstream)
    kinds = ", ".join(f"{about[kind.value]} {kind.value}" for kind in Evidence)
    return (
        f"{len(result.skills)} {word}: {', '.join(counts)}; {executed} proofs executed "
        f"on {where} in {result.facts.seconds:.1f} s\n"
        f"of {about.total()} statements about upstream: {kinds}, {about['none']} not proven here"
    )
