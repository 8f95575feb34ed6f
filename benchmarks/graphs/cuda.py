"""What a replay gains on a GPU, and what it costs: one layer, eager against its CUDA graphs.

Where the host launches kernels more slowly than the GPU runs them (few rows, narrow layers), a
replay should win; where it does not, it cannot. Four ways alternate: the pack as it is (*plain*:
flash attention, what a run without graphs computes), the pack of capacity (*eager*: masked
attention, the computation that is captured), its *replay*, and the copies into a slot (*load*,
once for each microbatch, whatever the number of layers). A ratio below 1 says that the replay is
slower. Then the memory of each entry, and how CP sizes share the pool of a slot. The first capture
of a process is left out: it also pays for the workspace that cuBLAS keeps for captures.

    python -m benchmarks.graphs.cuda                 # on a GPU; writes results/cuda.json
    python -m benchmarks.graphs.cuda --device cpu    # the same code on the tape: no measurement

Ranks share the GPU where there are fewer than ranks; their times then say nothing, their memory
does.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.graphs.cuda_device import clocks, describe, median
from benchmarks.graphs.cuda_layer import Layer, measure
from benchmarks.graphs.cuda_ranks import measure_ranks
from ringproof.files import write_atomically
from ringproof.reference.graphs.transformer_engine import is_installed

RECORD = Path(__file__).parent / "results" / "cuda.json"
HIDDEN, ROWS = (1024, 2048, 4096), (256, 1024, 2048, 4096, 8192)
LAYERS = tuple(Layer(hidden, rows) for hidden in HIDDEN for rows in ROWS)
OF_RANKS = Layer(1024, 1024)
TINY = (Layer(64, 64, head_width=16, dtype="float64"),)
NO_MEASUREMENT = "On a CPU, on the tape, at tiny sizes: this shows that the code runs. It is no\
 measurement, and nothing about a GPU follows from it."


def main(given: Sequence[str] | None = None) -> int:
    """Measure, print, and on a GPU record."""
    arguments = _arguments(given)
    on_gpu = arguments.device == "cuda"
    if on_gpu and not torch.cuda.is_available():
        print("error: --device: there is no GPU here (got cuda); use --device cpu", file=sys.stderr)
        return 2
    device = torch.device("cuda", 0) if on_gpu else torch.device("cpu")
    where = describe(device)
    if not on_gpu:
        print(NO_MEASUREMENT)
    rounds = arguments.rounds if on_gpu else 3
    layers = []
    if on_gpu:
        measure(OF_RANKS, "cuda", device, 2)
    for layer in LAYERS if on_gpu else TINY:
        for backend in _backends(on_gpu):
            layers.append(measure(layer, backend, device, rounds))
            print(_line(layers[-1]), flush=True)
    ranks = []
    for count in arguments.ranks if on_gpu else arguments.ranks[:1]:
        layer = OF_RANKS if on_gpu else TINY[0]
        ranks.append(
            measure_ranks(
                layer, _backends(on_gpu)[0], arguments.device, ranks=count, rounds=min(rounds, 20)
            )
        )
        print(_ranks_line(ranks[-1]), flush=True)
    if on_gpu:
        record = {"where": where, "clocks at the end": clocks(), "layers": layers, "ranks": ranks}
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(arguments.json, json.dumps(record, indent=2) + "\n")
    return 0


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rounds", type=int, default=50, help="of each way, on a GPU")
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4], help="of the second part")
    parser.add_argument("--json", type=Path, default=RECORD, help="written on a GPU only")
    return parser.parse_args(given)


def _backends(on_gpu: bool) -> list[str]:
    if not on_gpu:
        return ["tape"]
    return ["cuda", *(["transformer-engine"] if is_installed() else [])]


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


def _ranks_line(found: dict[str, Any]) -> str:
    sizes = "; ".join(
        f"CP {one['cp size']}: eager/replay {one['eager / replay']:.2f}" for one in found["sizes"]
    )
    shared = " (they share a GPU: no times)" if found["share a GPU"] else ""
    private = found["private bytes"]
    return (
        f"{found['ranks']} ranks{shared}: {sizes}; private bytes: "
        f"{private['all sizes in one pool']:,} in one pool, {private['each in its own']:,} apart"
    )


if __name__ == "__main__":
    raise SystemExit(main())
