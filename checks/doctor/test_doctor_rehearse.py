"""``ringproof doctor --rehearse``, and what doctor says about ``--yaml-cfg``."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from checks.doctor.test_doctor import run
from checks.doctor.upstream_lines import stack_at, upstream_at
from checks.rehearsal.test_rehearse import RAISED, refused, uncompared, variant
from ringproof.cli import rehearse
from ringproof.doctor.examine import RULES, BrokenRule, Examination, examine
from ringproof.doctor.reading import read_settings
from ringproof.doctor.rehearsed import data, judge, lines
from ringproof.doctor.rule import Effect
from ringproof.errors import InputError

LAUNCH = (
    "--", "CUDA_DEVICE_MAX_CONNECTIONS=1", "torchrun", "--nproc-per-node", "2", "pretrain_gpt.py",
    "--num-layers", "2", "--hidden-size", "64", "--num-attention-heads", "4", "--seq-length", "128",
    "--max-position-embeddings", "128", "--micro-batch-size", "1", "--global-batch-size", "2",
    "--train-iters", "2", "--lr", "1e-3", "--mock-data", "--tokenizer-type", "NullTokenizer",
    "--vocab-size", "255", "--context-parallel-size", "2",
)  # fmt: skip
INTERVAL = ("--eval-interval", "2")


@pytest.fixture
def checkout(stage, tmp_path, monkeypatch):
    """Options that name main's code, and a folder of one's own for logs."""
    upstream = upstream_at(stage, "main")
    monkeypatch.chdir(tmp_path)
    engine = f"pip:transformer-engine=={upstream.engine_version}"
    return ("--upstream", str(upstream.megatron), "--upstream", engine, "--rehearse")


@pytest.mark.slow
def test_a_launch_that_trains_agrees(checkout):
    result = run(*checkout, *LAUNCH, *INTERVAL)
    assert result.exit_code == 0, result.output
    assert "It starts, takes the path asked for (p2p over 2 ranks), and agrees." in result.output
    assert "CP paths seen: p2p 2" in result.output
    assert "CONTEXT_PARALLEL_GROUP" in result.output.partition("groups seen: ")[2]
    assert "agrees with doctor: It trains" in result.output


@pytest.mark.slow
def test_a_launch_that_fails_ends_with_the_message_that_doctor_names(checkout):
    result = run(*checkout, "--json", "-", *LAUNCH)
    assert result.exit_code == 1, result.output
    found = json.loads(result.stdout)
    assert found["examinations"][0]["findings"][0]["statement"] == "launch/evaluation-interval"
    ran = found["rehearsal"]
    assert (ran["starts"], ran["agrees_with_doctor"]) == (False, True)
    assert ran["says"] == "It ends as launch/evaluation-interval says."
    assert ran["message"].startswith("TypeError: unsupported operand type(s) for //")
    assert ran["place"].startswith("megatron/training/training.py:")


def examined(*effects: tuple[str, Effect]) -> Examination:
    """An examination with one finding for each statement."""
    plain = examine(read_settings(LAUNCH[1:] + INTERVAL, {}), stack_at("main"))
    assert not plain.findings
    found = tuple(
        BrokenRule(next(rule for rule in RULES if rule.statement == name), effect, "it is")
        for name, effect in effects
    )
    return dataclasses.replace(plain, findings=found)


INTERVAL_FAILS = ("launch/evaluation-interval", Effect.FAILS)
BARE_FAILS = ("launch/conversations-with-mask", Effect.FAILS)
ALIAS = ("dynamic-context-parallel/hybrid-alias", Effect.WRONG)
ENDED = dataclasses.replace(RAISED, message="TypeError: unsupported operand type(s) for //: "
                            "'int' and 'NoneType'")  # fmt: skip


@pytest.mark.parametrize(
    ("findings", "ran", "agrees", "says"),
    [
        ((), variant(), True, "doctor named nothing"),
        ((INTERVAL_FAILS,), variant(), False, "doctor says that it does not"),
        ((INTERVAL_FAILS,), refused(ENDED), True, "as launch/evaluation-interval says"),
        ((INTERVAL_FAILS,), refused(RAISED), False, "another message"),
        ((BARE_FAILS,), refused(RAISED), False, "another message"),
        ((), refused(ENDED), False, "doctor named nothing"),
        ((), refused(dataclasses.replace(RAISED, symbol="tex.f")), None, "stand-ins end"),
        ((ALIAS,), variant(5.1), True, "as doctor says"),
        ((), variant(5.1), False, "doctor named nothing"),
        ((ALIAS,), variant(), None, "does not show here"),
        ((), uncompared(), False, "doctor named nothing"),
    ],
)  # fmt: skip
def test_what_ran_is_judged_by_what_doctor_says(findings, ran, agrees, says):
    judged = judge(examined(*findings), ran)
    assert judged.agrees is agrees
    assert says in judged.says
    assert judged.good is (ran.passed and agrees is not False)
    assert judged.says in "\n".join(lines(judged))
    assert json.loads(json.dumps(data(judged)))["agrees_with_doctor"] is agrees


def product(folder: Path, sign: str) -> None:
    """Make a folder that is taken for a product."""
    (folder / sign).parent.mkdir(parents=True)
    (folder / sign).touch()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--rehearse", "--line", "dev", *LAUNCH), "needs a checkout"),
        (("--rehearse", "--upstream", ".", "--fix", *LAUNCH), "does not go with --fix"),
        (
            ("--rehearse", "--upstream", "megatron", "model.context_parallel_size=2"),
            "only a launch can be rehearsed",
        ),
        (("--rehearse", "--upstream", "engine", *LAUNCH), "needs a checkout of Megatron-LM"),
    ],
)
def test_what_cannot_be_rehearsed_is_one_line(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    product(tmp_path / "megatron", "megatron/core/parallel_state.py")
    product(tmp_path / "engine", "transformer_engine/pytorch/__init__.py")
    result = run(*words)
    assert isinstance(result.exception, InputError), result.output
    assert said in str(result.exception)


def test_a_rehearsal_needs_torch(tmp_path, monkeypatch):
    product(tmp_path, "megatron/core/parallel_state.py")
    monkeypatch.setattr(rehearse.importlib.util, "find_spec", lambda name: None)
    result = run("--rehearse", "--upstream", str(tmp_path), *LAUNCH)
    assert isinstance(result.exception, InputError), result.output
    assert "cannot be imported; without a GPU run first: pip install torch" in str(result.exception)


SCRIPT = """#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc-per-node 8 pretrain_gpt.py --yaml-cfg cfg.yaml --context-parallel-size 2
"""
YAML = """model_parallel:
  context_parallel_size: 4
  tensor_model_parallel_size: 1
language_model:
  num_layers: 4
  num_attention_heads: 8
  hierarchical_context_parallel_sizes: [2, 4]
"""


def test_a_yaml_file_beside_the_script_is_read(tmp_path):
    """The options of the command line are ignored by upstream, and so by doctor."""
    script = tmp_path / "train.sh"
    script.write_text(SCRIPT, encoding="utf-8")
    missing = run(str(script), "--line", "dev")
    assert isinstance(missing.exception, InputError), missing.output
    assert "no setting was read" in str(missing.exception)
    (tmp_path / "cfg.yaml").write_text(YAML, encoding="utf-8")
    result = run(str(script), "--line", "dev")
    assert "the sizes [2, 4] have the product 8, and CP is 4" in result.output, result.output
    assert "ranks: 8" in result.output
    assert "upstream ignores its other options" in result.output
    assert "validate_yaml" in result.output
