"""A training by graphs against the same training without, bit by bit, and what each replayed.

    python -m benchmarks.graphs.parity --json benchmarks/graphs/results/parity.json
    python -m benchmarks.graphs.tables

Every row trains twice in float64, from the same parameters on the same samples: on packs of
capacity, and on these by the graph bank on the tape. Loss and gradient norm have to be equal in
every bit. For information a few steps are compared with packs as they are. Half an hour on two
cores.
``--only`` repeats the rows whose id has one of the words, and keeps the others of the record.
Exit 1 where a row differs, is not finite, or leaves a CP size without a replay, and where a
negative control is not seen.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.graphs.parity_rows import (
    BROKEN,
    CONTROL,
    ROWS,
    Row,
    Trained,
    trained,
)
from ringproof.cluster import Cluster, ClusterOptions, drop
from ringproof.files import write_atomically
from smoke.training_matrix import largest_difference

STEPS = 100
CONTROL_STEPS = 20
OFF_STEPS = 10
"""Of the comparison with packs as they are, which is for information."""
SERIES = ("loss", "grad_norm")


def main() -> int:
    """Run what is asked for; see the file for the exit code."""
    arguments = _arguments()
    path = Path(arguments.json) if arguments.json else None
    rows, controls = _kept(path, arguments) if arguments.only else ({}, {})
    with Cluster(8, ClusterOptions(timeout_seconds=600, log_sink=_show)) as cluster:
        for row in _chosen(arguments.only):
            rows[row.id] = measure(cluster, row, arguments.steps)
            print(_line(rows[row.id]), flush=True)
            _write(path, rows, controls, arguments.steps)
        if not arguments.only or "control" in arguments.only:
            for control in measure_controls(cluster):
                controls[control["id"]] = control
                print(_control_line(control), flush=True)
                _write(path, rows, controls, arguments.steps)
    sound = all(holds(row) for row in rows.values())
    return 0 if sound and all(control["seen"] for control in controls.values()) else 1


def measure(cluster: Cluster, row: Row, steps: int) -> dict[str, Any]:
    """One row of the record."""
    found = {way: _train(cluster, row, way, steps) for way in ("static", "bank")}
    off, capacity = (
        _train(cluster, row, way, min(steps, OFF_STEPS))[0].series for way in ("off", "static")
    )
    static, replayed = found["static"][0], found["bank"][0]
    options = row.options("bank", steps)
    difference = absolute_difference(replayed, static)
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
        "bitwise": is_bitwise(replayed, static),
        "finite": difference is not None,
        "off_difference": largest_difference(capacity, off),
        "replays": {str(size): count for size, count in sorted(replayed.replays.items())},
        "eager": replayed.eager,
        "graphs": replayed.graphs,
        "seconds": {way: ranks[0].step_seconds for way, ranks in found.items()},
        "static": {name: getattr(static, name) for name in SERIES},
        "bank": {name: getattr(replayed, name) for name in SERIES},
    }


def measure_controls(
    cluster: Cluster, names: Sequence[str] = tuple(BROKEN), steps: int = CONTROL_STEPS
) -> Iterator[dict[str, Any]]:
    """The same comparison where a replay is broken: it has to differ."""
    static = _train(cluster, CONTROL, "static", steps)[0]
    for name in names:
        found = _train(cluster, CONTROL, "bank", steps, control=name)[0]
        differing = [
            step
            for step, (one, other) in enumerate(zip(found.series, static.series, strict=True), 1)
            if one != other
        ]
        yield {
            "id": name,
            "broken": BROKEN[name],
            "row": CONTROL.id,
            "steps": steps,
            "losses": [found.loss[0], found.loss[-1]],
            "seen": bool(differing),
            "first_step": differing[0] if differing else None,
            "difference": absolute_difference(found, static),
        }


def holds(row: dict[str, Any]) -> bool:
    """Whether a row is what has to be shown: equal, finite, every size replayed, none eager."""
    replayed = all(row["replays"].get(str(size), 0) > 0 for size in row["sizes"])
    return bool(row["bitwise"] and row["finite"] and replayed and not row["eager"])


def is_bitwise(found: Trained, wanted: Trained) -> bool:
    """Whether every number of every step is the same in every bit."""
    return bool(wanted.loss) and all(
        [value.hex() for value in getattr(found, name)]
        == [value.hex() for value in getattr(wanted, name)]
        for name in SERIES
    )


def absolute_difference(found: Trained, wanted: Trained) -> float | None:
    """The largest of loss and gradient norm over all steps; ``None`` where one is no number."""
    pairs = [
        pair
        for name in SERIES
        for pair in zip(getattr(found, name), getattr(wanted, name), strict=True)
    ]
    if not all(math.isfinite(value) for pair in pairs for value in pair):
        return None
    return max(abs(one - other) for one, other in pairs)


def _train(
    cluster: Cluster, row: Row, way: str, steps: int, *, control: str = ""
) -> Sequence[Trained]:
    """What every rank found; they agree on loss and gradient norm."""
    print(f"{row.id}: {way} {control}".rstrip(), flush=True)
    outcome = cluster.run(
        trained,
        world_size=row.spread.ranks,
        renewed_by_output=True,
        options=row.options(way, steps),
        control=control,
    )
    ranks: Sequence[Trained] = outcome.values
    if not all(is_bitwise(rank, ranks[0]) for rank in ranks):
        raise RuntimeError(f"{row.id}, {way}: ranks differ in loss or gradient norm")
    return ranks


def _line(row: dict[str, Any]) -> str:
    replays = " ".join(f"{size}:{count}" for size, count in row["replays"].items())
    return (
        f"{'ok ' if holds(row) else 'RED'} {row['id']:<40} difference {row['difference']} "
        f"replays {replays} eager {row['eager']} static {row['seconds']['static']:.0f} s "
        f"bank {row['seconds']['bank']:.0f} s capture {row['graphs']['capture_seconds']:.1f} s"
    )


def _control_line(control: dict[str, Any]) -> str:
    verdict = f"seen in step {control['first_step']}" if control["seen"] else "NOT SEEN"
    return f"{control['id']}: {verdict}, largest difference {control['difference']}"


def _chosen(only: Sequence[str]) -> list[Row]:
    return [row for row in ROWS if not only or any(word in row.id for word in only)]


def _kept(path: Path | None, arguments: argparse.Namespace) -> tuple[dict[str, Any], ...]:
    """Rows and controls of an earlier record of as many steps, by id."""
    if path is None or not path.exists():
        return {}, {}
    record = json.loads(path.read_text(encoding="utf-8"))
    if record["steps"] != arguments.steps:
        return {}, {}
    return tuple({one["id"]: one for one in record[name]} for name in ("rows", "controls"))


def _write(path: Path | None, rows: dict[str, Any], controls: dict[str, Any], steps: int) -> None:
    import torch

    if path is None:
        return
    content = {
        "steps": steps,
        "off_steps": OFF_STEPS,
        "dtype": "float64",
        "backend": "tape",
        "environment": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "backend": "gloo",
        },
        "rows": [rows[row.id] for row in ROWS if row.id in rows],
        "controls": list(controls.values()),
    }
    write_atomically(path, json.dumps(content, indent=1) + "\n", field="--json")


def _show(rank: int, line: str) -> None:
    drop(rank, line) if rank else print(f"  {line}", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--json", default="")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
