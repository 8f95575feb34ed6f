"""What a run says of itself and of its graphs, and the file that keeps it."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from checks.graphs.test_bank import banked, options
from checks.model.whole_model import whole
from ringproof.cli.main import app
from ringproof.cli.train_log import LogFile
from ringproof.errors import InputError
from ringproof.reference.graphs.bank import GraphBank
from ringproof.reference.model.config import preset
from ringproof.reference.topology.dynamic import ContextParallelGroup
from ringproof.reference.training.banks import graphs_record, rank_record
from ringproof.reference.training.records import (
    EvaluationRecord,
    GraphsRecord,
    GraphTotals,
    Record,
    RunRecord,
    SizeMemory,
    StepRecord,
    json_line,
)

NOW = datetime(2026, 11, 21, 6, 5, 4)
STEP = StepRecord(
    step=7,
    loss=1 / 3,
    losses={"lm": 0.3, "mtp": 1 / 3 - 0.3},
    grad_norm=math.pi,
    learning_rate=1e-3,
    samples=56,
    tokens=900,
    rows=1000,
    step_seconds=0.5,
    planning_seconds=0.01,
    microbatches=(((4, (200, 300)),), ((1, (50,)), (1, (350,)))),
    cp_histogram={4: 2, 1: 6},
)


def test_a_line_is_read_back_bit_by_bit() -> None:
    found = json.loads(json_line(STEP))
    assert found["kind"] == "step"
    assert (found["loss"], found["grad_norm"]) == (STEP.loss, STEP.grad_norm)
    assert found["cp_histogram"] == {"1": 6, "4": 2}
    assert found["tokens_per_second"] == 1800
    assert found["microbatches"] == [
        [{"cp_size": 4, "lengths": [200, 300]}],
        [{"cp_size": 1, "lengths": [50]}, {"cp_size": 1, "lengths": [350]}],
    ]
    assert found["padding_fraction"] == pytest.approx(0.1)
    assert math.isnan(json.loads(json_line(replace(STEP, loss=math.nan)))["loss"])


def test_megatrons_line_has_its_fields_and_its_precision() -> None:
    line = STEP.megatron_line(300, NOW)
    assert line.startswith(" [2026-11-21 06:05:04.000000] iteration        7/     300 | ")
    for part in (
        "consumed samples:           56 |",
        "elapsed time per iteration (ms): 500.0 |",
        "learning rate: 1.000000E-03 |",
        "global batch size:     8 |",
        "lm loss: 3.000000E-01 |",
        "mtp_1 loss: 3.333333E-02 |",
        "grad norm: 3.142 |",
        "number of nan iterations:   0 |",
    ):
        assert part in line


def test_other_records_have_lines_of_their_own() -> None:
    run = RunRecord(arguments={"seed": 1}, world_size=4, environment={"torch": "2.6"})
    assert json.loads(json_line(run))["kind"] == "run"
    evaluation = EvaluationRecord(step=5, loss=2.5, losses={"lm": 2.5})
    assert json.loads(json_line(evaluation)) == {
        "kind": "evaluation",
        "step": 5,
        "loss": 2.5,
        "losses": {"lm": 2.5},
    }
    assert "validation loss at iteration 5 | lm loss value: 2.500000E+00" in (
        evaluation.megatron_line(300, NOW)
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


@pytest.mark.parametrize(
    ("record", "steps", "line"),
    [
        (
            STEP,
            300,
            "step   7/300  loss 0.333333  grad norm 3.1416  1,800 tokens/s  padding 10%  "
            "microbatches 2  CP 1:6 4:2",
        ),
        (
            RECORD,
            9,
            "graphs: tape, layer  CP 1 4  2 slots  12 entries a rank, 48 in all  "
            "captured in 1.2 s  10.0 MiB on rank 3 (rows 1.0, CP 1 3.0, CP 4 6.0)  "
            "by stage 9.0 10.0",
        ),
        (TOTALS, 9, "graphs replayed: CP 1:8 4:2 8:0  eager 3  CP size 8 was never replayed"),
        (GraphTotals(replays={1: 8}, eager=0), 9, "graphs replayed: CP 1:8  eager 0"),
    ],
)
def test_a_line_of_progress_says_what_ran(record: Record, steps: int, line: str) -> None:
    assert record.progress_line(steps) == line
    assert bool(record.megatron_line(steps, NOW)) == isinstance(record, StepRecord)


def test_records_of_graphs_have_totals_and_what_an_entry_holds() -> None:
    found = json.loads(json_line(RECORD))
    assert (found["kind"], found["cp_sizes"], found["total"]) == ("graphs", [1, 4], 10 * MIB)
    parts = {"inputs": MIB, "gradients": 2 * MIB, "private": 3 * MIB}
    assert found["memory"]["4"] == {"entries": 6, **parts, "total": 6 * MIB, "per_entry": MIB}
    assert (TOTALS.replays, TOTALS.unused) == ({1: 8, 4: 2, 8: 0}, (8,))
    assert json.loads(json_line(TOTALS))["unused"] == [8]


def test_the_reader_of_a_log_passes_over_them(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("before", "append", "after"),
    [
        ("", True, "new\n"),
        ("old\n", True, "old\nnew\n"),
        ("old\nhal", True, "old\nhal\nnew\n"),  # killed while it wrote
        ("old\nhal", False, "new\n"),
    ],
)
def test_a_record_is_a_line_of_its_own(
    tmp_path: Path, before: str, append: bool, after: str
) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(before)
    file = LogFile(str(path), "jsonl", append=append)
    assert path.read_text() == before  # a run that is refused loses nobody's log
    file.begin()
    file.add("new")
    assert path.read_text() == after


@pytest.mark.parametrize("append", [True, False])
def test_what_cannot_be_read_can_be_a_log(append: bool) -> None:
    """Such as a named pipe: it has no last line to end."""
    reader, writer = os.pipe()
    try:
        file = LogFile(f"/dev/fd/{writer}", "jsonl", append=append)
        file.begin()
        file.add("record")
        assert os.read(reader, 100) == b"record\n"
    finally:
        os.close(reader)
        os.close(writer)


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"--log: .* cannot be written \(No space left on device\)"
    ):
        LogFile("/dev/full", "jsonl", append=False).add("record")


FULL = """
import resource, sys
from ringproof.cli.train_log import LogFile
from ringproof.errors import InputError
resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))
file = LogFile(sys.argv[1], "jsonl", append=True)
file.add("x" * 14)
try:
    file.add("y" * 14)
except InputError as error:
    print(error.sentence)
"""


def test_a_line_that_does_not_fit_is_left_out(tmp_path: Path) -> None:
    """The system writes what fits of it, 5 bytes of 15."""
    path = tmp_path / "log"
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, check=True
    )
    said = f"'{path}' cannot be written (File too large); name a place that has room\n"
    assert done.stdout == said
    assert path.read_text() == "x" * 14 + "\n"
