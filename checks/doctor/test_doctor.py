"""`ringproof doctor`: what it reads, what it says, and what it leaves alone."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

from checks.doctor.upstream_lines import cards
from checks.skills.shared import REPOSITORY
from ringproof.cards import load_card
from ringproof.cards.statements import statements
from ringproof.cli import doctor
from ringproof.cli.main import app
from ringproof.doctor.examine import RULES
from ringproof.doctor.reading import read_settings
from ringproof.errors import InputError

RIGHT = [
    "--num-layers", "4", "--hidden-size", "64", "--num-attention-heads", "8", "--seq-length",
    "256", "--max-position-embeddings", "256", "--micro-batch-size", "1",
    "--global-batch-size", "8", "--train-iters", "2", "--eval-interval", "2",
    "--context-parallel-size", "4", "--cp-comm-type", "a2a+p2p",
    "--hierarchical-context-parallel-sizes", "2", "2",
]  # fmt: skip
VERL, NEMO = "actor_rollout_ref.actor.megatron.", "policy.megatron_cfg."
SCRIPT = """#!/bin/bash
# my training
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc-per-node 8 pretrain_gpt.py \\
  --num-layers 4 --hidden-size 64 --num-attention-heads 8 --seq-length 256 \\
  --max-position-embeddings 256 --micro-batch-size 1 --global-batch-size 8 --train-iters 2 \\
  --eval-interval 2 --sft --context-parallel-size 4 \\
  --hybrid-context-parallel --max-seqlen-per-dp-cp-rank 64
