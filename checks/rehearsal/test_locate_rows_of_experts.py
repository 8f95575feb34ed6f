"""Rows inside a mixture of experts are those of the same token and expert: made-up traces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from ringproof.rehearsal.locate import saying
from ringproof.rehearsal.locate.locating import AGREES, located
from ringproof.rehearsal.locate.reading import Array, RankRecord, RunTrace
from ringproof.rehearsal.locate.result import WrongPlace
from ringproof.rehearsal.locate.rows import zigzag
from ringproof.rehearsal.protocol.trace import (
    Place,
    RankTrace,
    TracedBatch,
    TracedCall,
    TracedTensor,
    Values,
)

ROWS, BATCH, WIDTH, EXPERTS = 16, 2, 3, 4
LAYER = "decoder.layers.0.mlp"
Change = Callable[[dict[str, Array]], None]
"""What is done to the tensors of experts of one rank."""


@dataclass(frozen=True)
class World:
    """A layer of experts that CP and DP ranks share.

    Attributes:
        size: CP ranks.
        expert: Size of EP.
        parts: Ranks that have parts of the same experts.
        alone: Whether each expert is a module of its own.
        by_part: Whether rows are in the order of the parts, and then of EP.
        changes: A change of the tensors of one rank's experts.
        dropped: Tokens that the second expert does not get.
        data: DP ranks.
        uneven: Whether these scale their losses differently.
    """

    size: int = 1
    expert: int = 1
    parts: int = 1
    alone: bool = False
    by_part: bool = False
    disturbed: float = 0.0
    changes: tuple[tuple[int, Change], ...] = ()
    dropped: int = 0
    data: int = 1
    uneven: bool = False

    def rows(self, rank: int) -> Array:
        """Rows of a sequence that a rank has."""
        return zigzag(rank % self.size, self.size, ROWS)

    def hidden(self, rank: int) -> Array:
        """Hidden states [s, b, h] of the samples of a rank."""
        draw = np.random.default_rng(1 + rank // self.size)
        return draw.standard_normal((ROWS, BATCH, WIDTH)) * (1 + self.disturbed)

    def rate(self, rank: int) -> float:
        """By what a rank multiplies its loss."""
        return (1 + rank // self.size * self.uneven) / self.size

    def group(self, rank: int) -> tuple[int, ...]:
        """Ranks that send each other tokens."""
        count = self.expert * self.parts
        first = rank // count * count
        return tuple(range(first, first + count))

    def run(self) -> RunTrace:
        """Return the traces of all ranks."""
        return RunTrace(tuple(map(self.rank, range(self.size * self.data))))

    def routed(self) -> Array:
        """Return which experts each token gets [s, b, e]: two of four."""
        chosen = np.random.default_rng(2).random((ROWS, BATCH, EXPERTS)).argsort(axis=2) < 2
        chosen[: self.dropped, :, 1] = False
        return chosen

    def rank(self, number: int) -> RankRecord:
        """Return the trace of one rank."""
        tokens = np.random.default_rng(number // self.size).integers(0, 99, (BATCH, ROWS))
        hidden, own, file = self.hidden(number), self.rows(number), _Bytes()
        routed, scale = self.routed(), self.rate(number)
        inside = self.inside(number, routed)
        for where, change in self.changes:
            if where == number:
                change(inside)
        mlp = hidden[own] * 7
        held = [tokens[:, own], hidden[own], mlp, routed[own].reshape(-1, EXPERTS), mlp[..., 0].T]
        grads: list[Array | None] = [
            None,
            hidden[own] * scale,
            mlp * scale,
            None,
            mlp[..., 0].T * scale,
        ]
        calls = [
            ("", 0, 99, -1, {"input_ids": 0, "position_ids": 5}, {"output": 4}),
            (LAYER, 1, 98, 0, {"hidden_states": 1}, {"output.0": 2}),
            (f"{LAYER}.router", 2, 3, 1, {"input": 1}, {"output.1": 3}),
            (f"{LAYER}.experts", 4, 97, 1, {"rows": 6}, {"output.0": 7}),
        ]  # fmt: skip
        held += [np.stack([own] * BATCH), inside["given"], inside["made"]]
        grads += [None, inside["~given"], inside["~made"]]
        for place, (expert, rows) in enumerate(self.modules(number, inside)):
            at = len(held)
            held += [inside["given"][rows], inside["first"][rows]]
            grads += [inside["~given"][rows], inside["~first"][rows]]
            name = f".local_experts.{expert}" if self.alone else ""
            event = 5 + 2 * place
            calls.append((f"{LAYER}.experts{name}.linear_fc1", event, event + 1, 3,
                          {"x": at}, {"output.0": at + 1}))  # fmt: skip
        fired = {4: 1, 2: 2, 7: 3, 6: 50, 1: 60} | {at: 40 - at for at in range(8, len(held))}
        tensors = tuple(
            TracedTensor(file.put(one), None if g is None else file.put(g), fired.get(at, -1))
            for at, (one, g) in enumerate(zip(held, grads, strict=True))
        )
        return RankRecord(
            RankTrace(
                number,
                Place(0, number % self.size, number // self.size, 0, (1, self.size, self.data, 1),
                      False, number % self.parts, self.group(number)),
                tensors,
                tuple(TracedCall(1, 0, 0, name, 0, a, b, up, f"{name}:1", given, made)
                      for name, a, b, up, given, made in calls),
                (TracedBatch(1, 0, 0, tuple(range(self.size)), ()),),
                (), {}, full=False, sharded=False, overlapped=False,
            ),
            np.frombuffer(file.data, np.uint8),
        )  # fmt: skip

    def own_experts(self, rank: int) -> range:
        """Experts of a rank."""
        count = EXPERTS // self.expert
        first = self.group(rank).index(rank) // self.parts * count
        return range(first, first + count)

    def inside(self, rank: int, routed: Array) -> dict[str, Array]:
        """Return what the experts of a rank get and make, in the order of a dispatcher."""
        group = self.group(rank)
        order = sorted(group, key=lambda one: one % self.parts if self.by_part else 0)
        pieces, experts, rates = [], [], []
        for expert in self.own_experts(rank):
            for one in order:
                rows = self.rows(one)
                tokens = self.hidden(one)[rows].reshape(-1, WIDTH)
                pieces.append(tokens[routed[rows].reshape(-1, EXPERTS)[:, expert]])
                experts.append(np.full(len(pieces[-1]), expert))
                rates.append(np.full((len(pieces[-1]), 1), self.rate(one)))
        given, expert = np.concatenate(pieces), np.concatenate(experts)
        first = given * (expert[:, None] + 1) * (1 + rank % self.parts)
        made = first * 2
        found = {"given": given, "first": first, "made": made}
        found |= {f"~{name}": value * np.concatenate(rates) for name, value in found.items()}
        return {**found, "expert": expert}

    def modules(self, rank: int, inside: dict[str, Array]) -> list[tuple[int, Array]]:
        """Return the modules of a rank's experts, with the rows of each."""
        if not self.alone:
            return [(0, np.full(len(inside["expert"]), True))]
        return [(one, inside["expert"] == one) for one in self.own_experts(rank)]


