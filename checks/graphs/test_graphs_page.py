"""The record of trainings by graphs: equal in every bit, and a broken replay is seen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.graphs import parity
from smoke.broken_replays import BROKEN
from smoke.training_matrix import Series

RECORD = Path(parity.__file__).parent / "results" / "parity.json"
NEEDED = {
    ("qwen3-tiny", "TP 2 x PP 1", (1, 2, 4)),
    ("qwen3-tiny", "TP 2 x PP 2", (1, 2)),
    ("qwen3-tiny", "PP 2 x VPP 2", (1, 2, 4)),
    ("moonlight-tiny", "CP 1, 2, 4, 8", (1, 2, 4, 8)),
    ("qwen3-tiny", "static CP 4", (4,)),
}


def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


def test_every_training_was_compared_for_a_hundred_steps() -> None:
    record = recorded()
    rows = record["rows"]
    assert [row["id"] for row in rows] == [row.id for row in parity.ROWS]
    assert record["steps"] == 100
    assert {row["steps"] for row in rows} == {100}
    assert {(row["preset"], row["name"], tuple(row["sizes"])) for row in rows} >= NEEDED
    assert all(parity.holds(row) for row in rows)


def of_record(side: dict[str, list[float]]) -> Series:
    return list(zip(side["loss"], side["grad_norm"], strict=True))


def test_the_recorded_series_are_equal_in_every_bit() -> None:
    """What the record says of a row follows from its numbers; and the models learn."""
    for row in recorded()["rows"]:
        static, bank = of_record(row["static"]), of_record(row["bank"])
        assert len(static) == row["steps"]
        assert parity.is_bitwise(bank, static)
        assert parity.absolute_difference(bank, static) == row["difference"] == 0.0
        assert static[-1][0] < 0.8 * static[0][0]
        loss, norm = bank[-1]
        bank[-1] = loss, norm + 2.0**-52 * norm
        assert not parity.is_bitwise(bank, static)


def test_what_a_cp_size_adds_to_a_bank() -> None:
    rows = {row["id"]: row["graphs"] for row in recorded()["rows"]}
    one, three = (rows[f"qwen3-tiny, {name}, layer"] for name in ("static CP 4", "planned on 4"))
    assert three["rows"] == one["rows"] and three["memory"]["4"] == one["memory"]["4"]
    for name, graphs in rows.items():
        held = list(graphs["memory"].values())
        assert graphs["total"] == graphs["rows"] + sum(size["total"] for size in held)
        assert all(size["inputs"] > 0 and size["private"] > size["gradients"] > 0 for size in held)
        gradients = {size["gradients"] for size in held}
        assert len(gradients) == 1
        assert not name.endswith("layer") or gradients == {graphs["rows"]}


def test_a_replay_that_is_broken_was_seen() -> None:
    controls = {control["id"]: control for control in recorded()["controls"]}
    assert list(controls) == list(BROKEN)
    assert all(control["seen"] for control in controls.values())
    assert controls["one-bit"]["difference"] < 1e-12 < controls["one-behind"]["difference"]
    first, last = controls["one-behind"]["losses"]
    assert 0 < last < first, "the loss falls all the same"


def test_nan_is_no_equal_number() -> None:
    whole, broken = [(1.0, 2.0)], [(1.0, float("nan"))]
    assert parity.absolute_difference(whole, broken) is None
    assert not parity.is_bitwise(broken, whole)
    assert not parity.is_bitwise([], []), "nothing was compared"
