"""What SKILL.md of hierarchical CP tells people to run, run as it stands there.

Its Python runs in Megatron-core's own code on four ranks; its launch runs as upstream's unmodified
training program in the rehearsal, without GPUs. The markers of its card match their lines, and none
that is near.
"""

from __future__ import annotations

from typing import Any

import pytest

from checks.skills.commands import rehearsed
from checks.skills.shared import REPOSITORY, blocks, check_markers, spec_of
from ringproof.cards import Card
from ringproof.reference.topology.census_line import CensusLine, TrafficLine
from ringproof.rehearsal.fixtures import SessionServers

SKILL = REPOSITORY / "skills" / "hierarchical-context-parallel"


@pytest.fixture(scope="module")
def printed(stage: SessionServers, text: str) -> list[dict[str, Any]]:
    """What each of four ranks reports of the snippets, with the sizes and without."""
    pitfalls = (SKILL / "references" / "pitfalls.md").read_text(encoding="utf-8")
    texts = blocks(text, "python") + blocks(pitfalls, "python")
    found = stage.call("checks.skills.core_cases:snippets", 4, texts)
    assert isinstance(found, list)
    return found


def test_the_library_snippet_builds_what_the_guard_prints(printed):
    levels = "HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L"
    for rank in printed:
        assert rank["printed"] == [f"{levels}0 2", f"{levels}1 2"]
        assert rank["type of the config"] == "a2a+p2p"


def test_the_guard_stops_a_run_without_sizes(printed):
    """After the reset of the pitfalls; the sizes are taken out of the first call only."""
    for rank in printed:
        assert all(refusal.startswith("AssertionError: ") for refusal in rank["without sizes"])


def test_local_attention_of_dev_takes_all_gather_only(stage, card):
    dev = stage.upstream(spec_of(card, "megatron-lm-dev"))
    (said,) = stage.call("checks.skills.core_cases:local_types", 1, None, upstream=dev)
    assert said.pop("all_gather") == ""
    message = "only supports all_gather communication type for context parallelism"
    assert len(said) == 3 and all(message in one for one in said.values())


@pytest.mark.timeout(600)
@pytest.mark.parametrize("line", ["megatron-lm-main", "megatron-lm-dev", "megatron-lm-r0.19"])
def test_the_command_of_the_skill_trains_over_two_levels(
    stage: SessionServers, text: str, card: Card, tmp_path, line
):
    """It starts, attends over both levels, and its losses are those of a run without CP.

    With the engine's log switched on, the log has the card's lines of what was asked for and ran.
    """
    (command,) = (block for block in blocks(text, "bash") if "torchrun" in block)
    upstream = stage.upstream(spec_of(card, line))
    shown = rehearsed(f"NVTE_DEBUG=1 NVTE_DEBUG_LEVEL=2 {command}", upstream, tmp_path)
    assert shown.data["launch"]["ranks"] == 4
    assert "a2a+p2p over 2 x 2 ranks" in shown.printed
    shown.check_markers(card, "startup-line", "te-config")


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
