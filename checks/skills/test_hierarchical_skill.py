"""The hierarchical CP skill as a document: valid, within budget, and in step with its card."""

from __future__ import annotations

from checks.skills.shared import REPOSITORY, check_markers
from ringproof.reference.topology.census_line import CensusLine, TrafficLine

SKILL = REPOSITORY / "skills" / "hierarchical-context-parallel"


def test_commands_of_the_text_are_those_of_the_card(text, card):
    shown = text + "".join(path.read_text() for path in (SKILL / "references").glob("*.md"))
    for command in card.commands:
        if command.id not in ("parity", "bridge-unit-test"):
            assert [word for word in command.run.split() if word not in shown] == [], command.id
    start = next(command for command in card.commands if command.id == "megatron-smoke")
    assert start.run in text


LEVEL = "HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L1"
PRINTED = {
    "census-levels": CensusLine(0, 4, LEVEL, "gloo", (0, 2), 0).format(),
    "traffic-levels": TrafficLine(0, 4, LEVEL, (("send", 3),), 4096).format(),
    "nccl-prefix": f"[PG ID 7 PG GUID 12({LEVEL}) Rank 0] ProcessGroupNCCL initialized",
    "startup-line": "using world size: 4, hierarchical context-parallel sizes: [2, 2], x",
    "bridge-summary": "  hierarchical_context_parallel_sizes: [2, 2]  (Mcore default: None)",
    "te-config": "Running with config={'context_parallel': True, 'cp_comm_type': 'a2a+p2p'}",
}
NEAR_MISSES = (
    "HIERARCHICAL_CONTEXT_PARALLEL_GROUPS created",
    "assert _HIERARCHICAL_CONTEXT_PARALLEL_GROUPS is not None",
    CensusLine(0, 4, "HIERARCHICAL_CONTEXT_PARALLEL_GROUPS", "gloo", (0, 2), 0).format(),
    CensusLine(0, 4, "CONTEXT_PARALLEL_GROUP", "gloo", (0, 1, 2, 3), 0).format(),
    CensusLine(0, 4, "HIERARCHICAL_EXPERT_DATA_PARALLEL_GROUP_L0", "gloo", (0, 1), 0).format(),
    TrafficLine(0, 4, LEVEL, (("send", 0),), 0).format(),
    "[PG ID 7 PG GUID 12(HIERARCHICAL_EXPERT_DATA_PARALLEL_GROUP_L0) Rank 0] initialized",
    "using world size: 4, hierarchical context-parallel sizes: None, x",
    "Running with config={'context_parallel': True, 'cp_comm_type': 'p2p'}",
)


def test_each_marker_matches_its_line_and_nothing_near(card):
    check_markers(card, PRINTED, NEAR_MISSES)
