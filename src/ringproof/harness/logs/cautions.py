"""Warnings: what a reader of the verdict should know; where configuration and activity differ."""

from __future__ import annotations

from math import prod

from ringproof.harness.logs.facts import Facts
from ringproof.harness.logs.groups import FLAT_GROUP, is_dynamic
from ringproof.harness.logs.verdict import (
    HIERARCHICAL_TYPE,
    Decision,
    Proof,
    Verdict,
    name_facts,
)

HOW_TO_SEE_GROUPS = (
    "print the census (ringproof.reference.topology.census.print_census) once the groups exist,"
    " or set TORCH_CPP_LOG_LEVEL=INFO in a run on NCCL"
)


def cautions(facts: Facts, decision: Decision) -> tuple[str, ...]:
    """Every warning, the verdict's own first."""
    return (
        *decision.warnings,
        *_about_logs(facts, decision),
        *_about_configuration(facts, decision),
    )


def _about_logs(facts: Facts, decision: Decision) -> list[str]:
    found = []
    if decision.verdict is Verdict.UNKNOWN:
        found.append(f"the logs do not show which process groups there were; {HOW_TO_SEE_GROUPS}")
    if decision.proof is Proof.CREATION and decision.active:
        found.append("the logs show that the groups were created, not that anything used them")
    if facts.unnamed_groups and decision.verdict in (Verdict.NONE, Verdict.UNKNOWN):
        found.append(
            f"{facts.unnamed_groups} NCCL groups have no description in the logs: PyTorch prints it"
            f" once a communicator is built, and not before release 2.4"
        )
    if facts.damaged:
        found.append(
            f"{facts.damaged} ringproof markers are followed by no sound line (cut or quoted)"
        )
    if facts.overflow:
        found.append("more groups or ranks than this reader keeps; the lists are incomplete")
    if len(facts.worlds) > 1:
        sizes = ", ".join(map(str, facts.worlds))
        found.append(f"the logs name several world sizes ({sizes}): more than one run?")
    dynamic = sorted({group.name for group in facts.groups if is_dynamic(group.name)})
    if dynamic:
        found.append(
            f"dynamic CP groups are there ({dynamic[0]}, ...); the verdict leaves them out,"
            f" --dynamic SIZES checks them"
        )
    return found


def _about_configuration(facts: Facts, decision: Decision) -> list[str]:
    """Where Megatron-LM's start-up lines say one thing and the groups another."""
    told = facts.configuration
    sizes = told.hierarchical_sizes or ()
    found = []
    hierarchical = decision.verdict is Verdict.HIERARCHICAL
    but = f"but the verdict is {decision.verdict.value}"
    if sum(size > 1 for size in sizes) >= 2 and not hierarchical:
        found.append(f"configured hierarchical sizes {list(sizes)}, {but}")
    if told.comm_types and HIERARCHICAL_TYPE in told.comm_types and not hierarchical:
        found.append(f"configured cp_comm_type {HIERARCHICAL_TYPE}, {but}")
    if sizes and decision.level_sizes and sizes != decision.level_sizes:
        shown = ["?" if size is None else size for size in decision.level_sizes]
        found.append(f"configured hierarchical sizes {list(sizes)}, but the groups show {shown}")
    if told.context_parallel_size is not None:
        found += _about_size(facts, decision, told.context_parallel_size)
    return found


def _about_size(facts: Facts, decision: Decision, configured: int) -> list[str]:
    flat = name_facts(facts.groups, FLAT_GROUP)
    seen = flat.size if flat is not None else None
    known = [size for size in decision.level_sizes if size is not None]
    if seen is None and known and len(known) == len(decision.level_sizes):
        seen = prod(known)
    if seen is not None and seen != configured:
        return [f"configured context-parallel size {configured}, but the groups show {seen}"]
    if configured > 1 and decision.verdict is Verdict.NONE:
        return [f"configured context-parallel size {configured}, but no CP group was in use"]
    return []
