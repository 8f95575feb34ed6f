"""The same launch with other options: what each choice costs, and what upstream refuses."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ringproof.errors import InputError, printable, shown
from ringproof.launch.flags import Flags
from ringproof.launch.reading import Launch
from ringproof.rehearsal.fit.fitting import FitRequest, Fitting, Prepared, Progress, Refused
from ringproof.rehearsal.fit.gpus import CUBLAS_BYTES, GIB
from ringproof.rehearsal.fit.result import Fit, as_json

MOST = 64
UNCLEAR = 0.03
"""Share of a GPU by which what follows from few layers may be off."""
FOLLOWS = "~: follows from two measurements with fewer layers"
ASSIGNED = re.compile(r"(?:--)?([A-Za-z][A-Za-z0-9_-]*)=(.*)", re.DOTALL)
HEADS = ("peak", "steady", "margin", "microbatches", "TFLOP", "CP", "CP between nodes", "DP")
UNITS = (
    "peak, steady and margin in GiB; of one microbatch: TFLOP, and GB that leave the rank for CP, "
    "in all and in groups on several nodes; of a step: GB that leave it for DP"
)

Settings = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Choice:
    """One variant of a launch.

    Attributes:
        settings: Options with their values.
        fit: What was measured; ``None`` where nothing was.
        refused: Why upstream refuses it.
        unmeasured: Why it could not be measured here, such as for want of time.
    """

    settings: Settings
    fit: Fit | None
    refused: str = ""
    unmeasured: str = ""


def combinations(given: Sequence[str]) -> tuple[Settings, ...]:
    """Return every combination of options with several values.

    Args:
        given: ``NAME=VALUE,VALUE,...`` each.

    Raises:
        InputError: One is something else, or they are too many.
    """
    axes: list[list[tuple[str, str]]] = []
    for text in given:
        found = ASSIGNED.fullmatch(text)
        if found is None or not found[2]:
            sentence = f"{shown(text)} is not NAME=VALUE,VALUE; write context-parallel-size=2,4,8"
            raise InputError("--vary", sentence)
        values = [value.strip() for value in found[2].split(",")]
        if not all(values):
            raise InputError("--vary", f"{shown(text)} has an empty value; leave the comma out")
        axes.append([(f"--{found[1]}", value) for value in values])
    names = [axis[0][0] for axis in axes]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError("--vary", f"{twice} is given twice; give all its values at once")
    chosen = tuple(itertools.islice(itertools.product(*axes), MOST + 1))
    if len(chosen) > MOST:
        raise InputError("--vary", f"these are more than {MOST} combinations; give fewer values")
    return chosen


def with_settings(launch: Launch, settings: Settings) -> Launch:
    """Return a launch with options changed; ``true`` is an option without a value."""
    flags = Flags(launch.arguments)
    for name, value in settings:
        flags = flags.with_(name, *(() if value.lower() == "true" else value.split()))
    return replace(launch, arguments=flags.words)


def vary(
    request: FitRequest,
    choices: Sequence[Settings],
    progress: Progress,
    finalists: int | None = None,
) -> tuple[Choice, ...]:
    """Measure a launch with each combination of settings.

    Args:
        finalists: How many are measured with all layers: those that fit and send least, and those
            of which it is not clear whether they fit. What the others take follows from two
            launches with few layers. ``None`` for all.

    Raises:
        InputError: An upstream cannot be used, or one of the launches cannot be read, before
            the first is run; or nothing can be measured here.
    """
    with Fitting(request, progress) as fitting:
        launches = [with_settings(request.launch, settings) for settings in choices]
        prepared = [fitting.prepare(launch) for launch in launches]
        measure = fitting.fit if finalists is None else fitting.extended
        pairs = zip(choices, prepared, strict=True)
        found = [_choice(settings, launch, measure) for settings, launch in pairs]
        for at in _finalists(found, finalists or 0):
            found[at] = _choice(choices[at], prepared[at], fitting.fit)
    if all(choice.unmeasured for choice in found):
        raise InputError("the launch", found[0].unmeasured)
    return tuple(found)


def _choice(settings: Settings, launch: Prepared, measure: Callable[[Prepared], Fit]) -> Choice:
    try:
        return Choice(settings, measure(launch))
    except InputError as error:  # what was measured so far is not lost
        said = printable(error.sentence)
        if isinstance(error, Refused) and error.by_upstream:
            return Choice(settings, None, refused=said)
        return Choice(settings, None, unmeasured=said)


def _finalists(found: Sequence[Choice], count: int) -> list[int]:
    """Return the places of choices that deserve a measurement with all layers."""
    short = {at: one.fit for at, one in enumerate(found) if one.fit and one.fit.extended_from}
    fitting = sorted((at for at, fit in short.items() if fit.fits), key=lambda at: _sent(short[at]))
    unclear = [
        at for at, fit in short.items()
        if fit.gpu and abs(fit.gpu.bytes - fit.largest.needed) < UNCLEAR * fit.gpu.bytes
    ]  # fmt: skip
    return sorted({*fitting[:count], *unclear})


def _sent(fit: Fit) -> float:
    """Return the bytes that leave the largest rank in one microbatch."""
    return sum(one.leaving for one in fit.largest.memory.sent) / fit.program.microbatches


def table(choices: Sequence[Choice]) -> Iterator[str]:
    """Yield the choices as lines: GiB of memory and GB that leave it, of the largest rank."""
    names = [name.removeprefix("--") for name, _ in choices[0].settings]
    rows = [(*names, *HEADS), *(_cells(choice) for choice in choices if choice.fit)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield printable("  ".join(cell.rjust(at) for cell, at in zip(row, widths, strict=True)))
    yield UNITS
    if any(choice.fit and choice.fit.extended_from for choice in choices):
        yield FOLLOWS
    for choice in choices:
        said = choice.fit.lacks if choice.fit else choice.refused or choice.unmeasured
        if said:
            yield printable(f"{_named(choice)}: {said}")


def _named(choice: Choice) -> str:
    return " ".join(f"{name.removeprefix('--')}={value}" for name, value in choice.settings)


def _cells(choice: Choice) -> tuple[str, ...]:
    fit = choice.fit
    assert fit is not None
    rank, node = fit.largest, max(fit.launch.ranks_per_node, 1)
    count, whole = fit.program.microbatches, fit.program.launch_microbatches
    context = [one for one in rank.memory.sent if "CONTEXT_PARALLEL" in one.group]
    far = [one for one in context if len({member // node for member in one.ranks}) > 1]
    data = [one for one in rank.memory.sent if "DATA_PARALLEL" in one.group]
    context_bytes, far_bytes, data_bytes = (
        sum(one.leaving for one in some) / 1e9 for some in (context, far, data)
    )
    return (
        *(value for _, value in choice.settings),
        f"{'~' if fit.extended_from else ''}{rank.peak / GIB:.3f}",
        f"{(rank.memory.steady + CUBLAS_BYTES) / GIB:.3f}",
        "" if fit.margin is None else f"{fit.margin / GIB:.1f}",
        f"{count} of {whole}",
        f"{rank.memory.flops / 1e12 / count:.1f}",
        f"{context_bytes / count:.2f}",
        f"{far_bytes / count:.2f}",
        f"{data_bytes:.2f}",
    )


def choices_as_json(choices: Sequence[Choice]) -> dict[str, Any]:
    """Return all choices as JSON can hold them."""
    return {
        "choices": [
            {
                "settings": dict(choice.settings),
                "refused": choice.refused or None,
                "unmeasured": choice.unmeasured or None,
                "fit": None if choice.fit is None else as_json(choice.fit),
            }
            for choice in choices
        ]
    }
