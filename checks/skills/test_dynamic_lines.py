"""The newest statements of the dynamic CP skill, on the code of dev and of pull request 6479.

`checks/skills/conftest.py` says how to give a checkout. The second version of Dynamic CP is not
here: its commit could not be had, and the card says so.
"""

from __future__ import annotations

import pytest

from checks.skills import test_dynamic_training as training
from checks.skills.commands import rehearsed
from checks.skills.shared import REPOSITORY, blocks
from ringproof.rehearsal.protocol.program import Program

SKILL = REPOSITORY / "skills" / "dynamic-context-parallel"
CASES = "checks.skills.dynamic_cases"


# Imports two versions of Megatron, which a loaded machine needs minutes for.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module", params=["megatron-lm-dev", "megatron-lm-pr6479"])
def found(request, stage, upstream_of):
    return stage.call(f"{CASES}:plans", 1, upstream=upstream_of(request.param))[0]


def test_alignment_does_not_end_on_six_twelve_and_twenty_four(found):
    """On powers of two the same batches end, with a plan or with a message."""
    stuck = {
        int(ranks): sum(error.startswith("StillPlanning") for error in errors)
        for ranks, errors in found["errors"].items()
    }
    assert [stuck[ranks] for ranks in (4, 8, 16)] == [0, 0, 0]
    assert min(stuck[ranks] for ranks in (6, 12, 24)) >= 3, stuck
    assert "" in found["errors"]["8"], "some are planned"


def test_partition_modes_of_dev(found):
    said = found["partitions"]
    assert said["zigzag"] == ""
    assert "requires experimental_attention_variant" in said["contiguous"]
    assert "sequence_packing_scheduler" in said["unpacked"]
    message = "DSv4 Hybrid with context parallelism requires cp_partition_mode='contiguous'."
    assert said["dsv4 in zigzag"] == f"ValueError: {message}"


@pytest.fixture(scope="module")
def looped(stage, dev_upstream):
    text = (SKILL / "references" / "enabling.md").read_text(encoding="utf-8")
    (loop,) = (code for code in blocks(text, "python") if "wrap_data" in code)
    return stage.call(f"{CASES}:own_loop", 2, loop, upstream=dev_upstream)


def test_the_own_loop_of_the_skill(looped):
    """64 tokens need both ranks of 32, and the others fit one."""
    assert all(rank["returned"] == 4 for rank in looped)
    assert {size for rank in looped for size in rank["sizes"]} == {1, 2}


def test_only_the_first_tensor_parallel_rank_has_an_iterator(looped):
    message = "AssertionError: Only TP rank 0 should have data_iterator"
    assert [rank["second"] for rank in looped] == ["", message]


@pytest.mark.slow
def test_the_command_of_the_skill_starts_and_agrees(text, card, dev_upstream, tmp_path):
    """As it stands in SKILL.md, with eight ranks; its losses are those of one rank."""
    (command,) = (block for block in blocks(text, "bash") if "torchrun" in block)
    shown = rehearsed(command, dev_upstream, tmp_path)
    assert shown.data["launch"]["ranks"] == 8
    assert "CP sizes of the groups in microbatches: 2 (" in shown.printed
    shown.check_markers(card, "startup-warning", "arguments-dynamic")


def test_the_snippet_counts_the_sizes_of_a_training(text, stage, dev_upstream):
    """The snippet of SKILL.md, planted into upstream's program on four ranks."""
    options = f"{training.MODEL} {training.RUN} {training.ROPE} {training.DYNAMIC} 64"
    planted = (f"{CASES}:count_sizes",)
    program = Program(dev_upstream, training.SCRIPT, tuple(options.split()), 4, faults=planted)
    outcome = stage.run(program)
    assert outcome.failure is None, outcome.failure
    logs = [outcome.folder / f"rank-{report.rank}.log" for report in outcome.ranks]
    printed = [log.read_text(errors="replace").count("local_cp_size histogram: {") for log in logs]
    assert min(printed) >= 1
