"""The memory that `ringproof fit` measures, against that of H100s in Megatron-LM's own tests.

Megatron-LM keeps, beside each of its functional tests, what the test's last rank recorded on H100s.
This program runs the same launches at full size on a CPU and compares. The recorded numbers are
upstream's measurements; of its texts nothing is kept. The tests are run in a random order that is
always the same, so that those that were run in a limited time are a sample.

    python -m benchmarks.rehearsal.memory --upstream git:PATH@REF --json FILE
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ringproof.cache import default_cache
from ringproof.errors import InputError
from ringproof.launch.flags import Flags
from ringproof.launch.reading import read_test_case
from ringproof.rehearsal.fit.fitting import FitRequest, Fitting, Refused
from ringproof.rehearsal.fit.gpus import CUBLAS_BYTES
from ringproof.rehearsal.runs.outcome import UpstreamFails
from ringproof.rehearsal.runs.upstreams import open_megatron

TESTS = Path("tests/functional_tests/test_cases")
RECORD = "golden_values_dev_dgx_h100.json"
SCRIPT = "pretrain_gpt.py"
PEAK, STEADY = "mem-max-allocated-bytes", "mem-allocated-bytes"
LARGE = 0.02


def recorded(path: Path) -> dict[str, int]:
    """Return bytes at the peak and between steps in a step after the first, if they are there."""
    values, found = json.loads(path.read_text()), {}
    for name in (PEAK, STEADY):
        series = values.get(name)
        steps = series.get("values", {}) if isinstance(series, dict) else {}
        numbers = {int(step): at for step, at in steps.items() if isinstance(at, int | float)}
        later = sorted(step for step in numbers if step > 1)
        if later:
            found[name] = int(numbers[later[0]])
    return found if found.get(PEAK) else {}


def cases(root: Path) -> Iterator[Path]:
    """Yield the folders of the tests that train a GPT and have recorded the peak."""
    for kind in ("gpt", "moe"):
        for path in sorted((root / TESTS / kind).glob(f"*/{RECORD}")):
            if (path.parent / "model_config.yaml").is_file() and recorded(path):
                yield path.parent


def compared(fitting: Fitting, folder: Path) -> dict[str, Any]:
    """Measure the launch of a test, and return its row."""
    expected = recorded(folder / RECORD)
    launch = read_test_case(folder / "model_config.yaml")
    # The last rank recorded; only ranks with TP rank 0 read data, and have the same memory.
    tensor = Flags(launch.arguments).integer("--tensor-model-parallel-size", 1)
    rank = launch.ranks - tensor
    began = time.monotonic()
    found = fitting.fit(fitting.prepare(launch, (rank,))).ranks[0]
    last = found.memory.logged[-1]
    peak, steady = last[1] + CUBLAS_BYTES, last[0] + CUBLAS_BYTES
    row = {
        "ranks": launch.ranks,
        "rank": rank,
        "peak": peak,
        "recorded_peak": expected[PEAK],
        "error": peak / expected[PEAK] - 1,
        "seconds": round(time.monotonic() - began, 1),
    }
    if STEADY in expected:
        row |= {"steady": steady, "recorded_steady": expected[STEADY]}
        row["steady_error"] = steady / expected[STEADY] - 1
    return row


def refused(error: Exception) -> str:
    """Return why a launch was not measured, without upstream's words."""
    if isinstance(error, Refused):
        failure = error.failure
        return f"no stand-in for {failure.symbol}" if failure.symbol else (
            f"{failure.kind} at {failure.place or failure.message.split(':')[0]}"
        )  # fmt: skip
    return f"not read: {error.field}" if isinstance(error, InputError) else type(error).__name__


def summary(rows: dict[str, Any]) -> dict[str, Any]:
    """Return how far off the measured rows are, as shares of the recorded peak."""
    errors = sorted(abs(row["error"]) for row in rows.values() if "error" in row)
    steady = sorted(abs(row["steady_error"]) for row in rows.values() if "steady_error" in row)
    if not errors:
        return {"measured": 0}
    return {
        "measured": len(errors),
        "not_measured": len(rows) - len(errors),
        "median": statistics.median(errors),
        "largest": errors[-1],
        "steady_median": statistics.median(steady) if steady else None,
        "above_2_percent": sorted(n for n, r in rows.items() if abs(r.get("error", 0)) > LARGE),
    }


def main() -> None:
    """Measure, and write the table after each row."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--upstream", required=True)
    parser.add_argument("--te", default="pip:transformer-engine==2.20.2")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[], help="names of tests, or parts of them")
    parser.add_argument("--seconds", type=float, default=3600.0, help="begin no test after these")
    parser.add_argument("--out", type=Path, default=Path("build/fit-memory"))
    given = parser.parse_args()
    cache, started = default_cache(), time.monotonic()
    root, name = open_megatron(given.upstream, cache=cache)
    known = json.loads(given.json.read_text())["rows"] if given.json.is_file() else {}
    folders = [f for f in cases(root) if not given.only or any(p in f.name for p in given.only)]
    random.Random(0).shuffle(folders)
    first = read_test_case(folders[0] / "model_config.yaml")
    request = FitRequest(
        first, given.upstream, given.te, given.out, cache, timeout=300.0, offline=True
    )
    with Fitting(request, lambda *_: None) as fitting:
        for folder in folders:
            row_name = folder.relative_to(root / TESTS).as_posix()
            if row_name in known or time.monotonic() - started > given.seconds:
                continue
            try:
                known[row_name] = compared(fitting, folder)
            except (InputError, UpstreamFails) as error:
                known[row_name] = {"not_measured": refused(error)}
            sys.stderr.write(f"{row_name} {known[row_name]}\n")
            table = {"upstream": name, "transformer_engine": given.te, "recorded": RECORD,
                     "summary": summary(known), "rows": dict(sorted(known.items()))}  # fmt: skip
            given.json.parent.mkdir(parents=True, exist_ok=True)
            given.json.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
