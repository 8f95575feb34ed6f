"""The benchmark that predicts the published table."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.planner.example_setup import TABLE, as_microbatches, batches, domain, drawn, padded

FOLDER = Path(__file__).parents[2] / "benchmarks" / "planner"
RESULT = json.loads((FOLDER / "results" / "published.json").read_text(encoding="utf-8"))
# Dynamic over static, as the README of the example prints it.
PRINTED = {4: 1.285, 8: 1.412, 16: 1.212, 32: 1.375, 64: 1.495}


def summaries(result):
    for preset in result["preset"]:
        yield preset["upstream"]
        yield preset["planner"]
    yield result["fitted"]["leave_one_row_out"]


def honest(summary):
    """All five rows as measured, ratios of their times, and the error that follows."""
    rows = summary["rows"]
    if {row["gpus"]: row["measured_speedup"] for row in rows} != PRINTED:
        return False
    errors = []
    for row in rows:
        static, dynamic = row["predicted_ms"]
        if row["predicted_speedup"] != pytest.approx(static / dynamic, rel=5e-3):
            return False
        errors.append(abs(row["predicted_speedup"] / row["measured_speedup"] - 1))
    return summary["speedup_mean_absolute_error"] == pytest.approx(np.mean(errors), abs=1e-4)


def test_the_table_is_the_published_one():
    assert {row.gpus: round(row.speedup, 3) for row in TABLE} == PRINTED


def test_recorded_errors_follow_from_the_recorded_rows():
    found = list(summaries(RESULT))
    assert len(found) == 5
    assert all(honest(summary) for summary in found)
    for spoil in ("predicted_speedup", "measured_speedup"):
        spoiled = copy.deepcopy(found[0])
        spoiled["rows"][2][spoil] += 0.1
        assert not honest(spoiled)


def test_the_text_says_what_was_recorded():
    text = (FOLDER / "published.md").read_text(encoding="utf-8")
    columns = [
        *(preset["upstream"] for preset in RESULT["preset"]),
        RESULT["fitted"]["leave_one_row_out"],
    ]
    for place, row in enumerate(TABLE):
        speedups = [column["rows"][place]["predicted_speedup"] for column in columns]
        cells = " | ".join(f"{value:.3f}" for value in (row.speedup, *speedups))
        assert f"| {row.gpus} | {cells} |" in text
    errors = " | ".join(f"{column['speedup_mean_absolute_error']:.1%}" for column in columns)
    assert errors in text
    assert f"off by {RESULT['fitted']['time_mean_absolute_error']:.1%}" in text
    for times in RESULT["replanned_with_fitted_costs"]:
        kinds = ("static_ms", "upstream_ms", "planner_ms")
        cells = " | ".join(f"{times[kind]:.1f}" for kind in kinds)
        assert re.search(rf"\| {times['gpus']} \| {re.escape(cells)} \|", text)


def test_batches_are_the_examples():
    lengths = drawn(0)
    assert (lengths.min(), lengths.max()) == (127, 8191)
    assert lengths.mean() == pytest.approx(905.7, abs=0.1)
    assert not np.array_equal(drawn(1, 1000), lengths[:1000])
    found = list(batches(0, 8))
    assert len(found) == 20
    # 16 samples each, from sample 160 on; gathered rank by rank: even samples, then odd ones.
    assert found[0].tolist() == [*lengths[160:176:2], *lengths[161:176:2]]
    assert padded(np.array([127, 128, 129]), 16).tolist() == [128, 128, 144]
    assert domain(8).cp_sizes == (1, 2, 4, 8)


def test_upstreams_groups_lie_side_by_side():
    (found,) = as_microbatches([[(4, (0,)), (2, (1, 2)), (2, (3,))]])
    assert [(group.first_rank, group.size) for group in found.groups] == [(0, 4), (4, 2), (6, 2)]
    assert found.groups[1].sequences == (1, 2)
