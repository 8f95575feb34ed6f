"""What the tape costs: a capture, and a replay against the eager computation.

The tape is a test instrument. It runs every operation through Python with fresh results and a copy
to where they were, and so is slower than what it replays; the question is by how much, because
tests of a hundred steps have to fit into seconds. No statement about a GPU follows from it.

    python -m benchmarks.graphs.tape --json build/graph_tape.json
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from checks.graphs.captures import tensor
from checks.model.whole_model import whole
from ringproof.files import write_atomically
from ringproof.reference.graphs.backend import Capture
from ringproof.reference.graphs.tape.backend import TapeBackend
from ringproof.reference.graphs.tape.segment import UndefinedBehaviour
from ringproof.reference.model.config import preset
from smoke.model_batches import group_of_one, random_sequences, rank_batch

MODELS = ("qwen3-tiny", "moonlight-tiny")
WAYS = ("eager", "tape", "tape without poison")


def milliseconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return (time.perf_counter() - start) * 1e3


def step(function: Callable[..., Any], x: torch.Tensor, positions: torch.Tensor) -> None:
    """Forward and backward of one layer."""
    output = function(x, positions)[0]
    output.backward(torch.ones_like(output))


def measure(name: str, rounds: int) -> dict[str, Any]:
    """One layer on one rank."""
    config = preset(name)
    layer = whole(config).layers["0"]
    with group_of_one() as alone:
        batch = rank_batch(random_sequences(), alone)

        def function(x: torch.Tensor, positions: torch.Tensor) -> Any:
            return layer(x, replace(batch, positions=positions))

        def captured(realism: UndefinedBehaviour) -> Any:
            capture = Capture(
                name=name,
                function=function,
                inputs=(tensor(batch.rows, config.hidden, grad=True), batch.positions.clone()),
                parameters=dict(layer.named_parameters()),
            )
            return TapeBackend(realism).capture([capture], warm_up=0)[0]

        tape, careless = captured(UndefinedBehaviour()), captured(UndefinedBehaviour(poison=False))
        capture_ms = statistics.median(
            milliseconds(lambda: captured(UndefinedBehaviour())) for _ in range(3)
        )
        x = tensor(batch.rows, config.hidden, grad=True)
        ways = dict(zip(WAYS, (function, tape, careless), strict=True))
        medians = compare(ways, (x, batch.positions), rounds)
    return {
        "model": name,
        "rows": batch.rows,
        "operations": [len(segment.operations) for segment in tape._segments],
        "milliseconds": medians,
        "replay_over_eager": {way: medians[way] / medians["eager"] for way in WAYS[1:]},
        "capture_over_eager": capture_ms / medians["eager"],
        "private_bytes": tape.memory.private,
    }


def compare(ways: dict[str, Any], arguments: tuple[Any, ...], rounds: int) -> dict[str, float]:
    """Median milliseconds. Rounds alternate, so that a busy machine slows all alike."""
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, run in ways.items():
            times[way].append(milliseconds(partial(step, run, *arguments)))
    return {way: statistics.median(values) for way, values in times.items()}


def table(results: list[dict[str, Any]]) -> str:
    """For a reader at a terminal."""
    lines = ["layer of         operations  eager ms  replay/eager  no poison  capture/eager"]
    for one in results:
        ratios = one["replay_over_eager"]
        lines.append(
            f"{one['model']:16} {sum(one['operations']):10} {one['milliseconds']['eager']:9.2f} "
            f"{ratios['tape']:13.2f} {ratios['tape without poison']:10.2f} "
            f"{one['capture_over_eager']:14.1f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = [measure(name, arguments.rounds) for name in MODELS]
    print(table(results))
    if arguments.json:
        where = {"torch": torch.__version__, "python": platform.python_version(), "threads": 1}
        text = json.dumps({"where": where, "layers": results}, indent=2) + "\n"
        write_atomically(arguments.json, text)


if __name__ == "__main__":
    main()
