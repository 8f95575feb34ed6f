"""Shows what upstream trees are: as plain data, and as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ringproof.findings.printable import showable
from ringproof.stack.assess import Assessment, StatementStatus
from ringproof.stack.products import ENGINE, MEGATRON, Product

VERSION = 1
_SHOWN = 6
_WORDS = MappingProxyType({StatementStatus.HOLDS.value: "hold"})
"""Words beside a count that are not those of the standing."""
_NEEDED = MappingProxyType({MEGATRON: "Megatron-LM", ENGINE: "Transformer Engine"})


def stack_data(found: Sequence[tuple[str, Product, Sequence[Assessment]]]) -> dict[str, Any]:
    """Return everything as plain data; ``pass`` if every line is known and nothing is broken."""
    everything = [one for _, _, assessments in found for one in assessments]
    return {
        "version": VERSION,
        "pass": all(
            one.recognition.line and not one.counts[StatementStatus.BROKEN] for one in everything
        ),
        "products": [
            {
                "given": name,
                "repo": product.repo,
                "origin": product.tree.origin,
                "version": product.version or None,
                "commit": product.commit,
                "skills": [_assessment_data(one) for one in assessments],
            }
            for name, product, assessments in found
        ],
        "training": list(_training(everything)),
    }


def _assessment_data(one: Assessment) -> dict[str, Any]:
    line, near = one.recognition.line, one.nearest
    return {
        "skill": one.skill,
        "line": line and line.id,
        "lines": [found.id for found in one.recognition.lines],
        "unmet": dict(one.recognition.unmet),
        "trains": line and line.trains,
        "because": line and line.because,
        "trains_on": list(one.trains_on),
        "counts": {standing.value: one.counts[standing] for standing in StatementStatus},
        "nearest": near
        and {
            "upstream": near.upstream,
            "compared": near.compared,
            "differing": list(near.differing),
        },
        "statements": [
            {
                "id": point.statement.id,
                "kind": point.statement.kind.value,
                "standing": point.standing.value,
                "reason": point.reason,
            }
            for point in one.standpoints
        ],
    }


def _training(assessments: Sequence[Assessment]) -> Iterator[str]:
    """Yield for each skill whether its feature can train with the products that were given."""
    by_skill: dict[str, list[Assessment]] = {}
    for one in assessments:
        by_skill.setdefault(one.skill, []).append(one)
    for skill, own in by_skill.items():
        lines = [one.recognition.line for one in own]
        given = {one.product.repo for one in own}
        missing = [name for repo, name in _NEEDED.items() if repo not in given]
        answer = "can train"
        if None in lines:
            answer = "not checked"
        elif not all(line.trains for line in lines if line):
            answer = "cannot train"
        elif missing:
            answer = f"depends on {' and '.join(missing)}, which was not given"
        yield f"{skill}: {answer}"


def stack_lines(data: Mapping[str, Any], *, verbose: bool) -> Iterator[str]:
    """Yield the verdict, what can train, and for each product its lines and what differs in it."""
    yield _verdict(data)
    yield from data["training"]
    yield ""
    if any(one["line"] for product in data["products"] for one in product["skills"]):
        yield from (f"{standing.value}: {standing.meaning}" for standing in StatementStatus)
    for product in data["products"]:
        commit = (product["commit"] or "")[:12]
        parts = (product["repo"], product["version"], commit, f"({product['given']})")
        yield ""
        yield showable(" ".join(filter(None, parts)), 300)
        for one in product["skills"]:
            yield f"  {one['skill']}: {' and '.join(one['lines']) or 'no known line'}"
            details = _details if one["line"] else _unknown
            for line in details(one, verbose=verbose):
                yield f"    {showable(line, 1000)}"


def _verdict(data: Mapping[str, Any]) -> str:
    """Return one line: whether every line is known, and how many statements are broken."""
    found = [one for product in data["products"] for one in product["skills"]]
    broken = sum(one["counts"][StatementStatus.BROKEN.value] for one in found)
    unknown = sum(not one["line"] for one in found)
    said = f"{broken or 'no'} statement{'s are' if broken > 1 else ' is'} broken"
    if unknown:
        return f"verdict: the code is of no known line for {unknown} of {len(found)} skills; {said}"
    return f"verdict: the lines of the code are known, and {said}"


def _details(one: Mapping[str, Any], *, verbose: bool) -> Iterator[str]:
    if not one["trains"]:
        yield f"cannot train: {' '.join((one['because'] or '').split())}"
        if one["trains_on"]:
            yield f"can train: {', '.join(one['trains_on'])}"
    counts = (f"{count} {_WORDS.get(word, word)}" for word, count in one["counts"].items())
    yield f"statements about this line: {', '.join(counts)}"
    if near := one["nearest"]:
        differing = f"{len(near['differing'])} of {near['compared']} anchors differ"
        yield f"nearest checked: {near['upstream']}, {differing if near['differing'] else 'equal'}"
    for standing in (
        tuple(StatementStatus) if verbose else (StatementStatus.CHANGED, StatementStatus.BROKEN)
    ):
        points = [point for point in one["statements"] if point["standing"] == standing.value]
        for point in points if verbose else points[:_SHOWN]:
            yield f"{standing.value}: {point['id']}: {point['reason']}"
        if len(points) > _SHOWN and not verbose:
            yield f"{standing.value}: {len(points) - _SHOWN} more with --verbose"


def _unknown(one: Mapping[str, Any], *, verbose: bool) -> Iterator[str]:
    if one["lines"]:
        yield "the probes of the card do not tell these lines apart"
    else:
        yield "not checked: the code is that of none of the lines that the card knows"
    if verbose:
        yield from (f"{name}: {why}" for name, why in one["unmet"].items())
