"""Draws a graph bank from one that ran; ``python -m docs.making.graph_bank``.

The entries are those that the first pipeline stage of a training captured, and the replays those
of its first step: no picture of another bank than the one that is there.
`smoke/test_graph_benchmarks.py` fails when the picture is out of date.
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

from docs.making.drawings import Drawing
from ringproof.cluster import Cluster, ClusterOptions, RankContext, drop
from ringproof.files import write_atomically
from ringproof.reference.graphs.replay import Graphed
from ringproof.reference.graphs.tape.backend import TapeBackend
from ringproof.reference.training import banks
from ringproof.reference.training.options import GraphOptions, TrainOptions
from ringproof.reference.training.trainer import train
from smoke.training_matrix import Spread, options_of

PICTURE = Path(__file__).parents[1] / "images" / "graphs-bank.svg"
SPREAD = Spread({"pp": 2, "cp": 4}, batch={"forced_sizes": (4, 1, 2, 2, 4, 1)})
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


def drawing(entries: Sequence[Entry], replays: Sequence[Replay]) -> Drawing:
    """The bank above, a step below; a line for each slot."""
    made = Drawing(
        760,
        336,
        f"A bank of {len(entries)} graphs of one pipeline stage by slot and CP size, and below it "
        "the graphs that six microbatches replay in one step, forward and backward.",
    )
    slots = sorted({entry.slot for entry in entries})
    made.text(8, 18, "The bank, by CP size: a frame is one memory pool", "title")
    _draw_bank(made, entries, slots)
    made.text(8, 188, "Replays of one step: forward (F) and backward (B) by microbatch", "title")
    shown = numbered(replays)
    width = 690 / len(shown)
    for slot in slots:
        made.text(58, 232 + 56 * slot, f"slot {slot}", "end small")
    for place, (replay, microbatch) in enumerate(shown):
        left, top = 66 + place * width, 204 + 56 * replay.entry.slot
        style = f"cp{replay.entry.size}"
        made.box(left, top, width - 1, 44, style + (" back" if replay.direction == "B" else ""))
        words = f"{replay.direction}{microbatch}"
        made.text(left + width / 2, top + 27, words, f"{style} middle small")
    for place, size in enumerate(dict.fromkeys(entry.size for entry in entries)):
        made.box(66 + 80 * place, 314, 14, 14, f"cp{size}")
        made.text(86 + 80 * place, 326, f"CP {size}", "small")
    return made


def _draw_bank(made: Drawing, entries: Sequence[Entry], slots: Sequence[int]) -> None:
    sizes = list(dict.fromkeys(entry.size for entry in entries))
    layers = list(dict.fromkeys(entry.layer for entry in entries))
    width, gap = 690 / (len(sizes) * (len(layers) + 0.2)), 0.2
    for slot in slots:
        made.text(58, 60 + 66 * slot, f"slot {slot}", "end small")
        made.box(63, 28 + 66 * slot, 694, 58, "box")
    for entry in entries:
        place = sizes.index(entry.size) * (len(layers) + gap) + layers.index(entry.layer)
        left, top = 68 + place * width, 34 + 66 * entry.slot
        style = f"cp{entry.size}"
        made.box(left, top, width - 4, 46, style)
        short = entry.layer.removeprefix("layers.")
        middle = left + width / 2 - 2
        made.text(middle, top + 20, f"layer {short}", f"{style} middle small")
        made.text(middle, top + 35, "F and B", f"{style} middle small")


def bank_that_ran() -> Drawing:
    """Run a step of a training on all its ranks, and draw the bank of the first."""
    options = options_of("qwen3-tiny", SPREAD, steps=1)
    graphs = GraphOptions(graphs="bank", graph_backend="tape", graph_warmup=0)
    with Cluster(SPREAD.ranks, ClusterOptions(log_sink=drop)) as cluster:
        found = cluster.run(first_stage, options=replace(options, graphs=graphs)).values[0]
    return drawing(*found)


def main() -> int:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--output", type=Path, default=PICTURE)
    write_atomically(parser.parse_args().output, str(bank_that_ran()), field="--output")
    return 0


if __name__ == "__main__":
    sys.exit(main())
