"""Which program a configuration is for, and when doctor says that it examined nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from checks.running import one_line
from ringproof.cli.main import app
from ringproof.doctor.forms import program_of
from ringproof.doctor.reading import read_settings
from ringproof.errors import InputError

FORMS = {
    "verl": "actor_rollout_ref.actor.megatron.context_parallel_size trainer.nnodes",
    "nemo-rl": "policy.megatron_cfg.context_parallel_size cluster.num_nodes",
    "skyrl": "trainer.policy.megatron_config.context_parallel_size trainer.strategy",
    "skyrl ": "megatron_config.context_parallel_size optimizer_config.scheduler model.path",
    "verl ": "model.partial_pretrain ulysses_sequence_parallel_size trainer.logger",
    "roll": "actor_train.strategy_args.strategy_name num_nodes",
    "automodel": "step_scheduler.max_steps distributed.cp_size model.a",
    "torchtitan": "parallelism.context_parallel_degree training.seq_len",
    "nemo": "trainer.devices model.context_parallel_size",
    "llama-factory": "finetuning_type stage context_parallel_size",
    "bridge": "model.context_parallel_size train.micro_batch_size",
    "": "trainer.max_steps model.a training.lr",
}


@pytest.mark.parametrize(("program", "names"), FORMS.items())
def test_a_program_is_known_by_what_only_it_has(program, names):
    assert program_of(names.split()) == program.strip()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "trainer:\n  max_steps: 10\ncontext_parallel_size: 4\n"),
        ("a.toml", "[optimizer]\nlr = 1.0\n"),
    ],
)
def test_what_no_program_claims_is_not_examined(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError, match="not examined"):
        read_settings([str(path)], {})


def test_nothing_found_needs_that_something_was_read(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text("[parallelism]\ncontext_parallel_degree = 4\n[training]\nseq_len = 4100\n")
    run = CliRunner().invoke
    result = run(app, ["doctor", "--quick", str(path), "--line", "main"])
    assert result.exit_code == 1
    assert "4100 is no multiple of TP x 2 CP = 8" in result.output
    assert "on main:" not in result.output, "torchtitan trains without it"
    path.write_text("[parallelism]\ncontext_parallel_degree = 4\n[training]\nseq_len = 4096\n")
    result = run(app, ["doctor", "--quick", str(path), "--line", "main"])
    assert result.exit_code == 2
    assert "verdict: not examined: torchtitan trains without Megatron-LM" in result.output
    words = ["actor_rollout_ref.actor.strategy=fsdp", "actor_rollout_ref.model.path=/m"]
    result = run(app, ["doctor", "--quick", *words, "--line", "main"])
    assert result.exit_code == 2
    assert "no parallel size of verl's Megatron was read" in result.output


def test_the_verdict_names_what_it_rests_on():
    words = ["model.context_parallel_size=4", "model.seq_length=8192", "model.init_method_std=0.01"]
    result = CliRunner().invoke(app, ["doctor", "--quick", *words, "--line", "main"])
    assert result.exit_code == 0, result.output
    assert "rests on 2 settings that rules looked at: model.context_parallel_size" in result.output
    assert "not examined: 1 other: model.init_method_std" in result.output


def test_a_model_brings_what_the_configuration_does_not_say(tmp_path):
    path = tmp_path / "recipe.py"
    path.write_text(
        "from megatron.bridge.recipes.gpt_oss import gpt_oss_20b_config\n"
        "def config():\n"
        "    cfg = gpt_oss_20b_config()\n"
        "    cfg.model.context_parallel_size = 8\n"
        "    cfg.model.tensor_model_parallel_size = 2\n"
        "    return cfg\n"
    )
    result = CliRunner().invoke(app, ["doctor", "--quick", str(path), "--line", "main"])
    assert "p2p with a sliding window and softmax learnable" in result.output
    assert "such as TP 1 or CP 4" in result.output, "4 KV heads on a TP rank"
    assert "to change" not in result.output, "no type has both"


def test_a_script_that_asks_for_arguments_gets_them(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(
        'if [ "$#" -lt 1 ]; then exit 1; fi\n'
        "torchrun --nproc-per-node $1 -m verl.trainer.fsdp_sft_trainer data.max_length=64 "
        "model.partial_pretrain=/m ulysses_sequence_parallel_size=2\n"
    )
    run = CliRunner().invoke
    result = run(app, ["doctor", "--quick", str(path), "--line", "main"])
    assert "exits in line 1; set what it asks for with --set" in str(result.exception)
    result = run(app, ["doctor", "--quick", str(path), "--line", "main", "--set", "1=8"])
    assert "verl" in result.output and "exits" not in result.output


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "torchrun --nproc-per-node 2 pretrain_gpt.py --context-parallel-size 2\n"),
        ("x.yaml", "MODEL_ARGS:\n  --context-parallel-size: 2\n"),
    ],
)
def test_what_comes_through_a_pipe_is_read_once(tmp_path, name, text):
    """``doctor <(COMMAND)``: a pipe that is read again is empty, and a named one waits for ever."""
    reader, writer = os.pipe()
    os.write(writer, text.encode())
    os.close(writer)
    path = Path(f"/dev/fd/{reader}")
    if name:
        path = tmp_path / name
        path.symlink_to(f"/dev/fd/{reader}")
    found = read_settings((str(path),), {})
    os.close(reader)
    assert found.number("context_parallel_size", 1) == 2
    assert (name or f"{path}:1") in found.source


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("x.yaml", "model: {context_parallel_size: !!bool abc}\n", r"is not YAML \('abc'\)"),
        ("x.yaml", "model: {context_parallel_size: !!timestamp abc}\n", "is not YAML"),
        ("x.yaml", "model: {context_parallel_size: !!int abc}\n", "is not YAML"),
        ("x.toml", f"a = {'[' * 50_000}\n", "it is nested too deeply"),
    ],
)
def test_odd_values_are_refused_in_one_line(tmp_path, name, text, said):
    path = tmp_path / name
    path.write_text(text)
    with one_line(said):
        read_settings((str(path),), {})
