"""Draws a graph bank from one that ran; ``python -m benchmarks.graphs.bank_picture``.

The entries are those that the first pipeline stage of a training captured, and the replays those
of its first step: no picture of another bank than the one that is there. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from ringproof.errors import InputError
from ringproof.harness.cluster import Cluster, ClusterOptions, RankContext, drop
from ringproof.harness.tape.backend import TapeBackend
from ringproof.reference.graphs.replay import Graphed
from ringproof.reference.training import banks
from ringproof.reference.training.options import GraphOptions, TrainOptions
from ringproof.reference.training.trainer import train
from smoke.training_matrix import Spread, options_of

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "graphs-bank.svg"
SPREAD = Spread({"pp": 2, "cp": 4}, batch={"forced_sizes": (4, 1, 2, 2, 4, 1)})
COLOURS = {4: "#3b6ea5", 2: "#7aa874", 1: "#e0a458"}
_KEY = re.compile(r"(?P<layer>\S+), slot (?P<slot>\d+), CP size (?P<size>\d+)")


class Entry(NamedTuple):
    """Of a bank."""

    layer: str
    slot: int
    size: int


class Replay(NamedTuple):
    """Of an entry."""

    direction: str
    entry: Entry


def first_stage(rank: RankContext, *, options: TrainOptions) -> tuple[list[Entry], list[Replay]]:
    """Entries in the order of their capture, and replays of the first step, on this rank."""
    entries: list[Entry] = []
    replays: list[Replay] = []
    capture = banks.capture_bank
    forward, backward = Graphed.replay_forward, Graphed.replay_backward

    def capturing(*arguments: Any) -> Any:
        made = capture(*arguments)
        entries.extend(_entry(str(key)) for key in made.replays)
        return made

    def forwards(graphed: Graphed, *arguments: Any, **options: Any) -> Any:
        replays.append(Replay("F", _entry(graphed.name)))
        return forward(graphed, *arguments, **options)

    def backwards(graphed: Graphed, *arguments: Any) -> Any:
        replays.append(Replay("B", _entry(graphed.name)))
        return backward(graphed, *arguments)

    with (
        mock.patch.object(banks, "capture_bank", capturing),
        mock.patch.object(Graphed, "replay_forward", forwards),
        mock.patch.object(Graphed, "replay_backward", backwards),
    ):
        train(options, rank.device, lambda record: None, backend=TapeBackend())
    return entries, replays


def _entry(name: str) -> Entry:
    found = _KEY.fullmatch(name)
    assert found is not None, "a key is written as its class says"
    return Entry(found["layer"], int(found["slot"]), int(found["size"]))


def numbered(replays: Sequence[Replay]) -> list[tuple[Replay, int]]:
    """Each replay with the number of its microbatch: a slot is given on at its first forward."""
    first = replays[0].entry.layer
    count, held, found = 0, {}, []
    for replay in replays:
        slot = replay.entry.slot
        if replay.direction == "F" and replay.entry.layer == first:
            held[slot], count = count, count + 1
        found.append((replay, held[slot]))
    return found


def draw(entries: Sequence[Entry], replays: Sequence[Replay], path: Path) -> None:
    """The bank on the left, a step on the right; a line for each slot.

    Raises:
        InputError: matplotlib is missing.
    """
    try:
        from matplotlib import pyplot, rcParams
    except ImportError as error:
        raise InputError(
            "matplotlib", None, "is not installed", "pip install matplotlib"
        ) from error
    rcParams["svg.hashsalt"] = "ringproof"  # the same file for the same picture
    figure, (bank, step) = pyplot.subplots(
        1, 2, figsize=(12, 2.9), width_ratios=(1, 2.1), layout="constrained"
    )
    _draw_bank(entries, bank)
    _draw_step(replays, step)
    slots = 1 + max(entry.slot for entry in entries)
    for axes in (bank, step):
        axes.set(ylim=(slots - 0.5, -0.5), yticks=range(slots), xticks=[])
        axes.set_yticklabels([f"slot {slot}" for slot in range(slots)])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _draw_bank(entries: Sequence[Entry], axes: Any) -> None:
    sizes = list(dict.fromkeys(entry.size for entry in entries))
    layers = list(dict.fromkeys(entry.layer for entry in entries))
    width = len(layers) + 0.4
    for entry in entries:
        left = sizes.index(entry.size) * width + layers.index(entry.layer)
        short = entry.layer.removeprefix("layers.")
        _box(axes, left, entry, 0.92, f"layer {short}\nF and B", alpha=1)
    for slot in {entry.slot for entry in entries}:
        end = len(sizes) * width - 0.3
        axes.plot((-0.15, end, end, -0.15, -0.15), _frame(slot), color="#999999", lw=0.8)
    for place, size in enumerate(sizes):
        middle = place * width + (width - 0.5) / 2
        axes.text(middle, -0.47, f"CP {size}", ha="center", va="bottom", fontsize=9)
    axes.set_xlabel("a frame is one memory pool, captured from left to right", fontsize=9)


def _draw_step(replays: Sequence[Replay], axes: Any) -> None:
    for place, (replay, microbatch) in enumerate(numbered(replays)):
        alpha = 1 if replay.direction == "F" else 0.55
        _box(axes, place, replay.entry, 0.94, f"{replay.direction}{microbatch}", alpha=alpha)
    axes.text(0, -0.47, "replays of a step, one after the other", va="bottom", fontsize=9)
    axes.set_xlabel("forward (F) and backward (B) of each microbatch, layer by layer", fontsize=9)
    axes.set_xlim(-0.2, len(replays) + 0.2)


def _box(axes: Any, left: float, entry: Entry, width: float, text: str, *, alpha: float) -> None:
    colour = COLOURS[entry.size]
    axes.bar(left, 0.62, width, entry.slot - 0.31, align="edge", color=colour, alpha=alpha)
    ink = "white" if entry.size == max(COLOURS) and alpha == 1 else "black"
    middle = left + width / 2
    axes.text(middle, entry.slot, text, ha="center", va="center", fontsize=7.5, color=ink)


def _frame(slot: int) -> tuple[float, ...]:
    top, bottom = slot - 0.42, slot + 0.42
    return (top, top, bottom, bottom, top)


def main() -> int:
    """Run a step of a training, and draw it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--output", type=Path, default=PICTURE)
    arguments = parser.parse_args()
    options = options_of("qwen3-tiny", SPREAD, steps=1)
    graphs = GraphOptions(graphs="bank", graph_backend="tape", graph_warmup=0)
    with Cluster(SPREAD.ranks, ClusterOptions(log_sink=drop)) as cluster:
        found = cluster.run(first_stage, options=replace(options, graphs=graphs)).values[0]
    draw(*found, arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
