"""What a replay gains on a GPU, and what it costs: one layer, eager against its CUDA graphs.

Where the host launches kernels more slowly than the GPU runs them (few rows, narrow layers), a
replay should win; where it does not, it cannot. Four ways alternate: the pack as it is (*plain*:
flash attention, what a run without graphs computes), the pack of capacity (*eager*: masked
attention, the computation that is captured), its *replay*, and the copies into a slot (*load*,
once for each microbatch, whatever the number of layers). A ratio below 1 says that the replay is
slower. The record also has the memory of each entry.

    python -m benchmarks.graphs.cuda                 # on a GPU; writes results/cuda.json
    python -m benchmarks.graphs.cuda --device cpu    # the same code on the tape: no measurement
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.graphs.cuda_layer import Layer, measure, median
from benchmarks.records import write_record

RECORD = Path(__file__).parent / "results" / "cuda.json"
HIDDEN, ROWS = (1024, 2048, 4096), (256, 512, 1024, 2048, 4096)
LAYERS = tuple(Layer(hidden, rows) for hidden in HIDDEN for rows in ROWS)
TINY = (Layer(64, 64, head_width=16, dtype="float64"),)
NO_MEASUREMENT = (
    "On a CPU, on the tape, at tiny sizes: this shows that the code runs. It is not a measurement, "
    "and nothing about a GPU follows from it."
)
QUERY = "name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit,compute_mode"


def main(given: Sequence[str] | None = None) -> int:
    """Measure and print; write the record if it was a GPU."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rounds", type=int, default=50, help="most rounds of each way, on a GPU")
    parser.add_argument("--json", type=Path, default=RECORD, help="record, written on a GPU only")
    arguments = parser.parse_args(given)
    on_gpu = arguments.device == "cuda"
    if on_gpu and not torch.cuda.is_available():
        print("error: --device: there is no GPU here; use --device cpu", file=sys.stderr)
        return 2
    if not on_gpu:
        print(NO_MEASUREMENT)
    device = torch.device("cuda", 0) if on_gpu else torch.device("cpu")
    layers = []
    if on_gpu:  # the first capture of a process also pays for the workspace of cuBLAS
        measure(LAYERS[0], "cuda", device, 2)
    for layer in LAYERS if on_gpu else TINY:
        backend = "cuda" if on_gpu else "tape"
        layers.append(measure(layer, backend, device, arguments.rounds if on_gpu else 3))
        print(_line(layers[-1]), flush=True)
    if on_gpu:
        write_record(arguments.json, {"where": describe(device), "layers": layers})
    return 0


def describe(device: torch.device) -> dict[str, Any]:
    """Name of the GPU, driver, versions and clocks at the end of the measurement."""
    try:
        command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        said = [dict(zip(QUERY.split(","), r.split(", "), strict=False)) for r in
                done.stdout.splitlines()]  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        said = []
    return {
        "device": torch.cuda.get_device_name(device),
        "gpus": torch.cuda.device_count(),
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "nvidia-smi": said,
    }


def _line(found: dict[str, Any]) -> str:
    head = f"hidden {found['hidden']:5} rows {found['rows']:5} {found['backend']:18}"
    if "not measured" in found:
        return f"{head} not measured: {found['not measured']}"
    times = found["milliseconds"]
    shown = " ".join(f"{way} {median(times, way):8.3f}" for way in times)
    private = sum(entry["private"] for entry in found["memory"])
    return (
        f"{head} ms: {shown}  eager/replay {found['eager / replay']:.2f} "
        f"(host {found['eager / replay, host']:.2f})  plain/replay {found['plain / replay']:.2f}  "
        f"private {private / 1e6:.1f} MB  same bits: {'yes' if found['same bits'] else 'NO'}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
