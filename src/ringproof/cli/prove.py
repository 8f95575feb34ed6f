"""``ringproof prove``: does everything the cards say hold here?"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import typer

from ringproof.cards import find_cards
from ringproof.cli.console import HarmlessConsole
from ringproof.cli.options import SkillOptions, UpstreamOptions, command_of, json_option
from ringproof.cli.output import write_json, write_text
from ringproof.cli.upstream import bring_missing
from ringproof.errors import InputError
from ringproof.files import make_folder, write_atomically
from ringproof.options import option, seconds
from ringproof.prove.closure import SourceClosure
from ringproof.prove.environment import read_environment
from ringproof.prove.prove import ProveResult
from ringproof.prove.prove import prove as run_proofs
from ringproof.prove.showing import print_records, render_report
from ringproof.prove.suite import ProveRequest
from ringproof.refuting.outcomes import (
    UNWANTED,
    read_refuted,
    record_name,
    refuted_record,
    seen_sentence,
)
from ringproof.refuting.refute import refute
from ringproof.refuting.showing import print_refuted
from ringproof.shipped import workplace
from ringproof.upstream.sources import parse_overrides


@dataclass(frozen=True, kw_only=True)
class ProveCommand(SkillOptions, UpstreamOptions):
    """The options of ``ringproof prove``."""

    quick: bool = option(False, "Leave out tests that are marked slow.")
    out: Path = option(
        Path("build/prove"),
        "Folder for the records, report.html and the logs of pytest.",
        metavar="DIR",
    )
    record: Path | None = option(
        None, "Write the records also as evidence, DIR/CLASS/SKILL.json.", metavar="DIR"
    )
    json_path: str = json_option()
    html: str = option("", "Write the report as a page to this file, too.", metavar="PATH")
    require_all: bool = option(
        False, "Fail when upstream code that a card or a proof needs is missing."
    )
    resume: bool = option(
        False, "Take over what passed in the last run in --out, where its sources are the same."
    )
    timeout: float = seconds(
        3600,
        "Seconds after which all tests together are ended; with --refute, those of a statement.",
    )
    refute: bool = option(
        False,
        "Make each statement about upstream false by edits of upstream's code, which "
        "cards/SKILL/refutations.toml has, and expect a proof of it to fail.",
    )
    statement: tuple[str, ...] = option(
        (), "Refute this statement only. Can be given several times.", metavar="ID", needs="refute"
    )
    verbose: bool = option(False, "List every statement, and why it is not or only partly proven.")
    jobs: int = option(
        0,
        "Number of test processes side by side. 0 means two, or one where there are GPUs or one "
        "processor.",
        least=0,
    )

    def request(self, place: Path) -> ProveRequest:
        """Return what is to be proven of the skills in a folder.

        Raises:
            InputError: The options contradict each other.
        """
        if self.quick and self.record is not None:
            raise InputError("--record", "--record needs a whole run; leave out --quick")
        for name in ("quick", "resume", "require_all", "html") if self.refute else ():
            if getattr(self, name):
                field = "--" + name.replace("_", "-")
                raise InputError(field, f"--refute does not know {field}; leave it out")
        return ProveRequest(
            skills=place, names=self.skills, quick=self.quick, out=self.out,
            evidence=self.record or place.resolve().parent / "evidence",
            cache=self.downloads, offline=self.offline, timeout=self.timeout, jobs=self.jobs,
            upstreams=parse_overrides(self.upstream), require_all=self.require_all,
            resume=self.resume,
        )  # fmt: skip


@command_of(ProveCommand)
def prove(options: ProveCommand) -> None:
    """Run everything the skills' cards point to and give a verdict on each statement.

    Upstream code that a card names is fetched first, unless it is given or in the cache. Tests are
    those beside the folder of the skills, in checks/ and smoke/. Exit code 1: a statement is
    refuted, a card had no proof executed, or not everything ran. Example: ringproof prove --quick
    """
    console = HarmlessConsole(stderr=True)
    with workplace(options.folder) as place:
        request = options.request(place)
        good = _prove(request, options, console)
    if not good:
        raise typer.Exit(1)


def _prove(request: ProveRequest, options: ProveCommand, console: HarmlessConsole) -> bool:
    """Run the proofs, or with --refute the refutations, and return whether nothing is wrong."""
    missing = bring_missing(request, console)
    if missing:  # then nothing tries to fetch it again
        short = tuple(f"not at hand: {item}" for item in missing)
        request = replace(request, offline=True, short=short)
    if options.refute:
        return _refute(request, options, console)
    with ExitStack() as held:  # the folder of the run, from its first log to its last record
        result = run_proofs(request, console, lambda line: typer.echo(line, err=True), held)
        cards = find_cards(request.skills, request.names)
        closure = SourceClosure(request.root)
        seen = seen_sentence(request.evidence, cards, result.records, closure)
        if missing:
            typer.echo(f"not at hand: {'; '.join(missing)}", err=True)
        _write(result, options, seen)
    if options.json_path:
        summary = {
            "version": 1,
            "pass": not result.problems,
            "problems": list(result.problems),
            "stale": list(result.stale),
            "skills": list(result.records),
        }
        write_json(summary, options.json_path)
    printed = "-" in (options.json_path, options.html)
    shown = console if printed else HarmlessConsole()
    print_records(result.records, result.problems, shown, seen, verbose=options.verbose)
    typer.echo(f"report: {options.out / 'report.html'}", err=True)
    return not result.problems


def _write(result: ProveResult, options: ProveCommand, seen: str) -> None:
    places = {"--out": options.out}
    if options.record is not None:
        places["--record"] = options.record / result.records[0]["environment"]["class"]
    for field, place in places.items():
        make_folder(place, field=field)
        for one in result.records:
            write_json(one, place / f"{one['skill']}.json", field=field)
    report = render_report(result.records, result.problems, result.stale, seen)
    write_atomically(options.out / "report.html", report, field="--out")
    if options.html:
        write_text(report, options.html, field="--html")


def _refute(request: ProveRequest, options: ProveCommand, console: HarmlessConsole) -> bool:
    """Try the refutations; return whether a proof of each fails and no refutation is broken."""
    environment = read_environment(request.root)
    found = refute(request, environment, options.statement, console)
    records = [refuted_record(skill, environment, rows) for skill, rows in found.items()]
    bad = [row for rows in found.values() for row in rows if row.outcome in UNWANTED]
    if options.record is not None:
        place = options.record / environment.name
        make_folder(place, field="--record")
        for skill, rows in found.items():
            known = (
                read_refuted(options.record, skill, environment.name) if options.statement else {}
            )
            merged = {**known, **{row.statement: row for row in rows}}
            record = refuted_record(skill, environment, merged.values())
            write_json(record, place / record_name(skill), field="--record")
    if options.json_path:
        write_json({"version": 1, "pass": not bad, "skills": records}, options.json_path)
    print_refuted(found, console if options.json_path == "-" else HarmlessConsole())
    return not bad
