"""The memory that `ringproof fit` measures, against that of H100s in Megatron-LM's own tests.

Megatron-LM keeps, beside each of its functional tests, what the test's last rank recorded on H100s.
This program runs the same launches at full size on a CPU and compares. The recorded numbers are
upstream's measurements; of its texts nothing is kept. The tests are run in a random order that is
always the same, so that those that were run in a limited time are a sample.

    python -m benchmarks.rehearsal.memory --upstream git:PATH@REF --commit SHA --json FILE
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import random
import re
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.rehearsal.options import parser_of
from ringproof.cache import default_cache
from ringproof.errors import InputError
from ringproof.launch.flags import Flags
from ringproof.launch.full.size import FP8, GRAPHS
from ringproof.launch.reading import Launch, read_test_case
from ringproof.launch.small.layout import layout
from ringproof.rehearsal.fit.fitting import FitRequest, Fitting, Refused
from ringproof.rehearsal.fit.gpus import CUBLAS_BYTES
from ringproof.rehearsal.protocol.program import ROUTINGS
from ringproof.rehearsal.runs.outcome import UpstreamFails
from ringproof.rehearsal.runs.upstreams import open_megatron

TESTS = Path("tests/functional_tests/test_cases")
REPOSITORY = "NVIDIA/Megatron-LM"
RECORD = "golden_values_dev_dgx_h100.json"
KINDS = ("gpt", "moe", "hybrid")
PEAK, STEADY = "mem-max-allocated-bytes", "mem-allocated-bytes"
LARGE, USUAL = 0.02, 0.01
RELEASE = re.compile(r"^TEST_TYPE:\s*[\"']?release", re.MULTILINE)
NOT_SEEN = (FP8, GRAPHS)
"""What a launch loses here so that its memory is another one."""


def recorded(path: Path) -> dict[str, int]:
    """Return bytes at the peak and between steps in the step that is compared, if they are there.

    That is the one after the first in which the memory between steps is that of most steps: until
    then there are no states of the optimizer, which skips its first steps in float16.
    """
    values = json.loads(path.read_text())
    series = {name: _series(values.get(name)) for name in (PEAK, STEADY)}
    steady = series[STEADY]
    usual = statistics.median(steady.values()) if steady else 0
    first = next((step for step, at in steady.items() if abs(at - usual) <= USUAL * usual), 1)
    step = next((step for step in series[PEAK] if step > first), None)
    return {name: at[step] for name, at in series.items() if step in at} if step else {}


def _series(given: Any) -> dict[int, int]:
    """Return bytes by step; what is no number is left out."""
    steps = given.get("values", {}) if isinstance(given, dict) else {}
    numbers = {int(step): int(at) for step, at in steps.items() if isinstance(at, int | float)}
    return dict(sorted(numbers.items()))


def cases(root: Path) -> Iterator[Path]:
    """Yield the folders of the tests of `KINDS` that have recorded the peak."""
    for kind in KINDS:
        for path in sorted((root / TESTS / kind).glob(f"*/{RECORD}")):
            if (path.parent / "model_config.yaml").is_file() and recorded(path):
                yield path.parent


def kind_of(launch: Launch) -> str:
    """Return what a launch trains, and whether with CP."""
    flags = Flags(launch.arguments)
    kind = "experts" if flags.has("--num-experts") else "dense"
    if launch.script != "pretrain_gpt.py":
        kind = "hybrid"
    if flags.has("--use-megatron-fsdp"):
        kind += ", FSDP"
    return kind + (", CP" if flags.integer("--context-parallel-size", 1) > 1 else "")


def compared(fitting: Fitting, folder: Path, launch: Launch) -> dict[str, Any]:
    """Measure the launch of a test, and return its row."""
    expected = recorded(folder / RECORD)
    # The last rank recorded; only ranks with TP rank 0 read data, and have the same memory. Of
    # FSDP's shards, others than the first do not pass upstream's validation where all are alike.
    flags = Flags(launch.arguments)
    tensor = flags.integer("--tensor-model-parallel-size", 1)
    rank = 0 if flags.has("--use-megatron-fsdp") else launch.ranks - tensor
    began = time.monotonic()
    prepared = fitting.prepare(launch, (rank,))
    found = fitting.fit(prepared).ranks[0]
    last = found.memory.logged[-1]
    peak, steady = last[1] + CUBLAS_BYTES, last[0] + CUBLAS_BYTES
    row = {
        "kind": kind_of(launch),
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
    lost = [change.what for change in prepared.program.changes if change.hides in NOT_SEEN]
    return row | ({"not_seen": lost} if lost else {})


def tokens_share(worst: Fitting, row: dict[str, Any], launch: Launch) -> dict[str, Any]:
    """Return which share of balanced tokens of experts the recorded peak follows from.

    The peak is taken to be linear in the tokens, between balanced routing and the worst. There is
    no share if no number of tokens explains the peak.
    """
    flags = Flags(launch.arguments)
    sizes = layout(flags, launch.ranks)
    experts, each = flags.integer("--num-experts", 1), flags.integer("--moe-router-topk", 2)
    last_stage = launch.ranks - launch.ranks // sizes.pipeline  # it holds the first experts
    found = worst.fit(worst.prepare(launch, (last_stage,))).ranks[0]
    peak = found.memory.logged[-1][1] + CUBLAS_BYTES
    times = min(each, experts // sizes.expert) * sizes.expert / each
    more = (row["recorded_peak"] - row["peak"]) / (peak - row["peak"]) * (times - 1)
    share = {"share_of_tokens": 1 + more} if 0 <= 1 + more <= times else {}
    return {"worst_peak": peak, "worst_tokens": times, **share}


def refused(error: Exception) -> str:
    """Return why a launch was not measured, without upstream's words."""
    if isinstance(error, Refused):
        failure = error.failure
        if failure.package:
            return f"needs the package {failure.package}"
        return f"no stand-in for {failure.symbol}" if failure.symbol else (
            f"{failure.kind} at {failure.place or failure.message.split(':')[0]}"
        )  # fmt: skip
    return f"not read: {error.field}" if isinstance(error, InputError) else type(error).__name__


