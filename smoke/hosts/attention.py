"""CP attention on ranks of two hosts, with the bytes that the link between them carried.

torchrun starts it on both hosts. One rank of each host prints a line of JSON.
"""

from __future__ import annotations

import json
import os

import torch
import torch.distributed as dist

from ringproof.reference.attention.attention import context_parallel_attention
from ringproof.reference.attention.communicator import Traffic
from ringproof.reference.topology.context import ParallelContext, parallel_context
from ringproof.reference.topology.layout import RankLayout
from smoke.hosts.network import statistics

ROWS, HEADS, KV_HEADS, WIDTH = 512, 16, 4, 32
STEPS = 4
COMM_TYPES = ("a2a+p2p", "a2a", "p2p")


def main() -> None:
    """Attend by each communication type; print bytes and the largest difference of outputs."""
    dist.init_process_group("gloo")
    ranks, per_host = dist.get_world_size(), int(os.environ["LOCAL_WORLD_SIZE"])
    with parallel_context(RankLayout(cp=ranks), (per_host, ranks // per_host)) as context:
        results = {kind: measured(kind, context) for kind in COMM_TYPES}
    outputs = [result.pop("output") for result in results.values()]
    error = max(float((output - outputs[0]).abs().max()) for output in outputs)
    if os.environ["LOCAL_RANK"] == "0":
        print(json.dumps({"error": error, "types": results}), flush=True)
    dist.destroy_process_group()


def measured(kind: str, context: ParallelContext) -> dict[str, object]:
    """Run forward and backward a few times, and count what each group of this host sent.

    The first step is not counted: it makes connections.
    """
    groups = context.hierarchical_groups if kind == "a2a+p2p" else context.context_parallel_group
    generator = torch.Generator().manual_seed(dist.get_rank())
    q, k, v = (
        torch.randn(1, ROWS, heads, WIDTH, generator=generator, requires_grad=True)
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    )
    traffic, before = Traffic(), 0
    for step in range(STEPS + 1):
        if step == 1:
            traffic = Traffic()
            before = _read()
        output, _ = context_parallel_attention(
            q, k, v, comm_type=kind, group=groups, traffic=traffic
        )
        output.sum().backward()
    carried = _read() - before
    everybody: list[dict[str, int]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(everybody, dict(traffic.bytes_sent))
    return {"output": output.detach(), "carried": carried, "sent": everybody}


def _read() -> int:
    """Return what the link has carried from this host, once no rank sends any more."""
    dist.barrier()
    count = int(statistics("tx_bytes").read_text())
    dist.barrier()
    return count


if __name__ == "__main__":
    main()