"""


def run(*words):
    skills = str(REPOSITORY / "skills")
    return CliRunner().invoke(app, ["doctor", "--quick", "--skills", skills, *words])


def launched(*words):
    torchrun = ("torchrun", "--nproc-per-node", "8", "pretrain_gpt.py")
    return run("--line", "dev", "--", "CUDA_DEVICE_MAX_CONNECTIONS=1", *torchrun, *words)


def test_a_right_launch_has_no_finding():
    result = launched(*RIGHT)
    assert result.exit_code == 0, result.output
    assert result.output.startswith("verdict: nothing found; upstream's own checks did not run\n")
    assert "HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L1" in result.output


def test_a_word_that_the_parser_refuses_leaves_the_sizes_unknown():
    words = " ".join(RIGHT[:-6]).replace("parallel", "paralel") + " --context-paralel-size 4"
    said = launched(*words.split())
    assert said.exit_code == 1 and "perhaps --context-parallel-size" in said.output
    assert "sizes are not shown" in said.output and "CP: 1" not in said.output
    command = ("torchrun", "--nproc-per-node", "8", "pretrain_gpt.py", *words.split())
    told = json.loads(run("--json", "-", "--line", "dev", "--", *command).output)
    assert told["examinations"][0]["sizes"] == {}


@pytest.mark.parametrize(
    ("before", "after", "statement", "effect"),
    [
        ("2 2", "2 4", "hierarchical-context-parallel/product", "refused"),
        ("2 2", "1 4", "hierarchical-context-parallel/level-of-one", "has no effect"),
        ("a2a+p2p", "p2p", "hierarchical-context-parallel/unused-sizes", "has no effect"),
        ("-heads 8", "-heads 9", "launch/odd-heads", "fails"),
        ("256 --max", "250 --max", "hierarchical-context-parallel/sequence-divisible", "refused"),
    ],
)  # fmt: skip
def test_one_mistake_is_named(before, after, statement, effect):
    text = " ".join(RIGHT)
    assert before in text
    result = launched(*text.replace(before, after).split())
    assert result.exit_code == 1
    assert statement in result.output
    assert f"{effect}: " in result.output


def test_a_script_is_translated_with_its_comments(tmp_path):
    script = tmp_path / "train.sh"
    script.write_text(SCRIPT, encoding="utf-8")
    assert run(str(script), "--line", "dev").exit_code == 1
    fixed = run(str(script), "--to", "dev")
    assert fixed.exit_code == 0, fixed.output
    assert "# my training" in fixed.output
    assert "--dynamic-context-parallel" in fixed.output
    assert "--hybrid-context-parallel" not in fixed.output
    script.write_text(fixed.output, encoding="utf-8")
    assert run(str(script), "--line", "dev").exit_code == 0
    assert script.read_text(encoding="utf-8") == fixed.output, "only printed"


@pytest.mark.parametrize(
    ("words", "program", "statement"),
    [
        (
            "model.context_parallel_size=4 model.cp_comm_type=a2a+p2p",
            "bridge",
            "hierarchical-context-parallel/sizes-required",
        ),
        (
            f"{VERL}context_parallel_size=2 {VERL}dynamic_context_parallel=True "
            "trainer.nnodes=3 trainer.n_gpus_per_node=2",
            "verl",
            "dynamic-context-parallel/power-of-two-domain",
        ),
        (
            f"{NEMO}context_parallel_size=2 {NEMO}hierarchical_context_parallel_sizes=[2,2]",
            "nemo-rl",
            "hierarchical-context-parallel/product",
        ),
    ],
)
def test_overrides_of_other_programs(words, program, statement):
    result = run("--line", "dev", "--json", "-", *words.split())
    assert result.exit_code == 1, result.output
    (found,) = json.loads(result.stdout)["examinations"]
    assert found["program"] == program
    assert statement in {finding["statement"] for finding in found["findings"]}


def test_a_script_with_variables_is_corrected_and_nothing_is_written_beside_it(tmp_path):
    script = tmp_path / "train.sh"
    script.write_text(SCRIPT.replace("--context-parallel-size 4", "--context-parallel-size $CP"))
    fixed = run(str(script), "--to", "dev", "--set", "CP=4")
    assert "--context-parallel-size $CP" in fixed.output, "changed where the options stand"
    assert "--dynamic-context-parallel" in fixed.output
    assert list(tmp_path.iterdir()) == [script]


def test_yaml_and_recipes_are_read_and_not_executed(tmp_path):
    yaml = tmp_path / "model.yaml"
    yaml.write_text("model:\n  # wide\n  context_parallel_size: 4\n  cp_comm_type: a2a+p2p\n")
    result = run(str(yaml), "--to", "dev")
    assert "hierarchical_context_parallel_sizes" in result.output or "p2p" in result.output
    assert "# wide" in result.output
    yaml.write_text("model:\n  hybrid_context_parallel: true\n  context_parallel_size: 2\nddp:\n")
    empty = run(str(yaml), "--to", "dev")
    assert isinstance(empty.exception, SystemExit | None), "an empty section is no error"
    recipe = tmp_path / "recipe.py"
    recipe.write_text(
        "raise SystemExit('executed')\ncfg.model.context_parallel_size = 4\n"
        "cfg.model.cp_comm_type = 'a2a+p2p'\ncfg.model.seq_length = size()\n"
    )
    result = run(str(recipe), "--line", "dev")
    assert "sizes-required" in result.output
    assert "executed" not in result.output


def test_a_log_with_arguments(tmp_path):
    log = tmp_path / "run.log"
    values = {"world_size": 8, "context_parallel_size": 3, "seq_length": 255, **{
        f"filler_{i}": None for i in range(20)}}  # fmt: skip
    log.write_text("".join(f"  {name} ........... {value}\n" for name, value in values.items()))
    result = run(str(log), "--line", "main")
    assert "8 ranks are not divisible by TP 1 x PP 1 x CP 3" in result.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "nothing to examine"),
        ([str(REPOSITORY)], str(REPOSITORY)),
        (["missing.sh"], "missing.sh"),
        (["model.context_parallel_size=many", "--line", "dev"], "is not a whole number"),
        (["model.seq_length=8", "--line", "nowhere"], "is not a known line"),
        (
            ["model.seq_length=8", "--line", "dev", "--to", "main"],
            "--line: give only one of --upstream",
        ),
        (["model.hierarchical_context_parallel_sizes=x", "--line", "dev"], "whole numbers"),
        (["model.context_parallel_size=0", "--line", "dev"], "at least 1"),
        (["model.seq_length=8", "--upstream", "nowhere"], "--upstream: 'nowhere' is not a folder"),
    ],
)
def test_bad_input_is_one_line(words, said):
    result = run(*words)
    assert isinstance(result.exception, InputError), result.output
    assert said in str(result.exception)


def test_the_lines_are_those_of_ringproof_where_a_project_has_skills_of_its_own(
    tmp_path, monkeypatch
):
    skill = tmp_path / "skills" / "batch-size"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: batch-size\ndescription: Choose a batch.\n---\n")
    (skill / "card.yaml").write_text(
        "title: batch_size\nsummary: How large a batch is.\nvalidated_on: 2026-08-22\n"
        "upstreams:\n  megatron-lm:\n    repo: NVIDIA/Megatron-LM\n    ref: main\n"
        "    commit: 55ac7082517c3878ae653c07c09c534b8aed49f6\n"
    )
    load_card(skill / "card.yaml")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["doctor", "--quick", "--line", "r0.19", "model.seq_length=8"])
    assert result.output.startswith("verdict:"), result.exception


def test_each_rule_names_a_statement():
    known = {f"{skill}/{one.id}" for skill, card in cards().items() for one in statements(card)}
    assert {rule.statement for rule in RULES if not rule.statement.startswith("launch/")} <= known


def test_without_an_upstream_every_line_is_examined(monkeypatch):
    def nothing(*_, **__):
        raise InputError("PATH", "it is not a checkout; name one")

    monkeypatch.setattr(doctor, "find_products", nothing)  # here some are installed
    launch = [*RIGHT[:-1], "3"]
    result = run("--", "torchrun", "--nproc-per-node", "8", "pretrain_gpt.py", *launch)
    assert result.exit_code == 1, "no line takes levels of another product"
    first, *lines, last = result.output.splitlines()
    assert first == (
        f"verdict: bad on {len(lines)} of {len(lines)} lines (series of releases, and branches); "
        "no upstream is given; upstream's own checks did not run"
    )
    assert last.startswith("choose one with --line")
    found = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines}
    assert {"dev", "main", "r0.19"} <= found.keys()
    assert found["dev"].startswith("1 refused")


def test_one_bad_line_of_several_is_an_exit_code(monkeypatch):
    """Which of them will run is not known."""

    def nothing(*_, **__):
        raise InputError("PATH", "it is not a checkout; name one")

    monkeypatch.setattr(doctor, "find_products", nothing)
    launch = str(REPOSITORY / "examples" / "train.sh")  # with options that are on some lines only
    result = run(launch, "--set", "NNODES=8")
    counts = re.match(r"verdict: bad on (\d+) of (\d+) lines", result.output)
    assert counts is not None and 0 < int(counts[1]) < int(counts[2]), result.output
    assert result.exit_code == 1
    command = ("CUDA_DEVICE_MAX_CONNECTIONS=1", "torchrun", "--nproc-per-node", "8")
    right = run("--", *command, "pretrain_gpt.py", *RIGHT)
    assert right.output.startswith("verdict: nothing bad found on ")
    assert right.exit_code == 0


@pytest.mark.parametrize(
    ("folder", "expected"),
    [("train_gb200", True), ("b300", True), ("dgx_h100", False), ("ab200c", False)],
)
def test_the_name_of_a_file_tells_the_gpus(tmp_path, folder, expected):
    path = tmp_path / folder / "train.sh"
    path.parent.mkdir()
    path.write_text(SCRIPT, encoding="utf-8")
    settings = read_settings([str(path)], {})
    assert settings.blackwell is expected
    assert any("Blackwell" in note for note in settings.notes) is expected
