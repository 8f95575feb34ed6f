"""The hierarchical CP skill as a document: valid, within budget, and in step with its card."""

from __future__ import annotations

import re

from checks.skills.shared import REPOSITORY, body_of, check_markers
from ringproof.reference.topology.census_line import CensusLine, TrafficLine

SKILL = REPOSITORY / "skills" / "hierarchical-context-parallel"


def test_pitfalls_are_those_of_the_card(text, card):
    known = {pitfall.id for pitfall in card.pitfalls}
    section = body_of(text).split("\n## Pitfalls\n")[1].split("\n## ")[0]
    first_cells = (line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `"))
    listed = {name for cell in first_cells for name in re.findall(r"`([a-z0-9-]+)`", cell)}
    assert listed == known
    explained = (SKILL / "references" / "pitfalls.md").read_text(encoding="utf-8")
    assert known - {"empty-assertion"} <= set(re.findall(r"`([a-z0-9-]+)`", explained))


def test_symbols_in_the_text_are_anchored(text, card):
    symbols = {anchor.symbol for anchor in card.anchors}
    section = body_of(text).split("\n## Code anchors\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    shown = {name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[3])}
    missing = {
        name for name in shown if not any(s.startswith(name) or s.endswith(name) for s in symbols)
    }
    assert len(shown) > 10
    assert missing == set()


def test_commands_of_the_text_are_those_of_the_card(text, card):
    def words(part):
        return part.replace("\\\n", " ").split()

    shown = " ".join(words(body_of(text)))
    for command in card.commands:
        if command.id in ("parity", "bridge-unit-test"):
            continue
        flags = [word for word in command.run.split() if "=" in word or word.startswith("--")]
        assert len(flags) >= 2
        assert [flag for flag in flags if flag not in shown] == [], command.id


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