class _Bytes:
    """Values one after the other."""

    def __init__(self) -> None:
        self.data = b""

    def put(self, value: Array) -> Values:
        stored = Values(len(self.data), value.shape, value.dtype.str)
        self.data += np.ascontiguousarray(value).tobytes()
        return stored


def found(run: World, reference: World) -> WrongPlace:
    """Locate what is wrong in a run."""
    both = (replace(reference, disturbed=by).run() for by in (0.0, 1e-15))
    return located(run.run(), *both, (1,))


def scaled(name: str, *rows: int, by: float = 1.5) -> Change:
    """Change some rows of a tensor inside of experts."""

    def change(inside: dict[str, Array]) -> None:
        inside[name] = inside[name].copy()
        inside[name][list(rows)] *= by

    return change


def shifted(expert: int) -> Change:
    """Shift what one expert makes by one row."""

    def change(inside: dict[str, Array]) -> None:
        rows = inside["expert"] == expert
        inside["first"] = inside["first"].copy()
        inside["first"][rows] = np.roll(inside["first"][rows], 1, axis=0)

    return change


LAYOUTS = {
    "EP 1": (World(2), World()),
    "EP 2": (World(2, 2), World()),
    "EP 2, one by one": (World(2, 2, alone=True), World(alone=True)),
    "EP 4 against EP 2": (World(4, 4), World(2, 2)),
    "EP 2 over DP": (World(1, 2, data=2, uneven=True), World(data=2)),
    "EP 4 over CP and DP": (World(2, 4, data=2, uneven=True), World(data=2)),
    "parts": (World(2, 1, 2), World(2, 1, 2)),
    "EP 2, parts": (World(4, 2, 2), World(2, 1, 2)),
    "EP 2, in the order of parts": (World(4, 2, 2, by_part=True), World(2, 1, 2)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_rows_are_found_wherever_their_expert_is(name: str) -> None:
    run, reference = LAYOUTS[name]
    place = found(run, reference)
    assert (place.culprit, place.reason, place.left_out) == (None, AGREES, ())
    assert place.compared == sum(len(one.trace.tensors) * 2 - 4 for one in run.run().ranks)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("tensor", ["first", "~given"])
def test_a_wrong_row_is_said_by_sample_and_position(name: str, tensor: str) -> None:
    run, reference = LAYOUTS[name]
    inside = run.inside(1, run.routed())
    row = (run.hidden(0).reshape(-1, WIDTH) == inside["given"][0]).all(axis=1)
    token, expert = int(np.flatnonzero(row)[0]), int(inside["expert"][0])
    one = found(replace(run, changes=((1, scaled(tensor, 0)),)), reference).culprit
    assert one is not None
    assert one.module.startswith(f"{LAYER}.experts") and one.module.endswith("linear_fc1")
    assert one.phase == ("forward" if tensor == "first" else "backward")
    assert (one.ranks, one.positions) == ((1,), ((token // BATCH,) * 2,))
    assert one.samples == (token % BATCH,)
    assert one.tensor.endswith(f"(rows of expert {expert})")


def test_an_expert_whose_rows_are_shifted() -> None:
    one = found(World(2, 2, alone=True, changes=((1, shifted(3)),)), World(alone=True)).culprit
    assert one is not None
    assert one.module == f"{LAYER}.experts.local_experts.3.linear_fc1"
    assert one.factor == "rows are shifted by 1"


def test_rows_that_are_dispatched_wrongly_are_the_layers() -> None:
    wrong = replace(World(2, 2), changes=((0, scaled("given", 3, by=0.0)),))
    one = found(wrong, World()).culprit
    assert one is not None and one.module == LAYER
    assert one.tensor.startswith(f"input rows, which the forward of {LAYER} computed after")


def test_rows_that_the_reference_sends_elsewhere_are_listed() -> None:
    place = found(World(2, 2), World(dropped=1))
    said = {what for what, _ in place.left_out}
    assert f"rows inside {LAYER}.experts that the reference sends to other experts" in said


def test_rows_in_an_unknown_order_are_listed() -> None:
    def turned(inside: dict[str, Array]) -> None:
        for name in ("given", "first", "made", "~given", "~first", "~made"):
            inside[name] = inside[name][::-1]

    place = found(World(2, 2, changes=((0, turned),)), World())
    assert place.culprit is None
    assert f"input rows of {LAYER}.experts has its rows in an unknown order of experts" in dict(
        place.left_out
    )


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("dropped", [2, ROWS])
def test_tokens_that_a_disturbed_router_sends_elsewhere(alone: bool, dropped: int) -> None:
    run, reference = World(2, 2, alone=alone, disturbed=3e-16), World(alone=alone)
    moved = World(alone=alone, disturbed=1e-15, dropped=dropped)
    place = located(run.run(), reference.run(), moved.run(), (1,))
    assert (place.culprit, place.reason) == (None, AGREES)
    said = f"input x of {LAYER}.experts.local_experts.1.linear_fc1 has no counterpart in the"
    unknown = any(what.startswith(said) for what, _ in place.left_out)
    assert unknown == (alone and dropped == ROWS)


def test_a_reference_in_an_unknown_order_is_listed() -> None:
    def turned(inside: dict[str, Array]) -> None:
        inside["given"] = inside["given"][::-1]

    place = found(World(2, 2), World(changes=((0, turned),)))
    said = f"input rows of {LAYER}.experts has no row that the reference is known to give"
    assert any(what.startswith(said) for what, _ in place.left_out)


def test_parts_of_experts_of_another_size_are_listed() -> None:
    place = found(World(2, 1, 2), World())
    assert place.culprit is None
    left = [what for what, _ in place.left_out]
    assert any("output 0" in what and "parts of another size" in what for what in left)
    assert not any("input rows" in what and "gradient" not in what for what in left)


def test_a_sentence_names_the_experts() -> None:
    said = saying.sentence(found(World(2, 2, changes=((1, scaled("first", 0, -1)),)), World()))
    assert "output 0 (rows of experts 2-3)" in said
