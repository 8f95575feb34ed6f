"""What a run says of its graphs, and that nothing in a bank is counted twice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from typer.testing import CliRunner

from checks.graphs.test_bank import banked, batches, options
from checks.model.whole_model import whole
from checks.training.test_records import NOW, STEP
from ringproof.cli.main import app
from ringproof.reference.graphs.bank import GraphBank, capture_bank
from ringproof.reference.model.config import preset
from ringproof.reference.planning.samples import parse_samples
from ringproof.reference.topology.dynamic import ContextParallelGroup
from ringproof.reference.training.banks import graphs_record, rank_record
from ringproof.reference.training.records import (
    GraphsRecord,
    GraphTotals,
    RunRecord,
    SizeMemory,
    json_line,
)

SLOTS = 2
MIB = 2**20
RECORD = GraphsRecord(
    backend="tape",
    scope="layer",
    slots=2,
    entries=48,
    entries_of_rank=12,
    capture_seconds=1.25,
    rank=3,
    rows=MIB,
    memory={
        4: SizeMemory(entries=6, inputs=MIB, gradients=2 * MIB, private=3 * MIB),
        1: SizeMemory(entries=6, inputs=MIB, gradients=MIB, private=MIB),
    },
    stage_bytes=(9 * MIB, 10 * MIB),
)
COUNTS = (({1: 3, 4: 2, 8: 0}, 1), ({1: 5, 4: 0, 8: 0}, 2))
STEPS = [replace(STEP, graph_replays=replays, graph_eager=eager) for replays, eager in COUNTS]
TOTALS = GraphTotals.of_steps((1, 4, 8), STEPS)


def held(bank: GraphBank) -> GraphsRecord:
    return rank_record([bank], options(slots=SLOTS), (1,), scope="layer", seconds=2.5)


def test_each_static_tensor_is_counted_once(alone: ContextParallelGroup) -> None:
    bank, parts = banked(whole(preset("qwen3-tiny")), "layer", alone, slots=SLOTS)
    found = held(bank)
    graphs = [graph for _, graph in bank._graphs()]
    static = {t.data_ptr(): t.numel() * t.element_size() for g in graphs for t in g.inputs}
    assert found.rows + found.memory[1].inputs == sum(static.values())
    assert found.memory[1].inputs < sum(memory.inputs for memory in bank.memory.values())
    assert found.entries == found.memory[1].entries == len(parts) * SLOTS == len(graphs)
    assert found.memory[1].private == sum(memory.private for memory in bank.memory.values())
    one = graphs_record(found, stage=0)
    assert (one.total, one.stage_bytes) == (found.total, (found.total,))
    assert (one.entries, one.capture_seconds, one.rank) == (len(graphs), 2.5, 0)
    bank.reset()
    assert held(bank).total == 0


def test_a_stage_without_a_part_holds_nothing(alone: ContextParallelGroup) -> None:
    bank = capture_bank((), batches(alone)[:1], options())
    found = held(bank)
    assert (found.entries, found.total) == (0, 0)
    assert found.memory[1].as_json()["per_entry"] == 0


def test_the_record_has_totals_and_what_an_entry_holds() -> None:
    found = json.loads(json_line(RECORD))
    assert (found["kind"], found["cp_sizes"], found["total"]) == ("graphs", [1, 4], 10 * MIB)
    assert found["memory"]["4"] == {
        "entries": 6,
        "inputs": MIB,
        "gradients": 2 * MIB,
        "private": 3 * MIB,
        "total": 6 * MIB,
        "per_entry": MIB,
    }


def test_the_line_to_watch_says_what_was_captured() -> None:
    line = RECORD.progress_line(9)
    for part in (
        "graphs: tape, layer",
        "CP 1 4",
        "2 slots",
        "12 entries a rank, 48 in all",
        "captured in 1.2 s",
        "10.0 MiB on rank 3 (rows 1.0, CP 1 3.0, CP 4 6.0)",
        "by stage 9.0 10.0",
    ):
        assert part in line
    assert "\n" not in line


def test_totals_name_every_size_that_was_never_replayed() -> None:
    assert TOTALS.replays == {1: 8, 4: 2, 8: 0}
    assert TOTALS.unused == (8,)
    line = "graphs replayed: CP 1:8 4:2 8:0  eager 3  CP size 8 was never replayed"
    assert TOTALS.progress_line(9) == line
    assert json.loads(json_line(TOTALS))["unused"] == [8]
    used = GraphTotals(replays={1: 8, 4: 2}, eager=0)
    assert "never" not in used.progress_line(9)


def test_the_readers_of_a_log_pass_over_them(tmp_path: Path) -> None:
    """Both the comparison of curves and the planner's calibration."""
    run = RunRecord(arguments={}, world_size=1, environment={})
    logs = []
    for name, records in (("plain", (run, STEP)), ("graphs", (run, RECORD, STEP, TOTALS))):
        logs.append(tmp_path / f"{name}.jsonl")
        logs[-1].write_text("".join(f"{json_line(record)}\n" for record in records))
    arguments = ["logs", "parity", *map(str, logs), "--tol", "0", "--json", "-"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["b"]["notes"] == found["a"]["notes"] == []
    assert parse_samples(logs[1].read_text()) == parse_samples(logs[0].read_text()) != ()


def test_megatrons_format_has_no_line_for_them() -> None:
    assert STEP.megatron_line(9, NOW)
    assert not RECORD.megatron_line(9, NOW)
    assert not TOTALS.megatron_line(9, NOW)
