"""What makes the record about graphs, in a few steps: it finds equal, and it finds broken."""

from __future__ import annotations

import json

import pytest

from benchmarks.graphs import parity, pitfalls, tables
from benchmarks.graphs.bank_picture import PICTURE, bank_that_ran
from benchmarks.graphs.parity_rows import CONTROL
from ringproof.cluster import Cluster

pytestmark = pytest.mark.slow  # the same comparison, on every layout: test_graph_bank


def test_a_row_is_measured_as_recorded(cluster: Cluster) -> None:
    row = parity.measure(cluster, CONTROL, 2)
    assert parity.holds(row)
    assert row["sizes"] == [1, 2, 4]
    assert set(row["replays"]) == {"1", "2", "4"}
    assert row["graphs"]["entries"] == 4 * row["graphs"]["entries_of_rank"]
    # Without capacity packs have fewer rows; that may round otherwise, depending on the processor.
    assert 0 <= row["off_difference"] < 1e-12
    recorded = json.loads((tables.RESULTS / "parity.json").read_text(encoding="utf-8"))
    assert [list(one) for one in recorded["rows"]] == [list(row)] * len(recorded["rows"])


def test_boundaries_of_the_microbatch_before_are_seen(cluster: Cluster) -> None:
    (control,) = parity.measure_controls(cluster, ["one-behind"], 3)
    assert control["seen"]
    assert control["first_step"] == 2
    assert control["difference"] > 1e-3


def test_the_group_of_another_size_is_as_recorded(cluster: Cluster) -> None:
    (pitfall,) = (one for one in pitfalls.PITFALLS if one.id == "group-identity")
    recorded = json.loads((tables.RESULTS / "pitfalls.json").read_text(encoding="utf-8"))
    (row,) = (one for one in recorded["pitfalls"] if one["id"] == pitfall.id)
    assert pitfalls.row_of(pitfall, pitfalls.observe(pitfall, cluster)) == row


@pytest.mark.slow
def test_the_picture_of_the_bank_is_up_to_date() -> None:
    """If not: ``python -m benchmarks.graphs.bank_picture``."""
    assert PICTURE.read_text(encoding="utf-8") == str(bank_that_ran())
