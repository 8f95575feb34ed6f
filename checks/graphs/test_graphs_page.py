"""The page about graphs says what was recorded, and the records are of what there is to show."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.graphs import parity, parity_rows, pitfalls, refusals, tables
from benchmarks.graphs.parity_rows import Trained

ROOT = Path(__file__).parents[2]
PLACE = re.compile(r"\.py:\d+")
SINGLE = [pitfall for pitfall in pitfalls.PITFALLS if pitfall.staged is None]
NEEDED = {
    ("qwen3-tiny", "TP 2 x PP 1", (1, 2, 4)),
    ("qwen3-tiny", "TP 2 x PP 2", (1, 2)),
    ("qwen3-tiny", "PP 2 x VPP 2", (1, 2, 4)),
    ("moonlight-tiny", "CP 1, 2, 4, 8", (1, 2, 4, 8)),
    ("qwen3-tiny", "static CP 4", (4,)),
}


def recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((tables.RESULTS / name).read_text(encoding="utf-8"))
    return found


def test_the_page_has_the_recorded_tables() -> None:
    text = tables.PAGE.read_text(encoding="utf-8")
    assert text.count("<!-- table: ") == len(tables.TABLES)
    assert tables.page(text) == text, "run: python -m benchmarks.graphs.tables"


def test_every_training_was_compared_for_a_hundred_steps() -> None:
    record = recorded("parity.json")
    rows = record["rows"]
    assert [row["id"] for row in rows] == [row.id for row in parity_rows.ROWS]
    assert record["steps"] == 100
    assert {row["steps"] for row in rows} == {100}
    assert {(row["preset"], row["name"], tuple(row["sizes"])) for row in rows} >= NEEDED
    assert all(parity.holds(row) for row in rows)


def of_record(side: dict[str, list[float]]) -> Trained:
    return Trained(loss=side["loss"], grad_norm=side["grad_norm"])


def test_the_recorded_series_are_equal_in_every_bit() -> None:
    """What the record says of a row follows from its numbers; and the models learn."""
    for row in recorded("parity.json")["rows"]:
        static, bank = of_record(row["static"]), of_record(row["bank"])
        assert len(static.loss) == row["steps"]
        assert parity.is_bitwise(bank, static)
        assert parity.absolute_difference(bank, static) == row["difference"] == 0.0
        assert static.loss[-1] < 0.8 * static.loss[0]
        bank.grad_norm[-1] += 2.0**-52 * bank.grad_norm[-1]
        assert not parity.is_bitwise(bank, static)


def test_a_replay_that_is_broken_was_seen() -> None:
    controls = {control["id"]: control for control in recorded("parity.json")["controls"]}
    assert list(controls) == list(parity_rows.BROKEN)
    assert all(control["seen"] for control in controls.values())
    assert controls["one-bit"]["difference"] < 1e-12 < controls["one-behind"]["difference"]
    first, last = controls["one-behind"]["losses"]
    assert 0 < last < first, "the loss falls all the same"


@pytest.mark.parametrize(
    ("change", "cell"),
    [
        ({"bitwise": False, "difference": 2e-16}, "| **2e-16** |"),
        ({"finite": False, "difference": None}, "| **not a number** |"),
        ({"replays": {"1": 3, "2": 0, "4": 5}}, "**never 2**"),
        ({"eager": 1}, "| **1** |"),
    ],
)
def test_a_row_that_fails_stands_out(change: dict[str, Any], cell: str) -> None:
    record = copy.deepcopy(recorded("parity.json"))
    row = record["rows"][0]
    assert cell not in tables.parity_table(record)
    row.update(change)
    assert cell in tables.parity_table(record)
    assert not parity.holds(row)


def test_nan_is_no_equal_number() -> None:
    whole, broken = Trained(loss=[1.0], grad_norm=[2.0]), Trained([1.0], [float("nan")])
    assert parity.absolute_difference(whole, broken) is None
    assert not parity.is_bitwise(broken, whole)
    assert not parity.is_bitwise(Trained(), Trained()), "nothing was compared"


def test_the_record_is_of_every_pitfall() -> None:
    rows = recorded("pitfalls.json")["pitfalls"]
    assert [(row["id"], row["broken"], row["proof"]) for row in rows] == [
        (pitfall.id, pitfall.broken, pitfall.proof) for pitfall in pitfalls.PITFALLS
    ]
    assert all(pitfalls.holds(row) for row in rows)
    missed = {**rows[0], "silent": "nothing"}
    assert not pitfalls.holds(missed)
    assert "**missed**" in tables.pitfall_table({"pitfalls": [missed]})


@pytest.mark.parametrize("pitfall", pitfalls.PITFALLS, ids=lambda pitfall: pitfall.id)
def test_the_proof_is_a_test(pitfall: pitfalls.Pitfall) -> None:
    path, _, name = pitfall.proof.partition("::")
    assert f"\ndef {name}(" in (ROOT / path).read_text(encoding="utf-8")


@pytest.mark.parametrize("pitfall", SINGLE, ids=lambda pitfall: pitfall.id)
def test_a_pitfall_is_still_as_recorded(pitfall: pitfalls.Pitfall) -> None:
    """Those of one process; of the others the tests are in the smoke tests."""
    row = next(r for r in recorded("pitfalls.json")["pitfalls"] if r["id"] == pitfall.id)
    found = pitfalls.row_of(pitfall, pitfalls.observe(pitfall))
    for field in ("sound", "silent", "said", "note"):
        assert PLACE.sub("", str(found[field])) == PLACE.sub("", str(row[field]))


def test_a_registered_buffer_that_moves_dangles() -> None:
    """Expandable segments: what NCCL registered at capture may be mapped elsewhere later."""
    (pitfall,) = (one for one in pitfalls.PITFALLS if one.id == "expandable-segments")
    seen = pitfalls.observe(pitfall)
    assert seen.sound, "where it stays, a replay is as eager"
    assert seen.silent == "NaN"
    assert re.match(
        r"part, forward: dangling address: `registered` float64 \[4\], first used at "
        r"graphs/pitfall_trials.py:\d+, was freed or moved after the capture",
        seen.said,
    )


def test_the_record_is_of_all_refusals() -> None:
    rows = recorded("refusals.json")["refusals"]
    assert [(row["what"], row["options"]) for row in rows] == [
        (wrong.what, wrong.options) for wrong in refusals.WRONG
    ]
    assert all(refusals.holds(row) for row in rows)
    assert not refusals.holds({**rows[0], "exit_code": 1})
    assert not refusals.holds({**rows[0], "lines": 2})
