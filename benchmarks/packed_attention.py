"""Packed attention: 16,384 tokens in 64 sequences over four ranks, and what planning it costs.

Three numbers are measured, all on CPUs:

* forward and backward on four one-thread processes, for a pack given as numbers (eager) and for
  one of 4,096 tokens given as tensors (static, as captured graphs need it): seconds and peak memory
  of a rank;
* one process with as many threads that calls SDPA once for each sequence, as the baseline;
* the host time of one layer's attention call over CP 16 with 200 sequences, where the ranks are a
  fake process group and the tensors are small.

    python -m benchmarks.packed_attention --json build/packed_attention.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.ring_attention import peak_memory_bytes, positive
from ringproof.cluster import Cluster, ClusterOptions, RankContext
from ringproof.files import write_atomically

SEQUENCES, RANKS = 64, 4
TOKENS = {"packed": 16384, "static": 4096}
"""The static path computes all pairs of rows, hidden ones too, so it gets a shorter pack."""
HEADS, KV_HEADS, WIDTH = 8, 4, 64
HOST_RANKS, HOST_SEQUENCES, HOST_CALLS = 16, 200, 5


def lengths_of(tokens: int, count: int) -> list[int]:
    """Random lengths with a long tail that add up to the tokens, each at least 8."""
    draws = random.Random(0)
    weights = [draws.lognormvariate(0, 1) for _ in range(count)]
    found = [8 + int((tokens - 8 * count) * weight / sum(weights)) for weight in weights]
    found[-1] += tokens - sum(found)
    return found


def on_rank(rank: RankContext, *, path: str, rounds: int) -> dict[str, Any]:
    """Peak memory above the inputs, and seconds of each round, barrier to barrier."""
    import torch
    import torch.distributed as dist

    from ringproof.reference.attention.attention import context_parallel_attention
    from ringproof.reference.attention.masks import RowTable
    from ringproof.reference.packing.capacity import row_arrays
    from ringproof.reference.packing.sequences import pack

    multiple = 2 * rank.world_size
    packed = pack(lengths_of(TOKENS[path], SEQUENCES), multiple=multiple)
    rows = packed.rows // rank.world_size
    arrays = row_arrays(packed, rank.world_size, "zigzag")
    table = RowTable(torch.from_numpy(arrays.sequences), torch.from_numpy(arrays.positions))
    given = {"packed": packed} if path == "packed" else {"table": table}
    tensors = random_tensors(rows, seed=rank.rank)

    def step() -> None:
        q, k, v, grad = (t.detach().requires_grad_() for t in tensors)
        out, _ = context_parallel_attention(
            q, k, v, comm_type="p2p", group=dist.group.WORLD, **given
        )
        out.backward(grad)

    return measured(step, dist.barrier, rounds)


def sdpa_on_rank(rank: RankContext, *, rounds: int) -> dict[str, Any]:
    """One SDPA call for each sequence, forward and backward, on the whole pack."""
    from torch.nn.functional import scaled_dot_product_attention

    lengths = lengths_of(TOKENS["packed"], SEQUENCES)
    sequences = [
        [t.transpose(0, 1)[None] for t in random_tensors(length, seed=seed)]
        for seed, length in enumerate(lengths)
    ]

    def step() -> None:
        for tensors in sequences:
            q, k, v, grad = (t.detach().requires_grad_() for t in tensors)
            out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            out.backward(grad)

    return measured(step, lambda: None, rounds)


def measured(
    step: Callable[[], None], barrier: Callable[[], object], rounds: int
) -> dict[str, Any]:
    """Warm up, measure the peak memory of one step, then the seconds of the others."""
    step()
    found: dict[str, Any] = {"peak_bytes": peak_memory_bytes(step), "seconds": []}
    for _ in range(rounds):
        barrier()
        start = time.perf_counter()
        step()
        barrier()
        found["seconds"].append(time.perf_counter() - start)
    return found


def random_tensors(rows: int, seed: int) -> list[Any]:
    """q, k, v and the output's gradient, ``[rows, heads, width]`` in float32."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(rows, heads, WIDTH, generator=generator)
        for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS)
    ]


