"""The tasks with files: what the files show is found by our own commands."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

from checks.evals.cases import CARDS, ROOT, EvalCase, cases_of
from checks.faults.defects import patched
from checks.faults.programs import SCRIPT, TRAININGS
from checks.faults.trials import compare
from checks.running import run_here
from ringproof.rehearsal.fixtures import SessionServers
from ringproof.rehearsal.protocol.program import Program

FORK = ROOT / "cards" / "dynamic-context-parallel" / "tasks" / "our-fork" / "fork.patch"
"""Lines that a fork adds to two files of Megatron-LM's dev branch, at the commit of the card."""
EXAMINED = ("doctor", "third-step/train.sh", "--line", "dev", "--quick")


def task(skill: str, name: str) -> EvalCase:
    return next(case for case in cases_of(skill) if case.id == name)


def unpacked(case: EvalCase, folder: Path) -> Path:
    for name, content in case.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def ringproof(folder: Path, *words: str) -> tuple[int, dict[str, Any]]:
    done = run_here(folder, [*words, "--json", "-"])
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize("skill", CARDS)
def test_every_file_of_the_tasks_belongs_to_a_case(skill: str) -> None:
    folder = ROOT / "cards" / skill / "tasks"
    there = {path for path in folder.rglob("*") if path.is_file() and path.name != "evals.json"}
    named = {name for case in cases_of(skill) for name in case.files}
    assert named == {path.relative_to(folder).as_posix() for path in there} != set()


def test_the_launch_that_dies(tmp_path: Path) -> None:
    unpacked(task("dynamic-context-parallel", "dies-in-the-third-step"), tmp_path)
    logs = sorted(str(path) for path in (tmp_path / "third-step" / "logs").iterdir())
    code, diagnosis = ringproof(tmp_path, "logs", "diagnose", *logs)
    first = json.dumps(diagnosis)
    assert code == 1 and "dynamic-context-parallel/non-power-of-two-domain" in first
    code, examined = ringproof(tmp_path, *EXAMINED)
    assert code == 1 and "power-of-two-domain" in json.dumps(examined)
    launch = tmp_path / "third-step" / "train.sh"
    launch.write_text(launch.read_text().replace("nproc-per-node 6", "nproc-per-node 8"))
    code, examined = ringproof(tmp_path, *EXAMINED)
    assert code == 0, examined


def test_the_log_of_mixed_evidence(tmp_path: Path) -> None:
    unpacked(task("hierarchical-context-parallel", "mixed-evidence"), tmp_path)
    log = "mixed-evidence/run.log"
    code, verdict = ringproof(
        tmp_path, "logs", "groups", log, "--expect", "hierarchical", "--hcp", "2,2"
    )
    assert (code, verdict["verdict"]) == (1, "flat")
    text = (tmp_path / log).read_text()
    assert "HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L1" in text, "the groups are there"
    assert "--cp-comm-type" not in text


def test_the_loop_of_the_fork_lacks_one_argument(tmp_path: Path) -> None:
    """And tells the configuration of all that it needs, so that the other call looks right."""

    def given(tree: ast.AST, name: str) -> set[str | None]:
        calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
        (call,) = (call for call in calls if ast.unparse(call.func).endswith(name))
        return {keyword.arg for keyword in call.keywords}

    unpacked(task("hierarchical-context-parallel", "defect-in-our-fork"), tmp_path)
    tree = ast.parse((tmp_path / "own-loop" / "train_loop.py").read_text())
    sizes = "hierarchical_context_parallel_sizes"
    assert {sizes, "cp_comm_type"} <= given(tree, "TransformerConfig")
    assert sizes not in given(tree, "initialize_model_parallel")


def test_the_log_of_the_bank_has_a_size_without_replays(tmp_path: Path) -> None:
    unpacked(task("dynamic-cp-cuda-graphs", "which-size-is-untested"), tmp_path)
    log = (tmp_path / "never-replayed" / "train.log").read_text()
    rows = (tmp_path / "never-replayed" / "replays.txt").read_text()
    captured = {int(rows) // 4096 for rows in re.findall(r"'max_seqlen_q': (\d+)", log)}
    replayed = {int(size) for size in re.findall(r"local_cp_size (\d+)", rows)}
    assert (captured, replayed) == ({8, 4, 2, 1}, {8, 4, 1})


def test_the_fork_adds_lines_of_its_own_only() -> None:
    fork = FORK.read_text()
    lines = [line for line in fork.splitlines() if not line.startswith(("diff ", "index ", "@@ "))]
    assert all(line.startswith(("+", "---")) for line in lines), "no line of upstream"
    assert len(re.findall(r"^@@ ", fork, re.MULTILINE)) == 2


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("kept", "by"), [("rope_utils.py", "loss"), ("data_schedule.py", "nothing")]
)
def test_one_change_of_the_fork_trains_worse(
    stage: SessionServers, tmp_path: Path, kept: str, by: str
) -> None:
    """On dev, beside one rank. The other change is harmless."""
    parts = re.split(r"^(?=diff )", FORK.read_text(), flags=re.MULTILINE)[1:]
    (part,) = (part for part in parts if kept in part)
    change = tmp_path / "fork.patch"
    change.write_text(part)
    dev = stage.upstream("NVIDIA/Megatron-LM@dev")
    dynamic, packed = TRAININGS["dynamic"], TRAININGS["packed"]
    fork = patched(dev, change, tmp_path / "fork")
    run = stage.run(Program(fork, SCRIPT, dynamic.arguments, dynamic.ranks))
    alone = stage.run(Program(dev, SCRIPT, packed.arguments, packed.ranks))
    assert run.failure is None
    assert compare(run, alone).by == by
