"""Shows what upstream trees are: as text, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Any

from ringproof.harness.reports.printable import showable
from ringproof.harness.stack.assess import Assessment, Standing
from ringproof.harness.stack.products import ENGINE, MEGATRON, Product

VERSION = 1
_SHOWN = 6
_WORDS = MappingProxyType(
    {
        Standing.HOLDS: "hold",
        Standing.CHANGED: "changed",
        Standing.BROKEN: "broken",
        Standing.NOT_CHECKED: "not checked",
    }
)
_NEEDED = MappingProxyType({MEGATRON: "Megatron-LM", ENGINE: "Transformer Engine"})


def failed(assessments: Sequence[Assessment]) -> bool:
    """Whether a line is unknown or ambiguous, or a statement is broken."""
    return any(one.recognition.line is None or one.counts[Standing.BROKEN] for one in assessments)


def stack_lines(
    found: Sequence[tuple[str, Product, Sequence[Assessment]]], *, verbose: bool
) -> Iterator[str]:
    """Yield for each product its lines, what differs in it, and which features can train.

    What is said of statements is explained first.
    """
    if any(one.recognition.line for _, _, assessments in found for one in assessments):
        yield from (f"{standing.value}: {standing.meaning}" for standing in Standing)
        yield ""
    for name, product, assessments in found:
        commit = product.commit[:12] if product.commit else ""
        parts = (product.repo, product.version, commit, f"({name})")
        yield showable(" ".join(part for part in parts if part), 300)
        for assessment in assessments:
            names = " and ".join(line.id for line in assessment.recognition.lines)
            yield f"  {assessment.skill}: {names or 'no known line'}"
            for line in _details(assessment, verbose=verbose):
                yield f"    {showable(line, 1000)}"
    yield ""
    yield from training([one for _, _, assessments in found for one in assessments])


def _details(one: Assessment, *, verbose: bool) -> Iterator[str]:
    line = one.recognition.line
    if line is None:
        yield from _unknown(one, verbose=verbose)
        return
    if not line.trains:
        yield f"cannot train: {' '.join((line.because or '').split())}"
    counts = ", ".join(f"{one.counts[standing]} {_WORDS[standing]}" for standing in Standing)
    yield f"statements about this line: {counts}"
    if one.nearest is not None:
        near = one.nearest
        differing = f"{len(near.differing)} of {near.compared} anchors differ"
        yield f"nearest checked: {near.upstream}, {differing if near.differing else 'equal'}"
    for standing in tuple(Standing) if verbose else (Standing.CHANGED, Standing.BROKEN):
        points = [point for point in one.standpoints if point.standing is standing]
        for point in points if verbose else points[:_SHOWN]:
            yield f"{standing.value}: {point.statement.id}: {point.reason}"
        if len(points) > _SHOWN and not verbose:
            yield f"{standing.value}: {len(points) - _SHOWN} more with --verbose"


def _unknown(one: Assessment, *, verbose: bool) -> Iterator[str]:
    if one.recognition.lines:
        yield "the probes of the card do not tell these lines apart"
    else:
        yield "not checked: the code is that of none of the lines that the card knows"
    if verbose:
        yield from (f"{name}: {why}" for name, why in one.recognition.unmet.items())


def training(assessments: Sequence[Assessment]) -> Iterator[str]:
    """Yield for each skill whether its feature can train with the products that were given."""
    by_skill: dict[str, list[Assessment]] = {}
    for one in assessments:
        by_skill.setdefault(one.skill, []).append(one)
    for skill, own in by_skill.items():
        given = {one.product.repo for one in own}
        missing = [name for repo, name in _NEEDED.items() if repo not in given]
        answer = "can train"
        if any(one.recognition.line is None for one in own):
            answer = "not checked"
        elif not all(one.recognition.line.trains for one in own if one.recognition.line):
            answer = "cannot train"
        elif missing:
            answer = f"depends on {' and '.join(missing)}, which was not given"
        yield f"{skill}: {answer}"


def stack_data(found: Sequence[tuple[str, Product, Sequence[Assessment]]]) -> dict[str, Any]:
    """Return everything as plain data."""
    everything = [one for _, _, assessments in found for one in assessments]
    return {
        "version": VERSION,
        "pass": not failed(everything),
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
        "training": list(training(everything)),
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
        "counts": {standing.value: one.counts[standing] for standing in Standing},
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
