"""Ring attention over N one-thread processes against one process with N threads calling SDPA once.

Same work, same cores, same kernel family: the ratio is what the ring costs. Causal BSHD,
forward and backward. Rounds alternate between the two, so that a busy machine slows both.

    python benchmarks/ring_attention.py --json build/ring_attention.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ringproof.cluster import Cluster, ClusterOptions, RankContext
from ringproof.files import write_atomically

SEQ_LEN, HEADS, HEAD_DIM = 16384, 8, 64
# Of one SDPA call's time; and of memory, where S/CP would halve and a constant part does not.
MOST_RATIO, MOST_GROWTH = 1.25, 2.0
WARM_UP_ROWS = 64  # loads libraries and pools, so that they are not measured


def peak_memory_bytes(function: Callable[[], None]) -> int:
    """How far the process's resident set rose above its start while the function ran (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM; see proc(5)
    before = resident_bytes("VmRSS")
    function()
    return resident_bytes("VmHWM") - before


def resident_bytes(field: str) -> int:
    """A field of ``/proc/self/status`` in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(field)


def ring_on_rank(rank: RankContext, *, seq_len: int, timed: bool) -> dict[str, Any]:
    """Seconds of one round, barrier to barrier, and this rank's peak memory above its inputs."""
    import torch.distributed as dist

    from ringproof.reference.attention.attention import context_parallel_attention

    def step(tensors: list[Any]) -> None:
        q, k, v, grad = (t.detach().requires_grad_() for t in tensors)
        out, _ = context_parallel_attention(q, k, v, comm_type="p2p", group=dist.group.WORLD)
        out.backward(grad)

    tensors = random_tensors(seq_len // rank.world_size, seed=rank.rank)
    return {
        **measure(step, tensors, dist.barrier, timed=timed),
        "kv_chunk_bytes": size(tensors[1:3]),
    }


def sdpa_on_rank(rank: RankContext, *, seq_len: int) -> dict[str, Any]:
    """Seconds and peak memory of one SDPA call, forward and backward, over the whole sequence."""
    from torch.nn.functional import scaled_dot_product_attention

    def step(tensors: list[Any]) -> None:
        q, k, v, grad = (t.transpose(1, 2).detach().requires_grad_() for t in tensors)
        scaled_dot_product_attention(q, k, v, is_causal=True).backward(grad)

    return measure(step, random_tensors(seq_len, seed=0), lambda: None, timed=True)


def measure(
    step: Callable[[list[Any]], None],
    tensors: list[Any],
    barrier: Callable[[], object],
    *,
    timed: bool,
) -> dict[str, Any]:
    """Warm up, measure the peak memory of a step, then the seconds of another."""
    step([tensor[:, :WARM_UP_ROWS] for tensor in tensors])
    found: dict[str, Any] = {"peak_bytes": peak_memory_bytes(lambda: step(tensors))}
    if timed:
        barrier()
        start = time.perf_counter()
        step(tensors)
        barrier()
        found["seconds"] = time.perf_counter() - start
    return found


def size(tensors: list[Any]) -> int:
    """Bytes held by tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def random_tensors(rows: int, seed: int) -> list[Any]:
    """q, k, v and the output's gradient, ``[1, rows, H, D]`` in float32."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(1, rows, HEADS, HEAD_DIM, generator=generator) for _ in range(4)]


def compare(world: int, rounds: int, seq_len: int) -> dict[str, Any]:
    """Alternate rounds of both; medians, ratio and memory."""
    ring: list[float] = []
    dense: list[float] = []
    with (
        Cluster(world, ClusterOptions("gloo", threads=1, timeout_seconds=900)) as ranks,
        Cluster(1, ClusterOptions("gloo", threads=world, timeout_seconds=900)) as single,
    ):
        for _ in range(rounds):
            values = ranks.run(ring_on_rank, seq_len=seq_len, timed=True).values
            baseline = single.run(sdpa_on_rank, seq_len=seq_len).values[0]
            ring.append(max(value["seconds"] for value in values))
            dense.append(baseline["seconds"])
            print(f"round: ring {ring[-1]:6.2f} s   sdpa {dense[-1]:6.2f} s", flush=True)
    return {
        "world": world,
        "ring_seconds": ring,
        "sdpa_seconds": dense,
        "ratio_of_medians": statistics.median(ring) / statistics.median(dense),
        "ring_peak_bytes_per_rank": max(value["peak_bytes"] for value in values),
        "sdpa_peak_bytes": baseline["peak_bytes"],
    }


def memory_by_world(worlds: tuple[int, ...], seq_len: int) -> list[dict[str, int]]:
    """Peak memory of a rank above its inputs, as the group grows."""
    found = []
    with Cluster(max(worlds), ClusterOptions("gloo", threads=1, timeout_seconds=900)) as ranks:
        for world in worlds:
            values = ranks.run(ring_on_rank, world_size=world, seq_len=seq_len, timed=False).values
            peak = max(value["peak_bytes"] for value in values)
            chunk = values[0]["kv_chunk_bytes"]
            found.append({"world": world, "peak_bytes": peak, "kv_chunk_bytes": chunk})
            print(
                f"CP {world}: peak {peak / 2**20:7.1f} MiB   kv chunk {chunk / 2**20:6.1f} MiB"
                f"   peak in kv chunks {peak / chunk:5.1f}",
                flush=True,
            )
    return found


def positive(text: str) -> int:
    """A count for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is below 1")
    return value


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description="Ring attention against one SDPA call.")
    parser.add_argument("--world", type=int, default=2, help="processes, one thread each")
    parser.add_argument("--rounds", type=positive, default=5, help="of which the medians are taken")
    parser.add_argument("--seq-len", type=int, default=SEQ_LEN, help="tokens in the sequence")
    parser.add_argument("--check", action="store_true", help="exit with 1 over the limits")
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    result = {
        "shape": {"batch": 1, "seq_len": arguments.seq_len, "heads": HEADS, "head_dim": HEAD_DIM},
        "dtype": "float32",
        "environment": {
            "torch": version("torch"),
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "machine": platform.machine(),
        },
        "speed": compare(arguments.world, arguments.rounds, arguments.seq_len),
        "memory": memory_by_world((2, 4, 8), arguments.seq_len),
    }
    ratio = result["speed"]["ratio_of_medians"]
    growth = memory_growth(result["memory"])
    print(f"{arguments.world} processes in a ring / one SDPA with as many threads: {ratio:.2f}x")
    print(f"peak memory per rank from CP 2 to CP 8: {growth:.2f} of what S/CP alone would leave")
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(arguments.json, json.dumps(result, indent=2) + "\n", field="--json")
    if arguments.check and (ratio > MOST_RATIO or growth > MOST_GROWTH):
        sys.exit(f"over the limits of {MOST_RATIO}x in time or {MOST_GROWTH}x in memory")


def memory_growth(found: list[dict[str, int]]) -> float:
    """Peak of the largest group over the peak of the smallest scaled by their sizes; 1 is ideal."""
    first, last = found[0], found[-1]
    return last["peak_bytes"] * last["world"] / (first["peak_bytes"] * first["world"])


if __name__ == "__main__":
    main()
