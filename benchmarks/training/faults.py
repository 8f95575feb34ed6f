"""Every fault of `smoke/faults.py` injected into the trainer, and what was seen of it.

    python -m benchmarks.training.faults --json benchmarks/training/results/faults.json
    python -m benchmarks.tables

Ten steps instead of the two of the smoke test, so that the record says what each fault looks
like. Exit 1 where a proof did not turn red, or was red without the fault.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from array import array
from pathlib import Path
from typing import Any

from benchmarks.records import write_record
from ringproof.cluster import Cluster, ClusterOptions, drop
from ringproof.logs.training.compare import compare_series
from ringproof.logs.training.series import Series
from smoke.faults import FAULTS, Fault
from smoke.training_matrix import TOLERANCE
from smoke.trials import Laboratory, Observed

STEPS = 10
LOOSE = 1e-3
"""How far a published parity run of Dynamic CP was from the static one (Megatron-Bridge #6127)."""
_FOLDERS = re.compile(r"[^\s(]*/(?=(?:torch|ringproof|smoke)/)")


def row_of(fault: Fault, seen: Observed) -> dict[str, Any]:
    """What the record says of a fault."""
    return {
        "id": fault.id,
        "broken": fault.broken,
        "stands_for": fault.stands_for,
        "setup": fault.setup,
        "proof": fault.proof,
        "red": list(seen.red),
        "detected": fault.proof in seen.red,
        "said": _FOLDERS.sub("", seen.said),
        "problem": seen.trace.problems[0] if seen.trace and seen.trace.problems else "",
        "loss": quantity(seen, 0),
        "grad_norm": quantity(seen, 1),
        "resumed": _resumed(seen),
        "evaluation": _evaluation(seen),
        "falls": _falls(seen),
        "close": _close(seen),
    }


def quantity(seen: Observed, place: int) -> dict[str, Any] | None:
    """First step beyond the tolerance, how far there, how far at most, and of which kind.

    The kind is that of ``ringproof logs parity``. ``None`` where nothing was trained, or nothing
    is beyond.
    """
    if seen.trace is None or not seen.trace.steps:
        return None
    ours, wanted = (
        Series("", "", array("q", range(1, 1 + len(steps))), array("d", [v[place] for v in steps]))
        for steps in (seen.trace.steps, seen.wanted.steps)
    )
    found = compare_series(ours, wanted, TOLERANCE)
    if found.first is None:
        return None
    relative = [value if math.isfinite(value) else None for value in found.relative]
    return {
        "first": found.first.step,
        "there": relative[found.places[0]],
        "largest": None if None in relative else max(found.relative),
        "kind": found.judgement.kind.value,
    }


def _largest(seen: Observed) -> float:
    return max([*seen.differences(0), *seen.differences(1)], default=0.0)


def _resumed(seen: Observed) -> float | None:
    """Largest relative difference of a resumed run's losses from the run without a break."""
    pairs = zip(seen.resumed, seen.unbroken, strict=True)
    return max((abs(a[0] - b[0]) / abs(b[0]) for a, b in pairs), default=None)


def _evaluation(seen: Observed) -> float | None:
    ours = seen.trace.evaluations if seen.trace else ()
    pairs = zip(ours, seen.wanted.evaluations, strict=False)
    return max((abs(a - b) / abs(b) for a, b in pairs), default=None)


def _falls(seen: Observed) -> bool | None:
    """Whether the loss is a number in every step and has fallen in the end."""
    losses = [loss for loss, _ in seen.trace.steps] if seen.trace else []
    return all(map(math.isfinite, losses)) and losses[-1] < losses[0] if losses else None


def _close(seen: Observed) -> bool | None:
    """Whether the loss is never farther off than :data:`LOOSE`."""
    found = seen.differences(0)
    return max(found) <= LOOSE if found else None


def _line(row: dict[str, Any]) -> str:
    verdict = "seen  " if row["detected"] else "MISSED"
    return f"{verdict} {row['id']:<34} {', '.join(row['red'])} {row['said'][:60]}"


def main() -> int:
    """Run all faults, or those named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", nargs="+", default=())
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows, clean = {}, {}
    chosen = [fault for fault in FAULTS if not arguments.only or fault.id in arguments.only]
    with Cluster(3, ClusterOptions(timeout_seconds=120, log_sink=drop)) as cluster:
        laboratory = Laboratory(cluster, arguments.steps)
        # What ends ranks comes last: new ones take seconds to start.
        for fault in sorted(chosen, key=lambda fault: fault.proof == "hang"):
            sound = laboratory.clean(fault.setup)
            clean[fault.setup] = {"red": sound.red, "largest": _largest(sound)}
            rows[fault.id] = row_of(fault, laboratory.broken(fault))
            print(_line(rows[fault.id]), flush=True)
    found = [rows[fault.id] for fault in chosen]
    record = {
        "steps": arguments.steps,
        "tolerance": TOLERANCE,
        "loose": LOOSE,
        "dtype": "float64",
        "injected": len(found),
        "detected": sum(row["detected"] for row in found),
        "clean": clean,
        "faults": found,
    }
    write_record(arguments.json, record)
    green = not any(run["red"] for run in clean.values())
    return 0 if green and record["detected"] == record["injected"] else 1


if __name__ == "__main__":
    sys.exit(main())
