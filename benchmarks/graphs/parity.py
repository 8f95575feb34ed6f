"""A training by graphs against the same training without, bit by bit, and what each replayed.

    python -m benchmarks.graphs.parity --json benchmarks/graphs/results/parity.json
    python -m benchmarks.tables

Every row trains twice in float64, from the same parameters on the same samples: on packs of
capacity, and on these by the graph bank on the tape. Loss and gradient norm have to be equal in
every bit. For information a few steps are compared with packs as they are. Half an hour on two
cores. ``--only`` repeats the rows whose id has one of the words, and keeps the others.
Exit 1 where a row differs, is not finite, or leaves a CP size without a replay, and where a
broken replay is not seen.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.records import write_record
from ringproof.cluster import Cluster, ClusterOptions, drop
from ringproof.reference.training.options import GraphOptions, TrainOptions
from smoke import trials
from smoke.broken_replays import BROKEN
from smoke.training_matrix import Series, Spread, Trace, largest_difference, options_of

STEPS, CONTROL_STEPS, UNPADDED_STEPS = 100, 20, 10
SERIES = ("loss", "grad_norm")


@dataclass(frozen=True)
class Row:
    """A training that is compared.

    Args:
        name: Name of the layout, for the table.
        preset: Preset of the model.
        spread: How the training is spread over ranks, and its schedule.
        scope: Which part of a layer one graph holds.
    """

    name: str
    preset: str
    spread: Spread
    scope: str = "layer"

    @property
    def id(self) -> str:
        """What ``--only`` is matched against."""
        return f"{self.preset}, {self.name}, {self.scope}"

    def options(self, way: str, steps: int) -> TrainOptions:
        """Options of a run: packs as they are (``off``), packs of capacity (``static``), or these
        replayed (``bank``).
        """
        graphs = GraphOptions(graphs=way)
        if way == "bank":
            graphs = replace(graphs, graph_backend="tape", graph_scope=self.scope)
        return replace(options_of(self.preset, self.spread, steps=steps), graphs=graphs)


_ONE_TWO_FOUR = MappingProxyType({"forced_sizes": (4, 1, 2)})
_ONE_TWO = MappingProxyType({"forced_sizes": (2, 1)})
_ALL_OF_EIGHT = Spread({"cp": 8}, batch={"forced_sizes": (1, 2, 4, 8)})
_STATIC = Spread({"cp": 4}, batch={"schedule": "packed"})
_LONG_TAIL = MappingProxyType({"max_sequence_length": 256, "data": "synthetic:mean=64"})
_RECOMPUTE = MappingProxyType({"recompute": True})

ROWS = (
    Row("TP 2 x PP 1", "qwen3-tiny", Spread({"tp": 2, "cp": 4}, batch=_ONE_TWO_FOUR)),
    Row("TP 2 x PP 2", "qwen3-tiny", Spread({"tp": 2, "pp": 2, "cp": 2}, batch=_ONE_TWO)),
    Row("PP 2 x VPP 2", "qwen3-tiny", Spread({"pp": 2, "cp": 4}, {"vpp": 2}, _ONE_TWO_FOUR)),
    Row("CP 1, 2, 4, 8", "moonlight-tiny", _ALL_OF_EIGHT, "attn"),
    Row("CP 1, 2, 4, 8", "moonlight-tiny", _ALL_OF_EIGHT, "router"),
    Row("static CP 4", "qwen3-tiny", _STATIC),
    Row("static CP 4", "moonlight-tiny", _STATIC, "attn"),
    Row("planned on 4", "qwen3-tiny", Spread({"cp": 4}, batch=_LONG_TAIL)),
    Row("recompute", "qwen3-tiny", Spread({"cp": 4}, batch=_ONE_TWO_FOUR, model=_RECOMPUTE)),
)
CONTROL = Row("CP 4", "qwen3-tiny", Spread({"cp": 4}, batch=_ONE_TWO_FOUR))
"""The training in which replays are broken."""


def measure(cluster: Cluster, row: Row, steps: int) -> dict[str, Any]:
    """Train a row with graphs and without; return its entry of the record."""
    found = {way: _train(cluster, row, way, steps) for way in ("static", "bank")}
    few = min(steps, UNPADDED_STEPS)
    off, capacity = (_train(cluster, row, way, few)[0].steps for way in ("off", "static"))
    static, replayed = found["static"][0], found["bank"][0]
    options = row.options("bank", steps)
    difference = absolute_difference(replayed.steps, static.steps)
    return {
        "id": row.id,
        "preset": row.preset,
        "name": row.name,
        "scope": row.scope,
        "ranks": row.spread.ranks,
        "schedule": options.batch.schedule,
        "sizes": list(options.group_sizes),
        "steps": steps,
        "difference": difference,
        "bitwise": is_bitwise(replayed.steps, static.steps),
        "finite": difference is not None,
        "off_difference": largest_difference(capacity, off),
        "replays": {str(size): count for size, count in sorted(replayed.replays.items())},
        "eager": replayed.eager,
        "graphs": replayed.graphs,
        "seconds": {way: ranks[0].step_seconds for way, ranks in found.items()},
        "static": dict(zip(SERIES, map(list, zip(*static.steps, strict=True)), strict=True)),
        "bank": dict(zip(SERIES, map(list, zip(*replayed.steps, strict=True)), strict=True)),
    }


def measure_controls(
    cluster: Cluster, names: Sequence[str] = tuple(BROKEN), steps: int = CONTROL_STEPS
) -> Iterator[dict[str, Any]]:
    """Make the same comparison with broken replays, which have to differ."""
    static = _train(cluster, CONTROL, "static", steps)[0]
    for name in names:
        found = _train(cluster, CONTROL, "bank", steps, control=name)[0]
        pairs = enumerate(zip(found.steps, static.steps, strict=True), 1)
        differing = [step for step, (one, other) in pairs if one != other]
        yield {
            "id": name,
            "broken": BROKEN[name],
            "row": CONTROL.id,
            "steps": steps,
            "losses": [found.steps[0][0], found.steps[-1][0]],
            "seen": bool(differing),
            "first_step": differing[0] if differing else None,
            "difference": absolute_difference(found.steps, static.steps),
        }


def holds(row: dict[str, Any]) -> bool:
    """Whether a row is equal and finite, with every CP size replayed and nothing computed eager."""
    replayed = all(row["replays"].get(str(size), 0) > 0 for size in row["sizes"])
    return bool(row["bitwise"] and row["finite"] and replayed and not row["eager"])


def is_bitwise(found: Series, wanted: Series) -> bool:
    """Whether every number of every step is the same in every bit."""
    bits = [[(loss.hex(), norm.hex()) for loss, norm in series] for series in (found, wanted)]
    return bool(wanted) and bits[0] == bits[1]


def absolute_difference(found: Series, wanted: Series) -> float | None:
    """Largest difference in loss or gradient norm over all steps; ``None`` if not finite."""
    steps = zip(found, wanted, strict=True)
    pairs = [pair for one, other in steps for pair in zip(one, other, strict=True)]
    if not all(math.isfinite(value) for pair in pairs for value in pair):
        return None
    return max(abs(one - other) for one, other in pairs)


def _train(
    cluster: Cluster, row: Row, way: str, steps: int, *, control: str = ""
) -> Sequence[Trace]:
    print(f"{row.id}: {way} {control}".rstrip(), flush=True)
    outcome = cluster.run(
        trials.train,
        world_size=row.spread.ranks,
        renewed_by_output=True,
        options=row.options(way, steps),
        control=control,
    )
    ranks: Sequence[Trace] = outcome.values
    if not all(is_bitwise(rank.steps, ranks[0].steps) for rank in ranks):
        raise RuntimeError(f"{row.id}, {way}: ranks differ in loss or gradient norm")
    return ranks


def _line(row: dict[str, Any]) -> str:
    return (
        f"{'ok ' if holds(row) else 'RED'} {row['id']:<40} difference {row['difference']} "
        f"replays {row['replays']} eager {row['eager']} seconds {row['seconds']}"
    )


def _kept(arguments: argparse.Namespace) -> tuple[dict[str, Any], ...]:
    """Rows and controls of an earlier record of as many steps, by id."""
    if not (arguments.only and arguments.json and arguments.json.exists()):
        return {}, {}
    record = json.loads(arguments.json.read_text(encoding="utf-8"))
    if record["steps"] != arguments.steps:
        return {}, {}
    return tuple({one["id"]: one for one in record[name]} for name in ("rows", "controls"))


def main() -> int:
    """Run what is asked for; see the file for the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows, controls = _kept(arguments)

    def write() -> None:
        content = {"steps": arguments.steps, "off_steps": UNPADDED_STEPS, "dtype": "float64"}
        found = [rows[row.id] for row in ROWS if row.id in rows]
        content = {**content, "rows": found, "controls": list(controls.values())}
        write_record(arguments.json, content)

    def show(rank: int, line: str) -> None:
        drop(rank, line) if rank else print(f"  {line}", flush=True)

    with Cluster(8, ClusterOptions(timeout_seconds=600, log_sink=show)) as cluster:
        for row in ROWS:
            if not arguments.only or any(word in row.id for word in arguments.only):
                rows[row.id] = measure(cluster, row, arguments.steps)
                print(_line(rows[row.id]), flush=True)
                write()
        if not arguments.only or "control" in arguments.only:
            for control in measure_controls(cluster):
                controls[control["id"]] = control
                print(control, flush=True)
                write()
    sound = all(holds(row) for row in rows.values())
    return 0 if sound and all(control["seen"] for control in controls.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
