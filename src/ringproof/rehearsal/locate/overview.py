"""How far every module of a step is from the reference, by ranks and by positions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise

from ringproof.rehearsal.locate.comparing import Compared, ports
from ringproof.rehearsal.locate.gradients import differences
from ringproof.rehearsal.locate.reading import Port, RankRecord
from ringproof.rehearsal.locate.result import MOST_TIMES, Culprit, ErrorMap, ModuleErrors
from ringproof.rehearsal.locate.search import Search, calls_of, stage_of
from ringproof.rehearsal.protocol.trace import REDUCED, WEIGHT

BLOCKS = 16
Cells = dict[tuple[str, str], dict[int, float]]
"""The largest error over its tolerance, by module and phase, and by rank or block."""
OF_PARAMETERS = ("gradient", "reduction", "scale", "optimizer")


def error_map(search: Search, found: Culprit) -> ErrorMap:
    """Compare all tensors of the step of a culprit."""
    step, runs = found.step, search.comparison.runs
    ranks, blocks = defaultdict[tuple[str, str], dict[int, float]](dict), _Blocks()
    order: dict[str, tuple[int, int]] = {}
    for rank, place, port in _ports(search, step):
        module, phase = port.call[3], "backward" if port.backward else "forward"
        order[module] = min(order.get(module, place), place)
        compared = search.look(rank, port)
        if compared is not None:
            _raise(ranks[module, phase], rank.trace.rank, compared.error, compared.tolerance)
            blocks.add((module, phase), compared)
    for phase, kind, at in (("gradients", REDUCED, step), ("weights", WEIGHT, step + 1)):
        for one in differences(runs, at, kind):
            name = (one.name[3].rpartition(".")[0], phase)
            for number in one.ranks:
                _raise(ranks[name], number, one.error, one.tolerance)
    phase = phase_of(found)
    for number in found.ranks:  # which can be of a tensor that its module only hands on
        _raise(ranks[found.module, phase], number, found.error, found.tolerance)
    numbers = tuple(rank.trace.rank for rank in runs.run.ranks)
    modules = sorted({name for name, _ in ranks}, key=lambda name: order.get(name, (0, 0)))
    return ErrorMap(step, numbers, blocks.borders, tuple(modules), tuple(
        ModuleErrors(
            module, phase, tuple(by_rank.get(number) for number in numbers),
            blocks.of((module, phase)),
        )
        for (module, phase), by_rank in ranks.items()
    ))  # fmt: skip


def _ports(search: Search, step: int) -> Iterator[tuple[RankRecord, tuple[int, int], Port]]:
    """Yield what modules return and the gradients of what they are given, in the order of calls."""
    for rank, batch in search.batches(step):
        for key, call in calls_of(rank, batch).items():
            place = (stage_of(rank, batch.chunk), call.entered)
            yield from ((rank, place, port) for port in ports(rank, key, "outputs", backward=False))
            yield from ((rank, place, port) for port in ports(rank, key, "inputs", backward=True))


def phase_of(found: Culprit) -> str:
    """Return the phase of a map in which a culprit is seen."""
    if found.phase in ("data", "forward"):
        return "forward"
    if found.phase == "optimizer":
        return "weights"
    return "gradients" if found.phase in OF_PARAMETERS else "backward"


def _raise(cells: dict[int, float], at: int, error: float, tolerance: float) -> None:
    ratio = error / tolerance if tolerance else (MOST_TIMES if error else 0.0)
    ratio = ratio if ratio < MOST_TIMES else MOST_TIMES  # also where it is not a number
    cells[at] = max(cells.get(at, 0.0), ratio)


class _Blocks:
    """Errors by position, which are put into blocks when the longest sequence is known."""

    def __init__(self) -> None:
        self._rows = defaultdict[tuple[str, str], dict[int, float]](dict)

    def add(self, name: tuple[str, str], compared: Compared) -> None:
        errors = compared.row_errors
        by_row = errors.max(axis=1, initial=0.0) if errors.ndim == 2 else errors
        for position, error in zip(compared.index.tolist(), by_row.tolist(), strict=True):
            _raise(self._rows[name], position, error, compared.tolerance)

    @cached_property
    def borders(self) -> tuple[int, ...]:
        length = 1 + max((max(rows, default=-1) for rows in self._rows.values()), default=-1)
        count = min(BLOCKS, length)
        return tuple(length * number // count for number in range(count + 1)) if count else ()

    def of(self, name: tuple[str, str]) -> tuple[float | None, ...]:
        rows = sorted(self._rows[name].items())
        found = [
            max((ratio for position, ratio in rows if start <= position < end), default=None)
            for start, end in pairwise(self.borders)
        ]
        return tuple(found) if any(one is not None for one in found) else ()