def errors_of(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return how far off rows are, as shares of what was recorded."""
    rows = list(rows)
    peaks = sorted(abs(row["error"]) for row in rows)
    steady = sorted(abs(row["steady_error"]) for row in rows if "steady_error" in row)
    return {"rows": len(rows), "peak": spread(peaks), "steady": spread(steady)}


def spread(errors: Sequence[float]) -> dict[str, float]:
    """Return the median, the 95th percentile and the largest of sorted numbers."""
    if not errors:
        return {}
    rank = max(math.ceil(0.95 * len(errors)) - 1, 0)
    return {"median": statistics.median(errors), "p95": errors[rank], "largest": errors[-1]}


def summary(rows: dict[str, Any]) -> dict[str, Any]:
    """Return the errors of all rows and by kind; of launches that run as they are."""
    whole = {n: row for n, row in rows.items() if "error" in row and "not_seen" not in row}
    kinds = sorted({row["kind"] for row in whole.values()})
    return {
        "measured": errors_of(whole.values()),
        "by_kind": {
            kind: errors_of(row for row in whole.values() if row["kind"] == kind) for kind in kinds
        },
        "above_2_percent": sorted(n for n, row in whole.items() if abs(row["error"]) > LARGE),
        "without_fp8_or_graphs": sorted(n for n, row in rows.items() if "not_seen" in row),
        "not_measured": sum("not_measured" in row for row in rows.values()),
    }


class Measuring:
    """Measures tests one after the other, with an open upstream for each training script."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given, self._open = given, contextlib.ExitStack()
        self._fittings: dict[str, Fitting] = {}

    def __enter__(self) -> Measuring:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def row(self, folder: Path) -> dict[str, Any]:
        """Return the row of a test."""
        if RELEASE.search((folder / "model_config.yaml").read_text()):
            return {"not_measured": "the repository does not say on how many GPUs it ran"}
        try:
            launch = read_test_case(folder / "model_config.yaml")
            row = compared(self._fitting(launch), folder, launch)
            if "experts" in row["kind"] and "not_seen" not in row and abs(row["error"]) > LARGE:
                with self._opened(launch, "worst") as worst:  # upstream reads its variables once
                    row |= tokens_share(worst, row, launch)
            return row
        except (InputError, UpstreamFails) as error:
            return {"not_measured": refused(error)}

    def _fitting(self, launch: Launch) -> Fitting:
        if launch.script not in self._fittings:
            fitting = self._open.enter_context(self._opened(launch))
            self._fittings[launch.script] = fitting
        return self._fittings[launch.script]

    def _opened(self, launch: Launch, routing: str = ROUTINGS[0]) -> Fitting:
        given = self._given
        folder = given.out / launch.script / routing
        request = FitRequest(
            launch, given.upstream, given.te, folder, default_cache(), routing=routing,
            timeout=given.timeout, offline=True,
        )  # fmt: skip
        return Fitting(request, lambda *_: None)


def begun(path: Path, commit: str, engine: str) -> dict[str, Any]:
    """Return a record without rows, or the one that is in a file and goes on.

    Raises:
        InputError: The file has rows of another commit or Transformer Engine.
    """
    head = {
        "repository": REPOSITORY, "commit": commit, "folder": TESTS.as_posix(),
        "transformer_engine": engine, "recorded": RECORD, "summary": {}, "rows": {},
    }  # fmt: skip
    found = json.loads(path.read_text()) if path.is_file() else head
    if any(found.get(name) != head[name] for name in head if name not in ("summary", "rows")):
        sentence = f"{path} has rows of another commit or Transformer Engine; name another file"
        raise InputError("--json", sentence)
    return head | found


def main() -> None:
    """Measure, and write the table after each row."""
    parser = parser_of(__doc__, "build/fit-memory")
    parser.add_argument("--only", nargs="*", default=[], help="names of tests, or parts of them")
    parser.add_argument("--again", action="store_true", help="also those that are in the file")
    parser.add_argument("--seconds", type=float, default=3600.0, help="begin no test after these")
    parser.add_argument("--timeout", type=float, default=300.0, help="longest time of a test")
    given = parser.parse_args()
    started = time.monotonic()
    record = begun(given.json, given.commit, given.te)
    root, _ = open_megatron(given.upstream, cache=default_cache())
    rows = record["rows"]
    folders = [f for f in cases(root) if not given.only or any(p in f.name for p in given.only)]
    random.Random(0).shuffle(folders)
    with Measuring(given) as measuring:
        for folder in folders:
            row_name = folder.relative_to(root / TESTS).as_posix()
            if row_name in rows and not given.again:
                continue
            if time.monotonic() - started > given.seconds:
                break
            rows[row_name] = measuring.row(folder)
            sys.stderr.write(f"{row_name} {rows[row_name]}\n")
            table = record | {"summary": summary(rows), "rows": dict(sorted(rows.items()))}
            given.json.parent.mkdir(parents=True, exist_ok=True)
            given.json.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
