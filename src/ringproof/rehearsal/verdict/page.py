"""A rehearsal as one HTML page that needs no other file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jinja2 import PackageLoader, StrictUndefined
from jinja2.sandbox import SandboxedEnvironment

from ringproof.rehearsal.verdict.agreement import Agreement, Difference
from ringproof.rehearsal.verdict.path import Microbatch, PathTaken, named
from ringproof.rehearsal.verdict.result import CODE, OTHER_ATTENTION, Rehearsal
from ringproof.rehearsal.verdict.text import between, numbers, size, waiting_lines

MOST_MICROBATCHES = 120
CELL_WIDTH, CELL_HEIGHT = 26, 20
LABELS_WIDTH, HEADER_HEIGHT = 64, 34
STEP_GAP = 8
SHADES = 6
PLOT_WIDTH, PLOT_HEIGHT = 360, 150
PLOT_LEFT, PLOT_TOP, PLOT_BOTTOM = 74, 12, 24
LOWEST_RELATIVE = 1e-9  # equal numbers are drawn here


@dataclass(frozen=True)
class Cell:
    """Neighbouring ranks of one group in one microbatch.

    Attributes:
        x, y, height: Place in the picture.
        size: Ranks of the whole group; 0 where the rank takes no part.
    """

    x: float
    y: float
    height: float
    size: int
    shade: int
    title: str


@dataclass(frozen=True)
class Picture:
    """Ranks by microbatch.

    Attributes:
        sizes: CP size and colour of each size in the picture.
        left_out: Number of microbatches that are not drawn.
    """

    width: float
    height: float
    ranks: tuple[tuple[str, float], ...]
    steps: tuple[tuple[str, float], ...]
    cells: tuple[Cell, ...]
    sizes: tuple[tuple[int, int], ...]
    left_out: int


@dataclass(frozen=True)
class Plot:
    """Curves of one number over the training steps.

    Attributes:
        said: The largest difference in words.
        marks: Place of each point of the curves by class.
        tolerance: Place of the tolerance; ``None`` outside of the picture.
    """

    name: str
    said: str
    curves: tuple[tuple[str, str], ...]
    marks: tuple[tuple[str, float, float, str], ...]
    axis: tuple[tuple[str, float], ...]
    steps: tuple[tuple[str, float], ...]
    tolerance: float | None


def page(rehearsal: Rehearsal) -> str:
    """Return the page's text. Everything that came from outside is escaped."""
    environment = SandboxedEnvironment(
        loader=PackageLoader("ringproof.rehearsal.verdict"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(numbers=numbers, size=size, relative=_relative, number=_number)
    return environment.get_template("rehearsal.html.j2").render(
        rehearsal=rehearsal,
        variants=[
            {
                "it": variant,
                "picture": picture(variant.path),
                "plots": tuple(plots(variant.agreement)),
                "waiting": tuple(
                    waiting_lines({} if variant.refusal is None else variant.refusal.waiting)
                ),
                "layers": tuple(_layers(variant.path)),
            }
            for variant in rehearsal.variants
        ],
        between=() if rehearsal.between is None else tuple(plots(rehearsal.between)),
        said_between=()
        if rehearsal.against is None
        else tuple(between(rehearsal.main, rehearsal.against, rehearsal.between)),
        code=CODE,
        other_attention=OTHER_ATTENTION,
        cell=(CELL_WIDTH, CELL_HEIGHT),
        plot=(PLOT_WIDTH, PLOT_HEIGHT, PLOT_LEFT, PLOT_TOP),
    )


def picture(path: PathTaken) -> Picture | None:
    """Return the picture of ranks by microbatch; ``None`` where nothing was computed."""
    if not path.microbatches:
        return None
    drawn = path.microbatches[:MOST_MICROBATCHES]
    ranks = sorted(path.tokens)
    rows = {rank: HEADER_HEIGHT + index * CELL_HEIGHT for index, rank in enumerate(ranks)}
    x, step = float(LABELS_WIDTH), drawn[0].iteration
    cells: list[Cell] = []
    steps = [(f"step {step}", x)]
    for microbatch in drawn:
        if microbatch.iteration != step:
            step, x = microbatch.iteration, x + STEP_GAP
            steps.append((f"step {step}", x))
        cells += _cells(microbatch, x, rows)
        x += CELL_WIDTH
    sizes = sorted({cell.size for cell in cells if cell.size})
    return Picture(
        width=x + 2,
        height=HEADER_HEIGHT + len(ranks) * CELL_HEIGHT + 2,
        ranks=tuple((f"rank {rank}", rows[rank] + CELL_HEIGHT * 0.7) for rank in ranks),
        steps=tuple(steps),
        cells=tuple(cells),
        sizes=tuple((number, _shade(number)) for number in sizes),
        left_out=len(path.microbatches) - len(drawn),
    )


def plots(agreement: Agreement) -> Iterator[Plot]:
    """Return the plots of all compared numbers: values, then relative differences."""
    names = dict.fromkeys(item.name for item in agreement.differences if item.iteration)
    for name in names:
        points = [item for item in agreement.differences if item.name == name and item.iteration]
        largest = max(points, key=lambda item: item.relative)
        yield _values(name, points)
        yield _relatives(name, points, f"at most {largest.relative:.2g}")


def _cells(microbatch: Microbatch, x: float, rows: dict[int, int]) -> Iterator[Cell]:
    where = f"step {microbatch.iteration}, microbatch {microbatch.number}"
    placed: set[int] = set()
    for share in microbatch.shares:
        members = [rank for rank in share.ranks if rank in rows]
        placed.update(members)
        tokens = sorted(set(share.tokens))
        spread = str(tokens[0]) if len(tokens) == 1 else f"{tokens[0]} to {tokens[-1]}"
        kind = named(share.comm_type, share.sizes)
        said = f"{where}: ranks {numbers(share.ranks)}, {kind}, {spread} tokens per rank"
        for run in _runs(members, rows):
            height = rows[run[-1]] - rows[run[0]] + CELL_HEIGHT
            width = len(share.ranks)
            yield Cell(x, rows[run[0]], height, width, _shade(width), said)
    for rank in rows.keys() - placed:
        yield Cell(x, rows[rank], CELL_HEIGHT, 0, 0, f"{where}: rank {rank} takes no part")


def _runs(ranks: Sequence[int], rows: dict[int, int]) -> list[list[int]]:
    """Return ranks in runs of neighbouring rows."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rows[rank] - rows[runs[-1][-1]] == CELL_HEIGHT:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return runs


def _shade(size: int) -> int:
    return min(int(math.log2(max(size, 1))), SHADES - 1)


def _values(name: str, points: Sequence[Difference]) -> Plot:
    finite = [v for item in points for v in (item.value, item.reference) if math.isfinite(v)]
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    margin = (high - low) * 0.08 or abs(high) * 0.01 or 1.0
    low, high = low - margin, high + margin

    def height(value: float) -> float:
        return PLOT_TOP + _inner() * (1 - (value - low) / (high - low))

    curves, marks = [], []
    for kind, series in (
        ("reference", [item.reference for item in points]),
        ("run", [item.value for item in points]),
    ):
        places = [
            (x, height(value), f"step {item.iteration}: {value:.9g}")
            for (item, x), value in zip(_across(points), series, strict=True)
            if math.isfinite(value)
        ]
        curves.append((kind, _joined(places)))
        marks += [(kind, x, y, said) for x, y, said in places]
    axis = tuple((f"{value:.4g}", height(value)) for value in (low + margin, high - margin))
    return Plot(name, "", tuple(curves), tuple(marks), axis, _steps(points), None)


def _relatives(name: str, points: Sequence[Difference], said: str) -> Plot:
    tolerance = points[0].tolerance
    largest = max([tolerance, *(item.relative for item in points if item.relative < math.inf)])
    low, high = math.log10(LOWEST_RELATIVE), math.log10(largest) + 0.5

    def height(value: float) -> float:
        exponent = math.log10(max(value, LOWEST_RELATIVE)) if value < math.inf else high
        return PLOT_TOP + _inner() * (1 - (exponent - low) / (high - low))

    places = [
        (x, height(item.relative), f"step {item.iteration}: {item.relative:.3g}")
        for item, x in _across(points)
    ]
    marks = tuple(
        ("beyond" if not item.within else "difference", x, y, said)
        for item, (x, y, said) in zip(points, places, strict=True)
    )
    exponents = range(math.ceil(low), math.floor(high) + 1, 2)
    axis = tuple((f"1e{exponent}", height(10.0**exponent)) for exponent in exponents)
    curves = (("difference", _joined(places)),)
    title = f"{name}, relative difference"
    return Plot(title, said, curves, marks, axis, _steps(points), height(tolerance))


def _inner() -> float:
    return PLOT_HEIGHT - PLOT_TOP - PLOT_BOTTOM


def _across(points: Sequence[Difference]) -> Iterator[tuple[Difference, float]]:
    first, last = points[0].iteration, points[-1].iteration
    width = PLOT_WIDTH - PLOT_LEFT - 16
    for item in points:
        share = (item.iteration - first) / (last - first) if last > first else 0.5
        yield item, PLOT_LEFT + 6 + share * width


def _steps(points: Sequence[Difference]) -> tuple[tuple[str, float], ...]:
    every = max(1, len(points) // 6)
    return tuple((str(item.iteration), x) for item, x in list(_across(points))[::every])


def _joined(places: Sequence[tuple[float, float, str]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in places)


def _layers(path: PathTaken) -> Iterator[tuple[str, str]]:
    """Return layers with the same attention calls in one line."""
    kinds: dict[str, list[int]] = {}
    for layer, counts in path.by_layer.items():
        text = ", ".join(f"{count} in {count.calls} calls" for count in counts)
        kinds.setdefault(text, []).append(layer)
    yield from ((numbers(layers), text) for text, layers in kinds.items())


def _relative(value: float) -> str:
    return "not finite" if math.isinf(value) else f"{value:.2g}"


def _number(value: float) -> str:
    return f"{value:.9g}"
