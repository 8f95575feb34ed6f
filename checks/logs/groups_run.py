"""Logs of made-up runs: what each rank would print for a layout, line by line."""

from __future__ import annotations

from math import prod
from pathlib import Path

from ringproof.logs.groups.expectation import parse_expectation
from ringproof.logs.groups.judge import GroupsReport, read_groups
from ringproof.reference.topology.census_line import CensusLine, TrafficLine

FLAT = "CONTEXT_PARALLEL_GROUP"
L0 = "HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L0"
L1 = "HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L1"
RING = (("send", 6), ("recv", 6))
EXCHANGE = (("all_to_all", 8),)


def level_groups(cp_ranks: range, sizes: tuple[int, ...], level: int) -> list[tuple[int, ...]]:
    """Groups of one level: its members are the product of the inner sizes apart."""
    stride, size = prod(sizes[:level]), sizes[level]
    return [
        tuple(cp_ranks[start + step * stride] for step in range(size))
        for start in range(len(cp_ranks))
        if start // stride % size == 0
    ]


def layout(world: int, cp: int, sizes: tuple[int, ...] = ()) -> list[tuple[str, tuple[int, ...]]]:
    """Names and ranks of all CP groups, consecutive ranks per CP group."""
    groups = []
    for start in range(0, world, cp):
        ranks = range(start, start + cp)
        groups.append((FLAT, tuple(ranks)))
        for level in range(len(sizes)):
            name = f"HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L{level}"
            groups += [(name, members) for members in level_groups(ranks, sizes, level)]
    return groups


def census(
    groups: list[tuple[str, tuple[int, ...]]], world: int, printing: range | None = None
) -> list[str]:
    """Each rank's census lines of the groups that hold it."""
    return [
        CensusLine(rank, world, name, "gloo", ranks, ranks.index(rank)).format()
        for rank in printing or range(world)
        for name, ranks in groups
        if rank in ranks
    ]


def traffic(name: str, world: int, operations: tuple[tuple[str, int], ...], sent: int) -> list[str]:
    """Each rank's traffic line on its group of one name."""
    return [TrafficLine(rank, world, name, operations, sent).format() for rank in range(world)]


def nccl_line(place: int, message: str, guid: str = "7", desc: str = "", rank: int = 0) -> str:
    """One line of the NCCL backend's log; without a description as its constructor prints it."""
    named = f"({desc})" if desc else ""
    return (
        f"[rank{rank}]:[I1120 09:08:07.123456789 ProcessGroupNCCL.cpp:99] "
        f"[PG ID 3 PG GUID {guid}{named} Rank {place}] {message}"
    )


def nccl(
    groups: list[tuple[str, tuple[int, ...]]],
    *,
    built: tuple[str, ...],
    eager: bool = False,
    newer: bool = True,
) -> list[str]:
    """What all ranks print for NCCL groups, of which those named in ``built`` communicate."""
    lines = []
    for guid, (name, ranks) in enumerate(groups):
        for place, rank in enumerate(ranks):
            options = (
                f"ProcessGroupNCCL initialization options: size: {len(ranks)}, "
                f"global rank: {rank}, TIMEOUT(ms): 600000, PG Name: {guid}"
            )
            lines.append(nccl_line(place, options, str(guid), rank=rank))
            if eager:
                message = "Eagerly connecting nccl backend with device cuda:0"
                lines.append(nccl_line(place, message, str(guid), rank=rank))
            if name in built:
                message = "NCCL_DEBUG: N/A" if newer else "ProcessGroupNCCL created ncclComm_ 0x1"
                lines.append(nccl_line(place, message, str(guid), name, rank))
    return lines


def engine(comm_type: str, parallel: bool = True, size: int = 4) -> str:
    """Transformer Engine's line on the configuration it runs."""
    return (
        "[DEBUG    | DotProductAttention]: Running with config={'transformer_engine_version': "
        f"'2.20.2', 'qkv_layout': 'bshd_bshd_bshd', 'context_parallel': {parallel}, "
        f"'cp_comm_type': '{comm_type}', 'cp_size': {size}, 'fp8': False}}"
    )


def startup(world: int, cp: int, sizes: str) -> str:
    """Megatron-LM's line on rank 0."""
    return (
        f"using world size: {world}, data-parallel size: {world // cp}, "
        f"context-parallel size: {cp}, hierarchical context-parallel sizes: {sizes}, "
        f"tensor-model-parallel size: 1, pipeline-model-parallel size: 1"
    )


def argument(name: str, value: str) -> str:
    """A line of Megatron-LM's argument dump."""
    return f"  {name} {'.' * (48 - len(name))} {value}"


def read(
    tmp_path: Path,
    lines: list[str],
    expect: str | None = None,
    hcp: str | None = None,
    dynamic: str | None = None,
    *,
    require_traffic: bool = False,
) -> GroupsReport:
    """Write one log and judge it."""
    path = tmp_path / "run.log"
    path.write_text("".join(f"{line}\n" for line in lines))
    expectation = parse_expectation(expect, hcp, require_traffic, dynamic)
    return read_groups([str(path)], expectation)


def texts(report: GroupsReport) -> list[str]:
    """The findings without their codes."""
    return [finding.text for finding in report.findings]


def judged(report: GroupsReport) -> tuple[str, str]:
    """The verdict, and the kind of evidence that decided."""
    return report.decision.verdict.value, report.decision.proof.value