def host_milliseconds(rank: RankContext) -> list[float]:
    """The calls of one microbatch's layers, one after the other, over a fake group of 16 ranks."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from ringproof.reference.model.attention import attend
    from ringproof.reference.model.batch import PackedBatch, Totals
    from ringproof.reference.packing.sequences import pack
    from ringproof.reference.topology.dynamic import ContextParallelGroup

    dist.destroy_process_group()
    dist.init_process_group("fake", rank=0, world_size=HOST_RANKS, store=FakeStore())
    group = dist.group.WORLD
    assert group is not None
    packed = pack([2 * HOST_RANKS] * HOST_SEQUENCES, multiple=2 * HOST_RANKS)
    rows = packed.rows // HOST_RANKS
    zeros = torch.zeros(rows, dtype=torch.int64)
    batch = PackedBatch(
        packed=packed,
        group=ContextParallelGroup(group),
        comm_type="a2a",
        partition="zigzag",
        positions=zeros,
        sequences=zeros,
        real=zeros.bool(),
        tokens=None,
        future=None,
        totals=Totals(0, (0,)),
    )
    q = torch.zeros(rows, HOST_RANKS, 8)
    found = []
    with torch.no_grad():
        for _ in range(HOST_CALLS):
            start = time.perf_counter()
            attend(q, q, q, batch)
            found.append(1e3 * (time.perf_counter() - start))
    return found


def compare(rounds: int) -> dict[str, Any]:
    """All measurements; medians over the rounds, the largest peak of a rank."""
    result: dict[str, Any] = {}
    options = ClusterOptions("gloo", threads=1, timeout_seconds=900)
    for path in TOKENS:
        with Cluster(RANKS, options) as ranks:
            values = ranks.run(on_rank, path=path, rounds=rounds).values
        seconds = [max(times) for times in zip(*(v["seconds"] for v in values), strict=True)]
        result[path] = {
            "seconds": statistics.median(seconds),
            "peak_bytes_per_rank": max(value["peak_bytes"] for value in values),
        }
        print(f"{path}: {_text(result[path]['seconds'], result[path]['peak_bytes_per_rank'])}")
    with Cluster(1, ClusterOptions("gloo", threads=os.cpu_count(), timeout_seconds=900)) as single:
        (value,) = single.run(sdpa_on_rank, rounds=rounds).values
        seconds_of_sdpa = statistics.median(value["seconds"])
        result["sdpa"] = {"seconds": seconds_of_sdpa, "peak_bytes": value["peak_bytes"]}
        print(f"SDPA per sequence: {_text(seconds_of_sdpa, value['peak_bytes'])}")
    with Cluster(1, options) as single:
        (times,) = single.run(host_milliseconds).values
    result["host_milliseconds"] = {"first": times[0], "further": statistics.median(times[1:])}
    print(f"host: first call {times[0]:.1f} ms, further ones {statistics.median(times[1:]):.1f} ms")
    return result


def _text(seconds: float, peak: int) -> str:
    return f"{seconds:.2f} s, peak {peak / 2**20:.0f} MiB"


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description="Packed attention in time, memory and host time.")
    parser.add_argument("--rounds", type=positive, default=5, help="of which the medians are taken")
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    result = {
        "shape": {
            "tokens": TOKENS,
            "sequences": SEQUENCES,
            "ranks": RANKS,
            "heads": HEADS,
            "kv_heads": KV_HEADS,
            "width": WIDTH,
        },
        "host_shape": {"ranks": HOST_RANKS, "sequences": HOST_SEQUENCES},
        "environment": {
            "torch": version("torch"),
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "machine": platform.machine(),
        },
        **compare(arguments.rounds),
    }
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(arguments.json, json.dumps(result, indent=2) + "\n", field="--json")


if __name__ == "__main__":
    main()
