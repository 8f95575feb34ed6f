"""Ring attention over N one-thread processes against one process with N threads calling SDPA once.

Same work, same cores, same kernel family: the ratio is what the ring costs. Causal BSHD, forward
and backward. Rounds alternate between the two, so that a busy machine slows both.

    python -m benchmarks.attention --json benchmarks/results/ring_attention.cpu-gloo.json
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.records import write_record
from ringproof.cluster import Cluster, ClusterOptions, RankContext

HEADS, HEAD_DIM = 8, 64
WORLDS = (2, 4, 8)
"""Group sizes of which the memory is measured."""
WARM_UP_ROWS = 64
"""The first call loads libraries and memory pools, which must not be measured."""


def peak_memory_bytes(function: Callable[[], None]) -> int:
    """How far the process's resident set rose above its start while the function ran (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM; see proc(5)
    before = _resident_bytes("VmRSS")
    function()
    return _resident_bytes("VmHWM") - before


def _resident_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def ring_on_rank(rank: RankContext, *, seq_len: int, timed: bool) -> dict[str, Any]:
    """Measure ring attention: seconds from barrier to barrier, and peak memory of this rank."""
    import torch.distributed as dist

    from ringproof.reference.attention.attention import context_parallel_attention

    def step(tensors: list[Any]) -> None:
        q, k, v, grad = (t.detach().requires_grad_() for t in tensors)
        out, _ = context_parallel_attention(q, k, v, comm_type="p2p", group=dist.group.WORLD)
        out.backward(grad)

    tensors = random_tensors(seq_len // rank.world_size, seed=rank.rank)
    chunk = sum(tensor.numel() * tensor.element_size() for tensor in tensors[1:3])
    return {**measure(step, tensors, dist.barrier, timed=timed), "kv_chunk_bytes": chunk}


def sdpa_on_rank(rank: RankContext, *, seq_len: int) -> dict[str, Any]:
    """Measure one SDPA call, forward and backward, over the whole sequence."""
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


def random_tensors(rows: int, seed: int) -> list[Any]:
    """Draw q, k, v and the output's gradient, ``[1, rows, H, D]`` in float32."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(1, rows, HEADS, HEAD_DIM, generator=generator) for _ in range(4)]


def compare(world: int, rounds: int, seq_len: int) -> dict[str, Any]:
    """Alternate rounds of both; return their seconds, the ratio of medians and the memory."""
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


def memory_by_world(seq_len: int) -> list[dict[str, int]]:
    """Measure the peak memory of a rank above its inputs for each group size."""
    found = []
    with Cluster(max(WORLDS), ClusterOptions("gloo", threads=1, timeout_seconds=900)) as ranks:
        for world in WORLDS:
            values = ranks.run(ring_on_rank, world_size=world, seq_len=seq_len, timed=False).values
            peak = max(value["peak_bytes"] for value in values)
            chunk = values[0]["kv_chunk_bytes"]
            found.append({"world": world, "peak_bytes": peak, "kv_chunk_bytes": chunk})
            print(f"CP {world}: peak {peak / 2**20:7.1f} MiB above the inputs", flush=True)
    return found


def main() -> None:
    """Measure, print and write the record."""
    parser = argparse.ArgumentParser(description="Ring attention against one SDPA call.")
    parser.add_argument("--world", type=int, default=2, help="processes, one thread each")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of which medians are taken")
    parser.add_argument("--seq-len", type=int, default=16384, help="tokens in the sequence")
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    shape = {"batch": 1, "seq_len": arguments.seq_len, "heads": HEADS, "head_dim": HEAD_DIM}
    speed = compare(arguments.world, arguments.rounds, arguments.seq_len)
    print(
        f"{arguments.world} processes in a ring take {speed['ratio_of_medians']:.2f} times as long "
        "as one SDPA call with as many threads"
    )
    memory = memory_by_world(arguments.seq_len)
    record = {"shape": shape, "dtype": "float32", "speed": speed, "memory": memory}
    write_record(arguments.json, record)


if __name__ == "__main__":
    main()
