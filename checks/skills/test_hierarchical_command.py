"""What SKILL.md of hierarchical CP tells people to run, run as it stands there.

Its Python runs in Megatron-core's own code on four ranks; its launch runs as upstream's unmodified
training program in the rehearsal, without GPUs.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from typer.testing import CliRunner

from checks.skills.shared import REPOSITORY
from ringproof.cli.main import app
from ringproof.harness.cards import Card
from ringproof.rehearsal.fixtures import Stage

SKILL = REPOSITORY / "skills" / "hierarchical-context-parallel"


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.fixture(scope="module")
def printed(stage: Stage, text: str) -> list[dict[str, Any]]:
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
    dev = stage.upstream(f"NVIDIA/Megatron-LM@{card.upstreams['megatron-lm-dev'].commit}")
    (said,) = stage.call("checks.skills.core_cases:local_types", 1, None, upstream=dev)
    assert said.pop("all_gather") == ""
    message = "only supports all_gather communication type for context parallelism"
    assert len(said) == 3 and all(message in one for one in said.values())


@pytest.mark.timeout(600)
@pytest.mark.parametrize("line", ["megatron-lm-main", "megatron-lm-dev", "megatron-lm-r0.19"])
def test_the_command_of_the_skill_trains_over_two_levels(
    stage: Stage, text: str, card: Card, tmp_path, line
):
    """It starts, attends over both levels, and its losses are those of a run without CP.

    With the engine's log switched on, the log has the card's lines of what was asked for and ran.
    """
    (command,) = (block for block in blocks(text, "bash") if "torchrun" in block)
    assert "..." not in command
    upstream = stage.upstream(f"NVIDIA/Megatron-LM@{card.upstreams[line].commit}")
    (tmp_path / "train.sh").write_text(f"NVTE_DEBUG=1 NVTE_DEBUG_LEVEL=2 {command}")
    there = ("--megatron", str(upstream.megatron), "--te", str(upstream.engine))
    files = ("--json", str(tmp_path / "out.json"), "--keep", str(tmp_path / "kept"))
    done = CliRunner().invoke(app, ["rehearse", str(tmp_path / "train.sh"), *there, *files])
    assert done.exit_code == 0, done.output[-3000:]
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["passed"]
    assert found["launch"]["ranks"] == 4
    assert "a2a+p2p over 2 x 2 ranks" in done.output
    log = "".join(file.read_text() for file in (tmp_path / "kept").rglob("launch/**/rank-*.log"))
    patterns = {marker.id: marker.pattern for marker in card.markers}
    for name in ("startup-line", "te-config"):
        assert re.search(patterns[name], log), name
