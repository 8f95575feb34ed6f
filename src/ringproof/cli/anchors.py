"""``ringproof anchors``: do the code anchors hold, where are they, and what became of them?"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer

from ringproof.cli.output import write_json
from ringproof.cli.prove import default_cache
from ringproof.errors import InputError
from ringproof.files import write_atomically
from ringproof.harness.anchors.check import CheckedAnchor, check_cards, counts
from ringproof.harness.anchors.choice import UpstreamChoice, parse_overrides
from ringproof.harness.anchors.drift import Drift, classify
from ringproof.harness.anchors.lock import LOCK_FILE, Lock, make_lock, read_lock
from ringproof.harness.anchors.specs import open_tree
from ringproof.harness.anchors.tree import UpstreamError, UpstreamUnavailable
from ringproof.harness.cards import Anchor, Card, ProofKind, find_cards, load_card, statements

app = typer.Typer(help="Places in upstream's code, found by symbol.", no_args_is_help=True)

_Skills = Annotated[
    list[str] | None, typer.Argument(metavar="SKILL", help="Skills; all when none named.")
]
_Folder = Annotated[Path, typer.Option("--skills", metavar="DIR", help="The skills.")]
_Upstreams = Annotated[
    list[str] | None,
    typer.Option(
        "--upstream",
        metavar="NAME=SPEC",
        help="Where an upstream of the card, or OWNER/NAME, is: git:PATH[@REF], "
        "pip:PACKAGE==VERSION, dir:PATH, installed:PACKAGE.",
    ),
]
_Cache = Annotated[
    Path | None, typer.Option(metavar="DIR", help="For upstream wheels; else ~/.cache/ringproof.")
]
_Offline = Annotated[bool, typer.Option("--offline", help="Never download.")]
_Json = Annotated[str, typer.Option("--json", metavar="PATH", help="Write JSON; - is stdout.")]


@app.command()
def check(
    skills: _Skills = None,
    *,
    folder: _Folder = Path("skills"),
    upstream: _Upstreams = None,
    fences: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Check line numbers in these documents instead."),
    ] = None,
    root: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=SPEC", help="With --fences: the code they speak of."),
    ] = None,
    fix: Annotated[bool, typer.Option("--fix", help="With --fences: correct the numbers.")] = False,
    cache: _Cache = None,
    offline: _Offline = False,
    json_path: _Json = "",
) -> None:
    """Look up every anchor of the cards and compare it with the lock.

    Exit code 1: an anchor does not hold, or its code is not the locked code.
    Example: ringproof anchors check --upstream NVIDIA/Megatron-LM=git:../Megatron-LM
    """
    if fences is not None:
        if skills or upstream:
            raise InputError("--fences", fences, "takes neither SKILL nor --upstream", "use --root")
        raise typer.Exit(_check_fences(fences, root or [], fix, _cache(cache), offline, json_path))
    if fix or root:
        raise InputError("--fix" if fix else "--root", None, "needs --fences", "add --fences PATH")
    choice = UpstreamChoice(parse_overrides(upstream or []), _cache(cache), offline)
    paths = find_cards(folder, tuple(skills or ()))
    cards = _cards(paths, choice)
    read = {skill: read_lock(path.with_name(LOCK_FILE)) for skill, path in paths.items()}
    locks = {skill: lock for skill, lock in read.items() if lock is not None}
    checked = check_cards(cards, locks, choice)
    if checked and all(item.resolution is None for item in checked):
        remedy = "give its place with --upstream NAME=SPEC"
        raise InputError("upstreams", None, f"none can be opened: {checked[0].obstacle}", remedy)
    failed = any(item.failed for item in checked)
    if json_path:
        anchors = [_checked_json(item) for item in checked]
        write_json({"version": 1, "pass": not failed, "anchors": anchors}, json_path)
    if json_path != "-":
        _print_checked(checked, locks)
    if failed:
        raise typer.Exit(1)


@app.command()
def lock(
    skills: _Skills = None,
    *,
    folder: _Folder = Path("skills"),
    upstream: _Upstreams = None,
    cache: _Cache = None,
    offline: _Offline = False,
) -> None:
    """Write where each anchor is into anchors.lock beside its card.

    Each anchor is looked up in its own upstream and in the card's others of the same repository.
    Exit code 1: an anchor does not hold in its own upstream; that lock is not written.
    Example: ringproof anchors lock --upstream NVIDIA/Megatron-LM=git:../Megatron-LM
    """
    choice = UpstreamChoice(parse_overrides(upstream or []), _cache(cache), offline)
    paths = find_cards(folder, tuple(skills or ()))
    broken = False
    for skill, card in _cards(paths, choice).items():
        try:
            made, failures = make_lock(card, choice)
        except (UpstreamUnavailable, UpstreamError) as error:
            remedy = "give its place with --upstream NAME=SPEC"
            raise InputError(f"{skill}: upstreams", None, str(error), remedy) from error
        for failure in failures:
            typer.echo(f"{skill}: {failure.anchor}: {failure.status.value}: {failure.detail}")
        broken = broken or bool(failures)
        if not failures:
            destination = paths[skill].with_name(LOCK_FILE)
            write_atomically(destination, made.text(), field=LOCK_FILE)
            typer.echo(
                f"{destination}: {len(made.anchors)} anchors, {len(made.upstreams)} versions"
            )
    if broken:
        raise typer.Exit(1)


@app.command()
def drift(
    skills: _Skills = None,
    *,
    old: Annotated[str, typer.Option("--from", metavar="SPEC", help="The earlier version.")],
    new: Annotated[str, typer.Option("--to", metavar="SPEC", help="The later version.")],
    folder: _Folder = Path("skills"),
    upstream: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only anchors of these upstreams of the card."),
    ] = None,
    cache: _Cache = None,
    offline: _Offline = False,
    json_path: _Json = "",
) -> None:
    """Say what became of each anchor between two versions, and what the cards hang on it.

    Anchors whose symbol is not in the earlier version are left out. Exit code 1: an anchor changed
    or is not where it was.
    Example: ringproof anchors drift --from git:../M@core_v0.16.1 --to git:../M@main
    """
    paths = find_cards(folder, tuple(skills or ()))
    cards = {skill: load_card(path) for skill, path in paths.items()}
    names = frozenset(upstream or ())
    known = frozenset(name for card in cards.values() for name in card.upstreams)
    for name in sorted(names - known):
        remedy = f"choose from: {', '.join(sorted(known))}"
        raise InputError("--upstream", name, "is no upstream of these cards", remedy)
    place = _cache(cache)
    trees = [open_tree(spec, cache=place, offline=offline) for spec in (old, new)]
    chosen = [
        (skill, anchor)
        for skill, card in cards.items()
        for anchor in card.anchors
        if not names or anchor.upstream in names
    ]
    fates = classify([anchor for _, anchor in chosen], trees[0], trees[1])
    found = [
        (skill, fate, _hanging(cards[skill], fate.anchor))
        for (skill, _), fate in zip(chosen, fates, strict=True)
        if fate.before is not None
    ]
    if not found:
        problem = "none of the cards' anchors is in this version"
        raise InputError("--from", old, problem, "name a version of a card's upstream")
    if json_path:
        entries = [_drift_json(skill, fate, hanging) for skill, fate, hanging in found]
        ends = {"from": trees[0].origin, "to": trees[1].origin}
        write_json({"version": 1, **ends, "anchors": entries}, json_path)
    if json_path != "-":
        for skill, fate, hanging in found:
            _print_drift(skill, fate, hanging)
        left = len(chosen) - len(found)
        typer.echo(f"{len(found)} anchors compared; {left} not in the earlier version")
    if not all(fate.harmless for _, fate, _ in found):
        raise typer.Exit(1)


def _cache(given: Path | None) -> Path:
    return given if given is not None else default_cache()


def _cards(paths: Mapping[str, Path], choice: UpstreamChoice) -> Mapping[str, Card]:
    cards = {skill: load_card(path) for skill, path in paths.items()}
    choice.refuse_unknown(cards.values())
    return MappingProxyType(cards)


def _check_fences(
    path: Path, entries: list[str], fix: bool, cache: Path, offline: bool, json_path: str
) -> int:
    try:
        module = importlib.import_module("ringproof.cli.fences")
    except ModuleNotFoundError as error:
        problem = "this installation cannot check documents"
        raise InputError("--fences", path, problem, "install a later version") from error
    specs = parse_overrides(entries, option="--root")
    roots = {name: open_tree(spec, cache=cache, offline=offline) for name, spec in specs.items()}
    return int(module.check_fences(path, roots, fix=fix, json_path=json_path))


def _checked_json(item: CheckedAnchor) -> dict[str, Any]:
    found = item.resolution
    return {
        "skill": item.skill,
        "anchor": item.anchor.id,
        "upstream": item.anchor.upstream,
        "origin": None if found is None else found.origin,
        "path": item.anchor.path if found is None else found.path,
        "symbol": item.anchor.symbol,
        "status": item.status,
        "since_lock": item.since_lock,
        "start": None if found is None else found.start,
        "end": None if found is None else found.end,
        "fingerprint": None if found is None else found.fingerprint,
        "detail": item.obstacle if found is None else found.detail,
    }


def _print_checked(checked: tuple[CheckedAnchor, ...], locks: Mapping[str, Lock]) -> None:
    for item in checked:
        found = item.resolution
        where = f"{item.anchor.path} {item.anchor.symbol}"
        if found is not None and found.start is not None:
            where = f"{found.path}:{found.start}-{found.end} {item.anchor.symbol}"
        detail = item.obstacle if found is None else found.detail
        since = f" ({item.since_lock})" if item.since_lock in ("moved", "changed") else ""
        shown = _plain(detail or where)
        typer.echo(f"{item.status}{since}: {item.skill}: {item.anchor.id}: {shown}")
    for skill in sorted({item.skill for item in checked} - locks.keys()):
        typer.echo(f"{skill}: no {LOCK_FILE}; write it with `ringproof anchors lock`", err=True)
    listed = ", ".join(f"{count} {status}" for status, count in counts(checked).items())
    typer.echo(f"{len(checked)} anchors: {listed}")


def _hanging(card: Card, anchor: Anchor) -> tuple[tuple[str, str], ...]:
    """Kind and id of the statements that name an anchor as proof."""
    return tuple(
        (statement.kind.value, statement.id)
        for statement in statements(card)
        if statement.id != anchor.id
        and any(p.kind is ProofKind.ANCHOR and p.target == anchor.id for p in statement.proofs)
    )


def _drift_json(skill: str, fate: Drift, hanging: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    return {
        "skill": skill,
        "anchor": fate.anchor.id,
        "upstream": fate.anchor.upstream,
        "kind": fate.kind.value,
        "before": {"path": fate.anchor.path, "symbol": fate.anchor.symbol, "lines": fate.before},
        "after": fate.after and {"path": fate.path, "symbol": fate.symbol, "lines": fate.after},
        "confidence": fate.confidence,
        "summary": list(fate.summary),
        "missing": list(fate.missing),
        "statements": [{"kind": kind, "id": name} for kind, name in hanging],
    }


def _print_drift(skill: str, fate: Drift, hanging: tuple[tuple[str, str], ...]) -> None:
    now = f" -> {fate.path}:{fate.after[0]}-{fate.after[1]} {fate.symbol}" if fate.after else ""
    sure = f" ({fate.confidence:.0%} alike)" if fate.confidence is not None else ""
    typer.echo(f"{fate.kind.value}: {skill}: {fate.anchor.id}{now}{sure}")
    lines = [*fate.summary, *(f"no longer contains {item!r}" for item in fate.missing)]
    if not fate.harmless:
        lines += [f"{kind} {name} hangs on it" for kind, name in hanging]
    for line in lines:
        typer.echo(f"    {_plain(line)}")


def _plain(text: str) -> str:
    """Text from upstream without what could steer a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
