"""``ringproof prove``: does everything the cards say hold here?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import typer
from rich.console import Console

from ringproof.cli.options import SkillOptions, UpstreamOptions, command_of, json_option
from ringproof.cli.output import write_json, write_text
from ringproof.cli.upstream import bring_missing
from ringproof.errors import InputError
from ringproof.files import make_folder, write_atomically
from ringproof.options import option, seconds
from ringproof.prove.prove import ProveResult
from ringproof.prove.prove import prove as run_proofs
from ringproof.prove.showing import print_records, render_report
from ringproof.prove.suite import ProveRequest
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
    timeout: float = seconds(3600, "Seconds after which all tests together are ended.")
    resume: bool = option(
        False, "Take over what passed in the last run in --out, where its sources are the same."
    )
    jobs: int = option(
        0,
        "Number of test processes side by side. 0 means two, or one where there are GPUs.",
        least=0,
    )

    def request(self, place: Path) -> ProveRequest:
        """Return what is to be proven of the skills in a folder.

        Raises:
            InputError: The options contradict each other.
        """
        if self.quick and self.record is not None:
            raise InputError("--record", "--record needs a whole run; leave out --quick")
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
    console = Console(stderr=True)
    with workplace(options.folder) as place:
        request = options.request(place)
        missing = bring_missing(request, console)
        if missing:  # then nothing tries to fetch it again
            short = tuple(f"not at hand: {item}" for item in missing)
            request = replace(request, offline=True, short=short)
        result = run_proofs(request, console, lambda line: typer.echo(line, err=True))
    if missing:
        typer.echo(f"not at hand: {'; '.join(missing)}", err=True)
    _write(result, options)
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
    print_records(result.records, result.problems, console if printed else Console())
    typer.echo(f"report: {options.out / 'report.html'}", err=True)
    if result.problems:
        raise typer.Exit(1)


def _write(result: ProveResult, options: ProveCommand) -> None:
    places = {"--out": options.out}
    if options.record is not None:
        places["--record"] = options.record / result.records[0]["environment"]["class"]
    for field, place in places.items():
        make_folder(place, field=field)
        for one in result.records:
            write_json(one, place / f"{one['skill']}.json", field=field)
    report = render_report(result.records, result.problems, result.stale)
    write_atomically(options.out / "report.html", report, field="--out")
    if options.html:
        write_text(report, options.html, field="--html")
