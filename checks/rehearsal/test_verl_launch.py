"""Launches of verl are read from scripts, and made small by overrides that are appended."""

from __future__ import annotations

import copy
import json
import shlex
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from checks.rehearsal.test_launch_shell import written
from ringproof.errors import InputError
from ringproof.launch.overrides import PPO, SFT, as_value
from ringproof.launch.reading import read_command, read_script
from ringproof.launch.small import verl as small_verl
from ringproof.launch.small.layout import Layout
from ringproof.launch.small.verl import LONGEST, OverrideDraft
from ringproof.rehearsal.verl.config import split_words
from ringproof.rehearsal.verl.model import Divisors, tiny_model
from ringproof.rehearsal.verl.running import SAMPLES, VerlRuns

SCRIPT = """
CP=${CP:-2}
DATA=(data.train_files=$HOME/train.parquet data.max_length=4096)
torchrun --nproc_per_node=8 -m verl.trainer.sft_trainer "${DATA[@]}" engine=megatron \\
    engine.context_parallel_size=$CP model.path=$MODELS/Qwen3-8B $@
"""
SETTINGS = MappingProxyType({
    "engine": {"context_parallel_size": 2, "tensor_model_parallel_size": 1,
               "override_transformer_config": {"attention_backend": "flash"}},
    "data": {"max_length": 4096, "max_token_len_per_gpu": 4096, "use_dynamic_bsz": True},
    "optim": {"lr": 1e-6, "override_optimizer_config": {"optimizer_cpu_offload": True}},
    "model": {"path": "Qwen/Qwen3-8B"},
    "trainer": {"nnodes": 1},
})  # fmt: skip


def draft(**engine: Any) -> OverrideDraft:
    config = copy.deepcopy(dict(SETTINGS))
    config["engine"] = {**config["engine"], **engine}
    return OverrideDraft(config)


def shrunk(one: OverrideDraft, world: int, max_ranks: int = 32) -> tuple[Layout, Layout]:
    before = small_verl.read_layout(one, SFT, world)
    after = small_verl.shrink_ranks(one, SFT, before, max_ranks)
    small_verl.shrink_settings(one, SFT, before, after, 3)
    return before, after


def test_a_script_of_sft(tmp_path: Path) -> None:
    launch = read_script(written(tmp_path, SCRIPT))
    assert (launch.script, launch.ranks) == (SFT, 8)
    assert launch.arguments == (
        "data.max_length=4096", "engine=megatron", "engine.context_parallel_size=2",
        "model.path=Qwen3-8B",
    )  # fmt: skip


@pytest.mark.parametrize(
    "command",
    [
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo",
        "ray job submit --working-dir . -- python3 -m verl.trainer.main_ppo "
        "algorithm.adv_estimator=grpo",
        "ray job submit --runtime-env-json x.json -- bash -c 'cd a.py; python3 -m "
        "verl.trainer.main_ppo algorithm.adv_estimator=grpo'",
    ],
)
def test_commands_of_ppo(command: str) -> None:
    launch = read_command(shlex.split(command))
    assert launch.script == PPO and launch.arguments == ("algorithm.adv_estimator=grpo",)


def test_an_unknown_value_that_matters_is_asked_for(tmp_path: Path) -> None:
    script = written(tmp_path, SCRIPT.replace("${CP:-2}", "$(nproc)"))
    with pytest.raises(InputError, match=r"engine\.context_parallel_size is not known"):
        read_script(script)


def test_a_home_folder_is_quoted_for_hydra() -> None:
    words = ["python3", "-m", "verl.trainer.main_ppo", "data.train_files=~/a.parquet", "x=a~b"]
    assert read_command(words).arguments == ("data.train_files='~/a.parquet'", "x=a~b")


def test_another_module_stays_refused() -> None:
    with pytest.raises(InputError, match="is a module, and not a script"):
        read_command(
            ["torchrun", "--nproc_per_node=8", "-m", "verl.trainer.other", "engine=megatron"]
        )


def test_options_of_hydra() -> None:
    words = ("--config-path=config", "--config-name=ppo_megatron_trainer.yaml", "a=1")
    assert split_words(words, PPO) == ("ppo_megatron_trainer", ("a=1",))
    for wrong in ("--multirun", "--config-path=/mine"):
        with pytest.raises(InputError):
            split_words((wrong,), PPO)


def test_limits_of_tokens_are_scaled_together() -> None:
    one = draft(dynamic_context_parallel=True, max_seqlen_per_dp_cp_rank=2048)
    before, after = shrunk(one, 16)
    assert (before.domain, after.domain, after.world) == (16, 4, 4)
    assert one.get("data.max_token_len_per_gpu") == LONGEST
    assert one.get("engine.max_seqlen_per_dp_cp_rank") == LONGEST // 2


def test_a_sequence_that_fits_nowhere_still_fits_nowhere() -> None:
    one = draft(dynamic_context_parallel=True, max_seqlen_per_dp_cp_rank=128)
    before, after = shrunk(one, 16)
    assert 128 * before.domain < 4096
    assert one.get("engine.max_seqlen_per_dp_cp_rank") * after.domain < LONGEST


def test_ranks_shrink_and_what_does_not_divide_stays_so() -> None:
    assert shrunk(draft(), 64)[1].world == 4
    large = draft(pipeline_model_parallel_size=8, tensor_model_parallel_size=4)
    after = shrunk(large, 64)[1]
    assert after.context == 2 and after.world <= 8
    assert f"++engine.pipeline_model_parallel_size={after.pipeline}" in large.words
    assert not shrunk(draft(), 3)[1].divides
    with pytest.raises(InputError, match="needs more than 1 ranks"):
        shrunk(draft(), 4, max_ranks=1)


def test_every_change_is_recorded_with_what_it_hides() -> None:
    one = draft()
    shrunk(one, 2)
    changed = {change.what: change for change in one.changes}
    rate = changed["optim.lr"]
    assert (rate.before, rate.after) == ("1e-06", "0.001") and rate.hides
    offload = "optim.override_optimizer_config.optimizer_cpu_offload"
    assert changed[offload].after == "False"
    assert "engine.param_offload" not in changed  # not asked for
    assert len(one.words) == len([word for word in changed if "parallel size" not in word])


def test_the_reference_has_no_context_parallelism() -> None:
    one = draft(dynamic_context_parallel=True, max_seqlen_per_dp_cp_rank=2048)
    _, after = shrunk(one, 4)
    reference = small_verl.put_reference(one, SFT, after)
    assert (reference.world, reference.context, reference.dynamic) == (1, 1, False)
    assert one.words[-2:] == [
        "++engine.context_parallel_size=1", "++engine.dynamic_context_parallel=False",
    ]  # fmt: skip


def test_a_launch_without_megatron_is_named() -> None:
    found = small_verl.unsupported({"engine": {"strategy": "fsdp"}}, SFT)
    assert "fsdp" in found and "engine=megatron" in found
    assert not small_verl.unsupported(dict(SETTINGS), SFT)


@pytest.mark.parametrize(
    ("path", "kind"),
    [("Qwen/Qwen3-8B", "qwen3"), ("models/Qwen3-30B-A3B-Instruct", "qwen3_moe"),
     ("Qwen/Qwen2.5-7B-Instruct", "qwen2"), ("meta-llama/Llama-3.1-8B", "llama")],
)  # fmt: skip
def test_the_family_follows_from_the_name(path: str, kind: str) -> None:
    config = tiny_model(path, Divisors(4, 4, 8)).config
    assert config["model_type"] == kind
    assert config["num_key_value_heads"] % 4 == 0 and config["num_hidden_layers"] == 4
    assert config.get("num_experts", 8) == 8


def test_a_model_at_hand_decides_by_its_own_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "llama", "tie_word_embeddings": true, "hidden_size": 4096}'
    )
    model = tiny_model(str(tmp_path), Divisors(1, 1, 1))
    assert model.config["model_type"] == "llama" and model.config["tie_word_embeddings"]
    assert model.config["hidden_size"] < 4096 and "config.json" in model.source


def test_fields_of_a_model_are_kept_or_named(tmp_path: Path) -> None:
    scaling = {"rope_type": "linear", "factor": 2.0}
    windows = {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 28}
    given = {"model_type": "qwen2", "rope_scaling": scaling, "layer_types": None, **windows}
    (tmp_path / "config.json").write_text(json.dumps(given))
    model = tiny_model(str(tmp_path), Divisors(1, 1, 1))
    assert model.config["rope_scaling"] == scaling and not windows.keys() & model.config.keys()
    one = draft()
    small_verl.put_model(one, SFT, "/tiny", model.left_out)
    (change,) = (change for change in one.changes if change.what == "model.path")
    assert "no use_sliding_window, sliding_window, max_window_layers." in change.hides


@pytest.mark.parametrize("path", ["Qwen/Qwen3-VL-8B", "mine/secret", ""])
def test_an_unknown_family_is_bad_input(path: str) -> None:
    with pytest.raises(InputError, match="is not known here"):
        tiny_model(path, Divisors(1, 1, 1))


FOLDERS = (
    "/a,b", "/a=b", "/My Project (v2)", "/it's", "/a~b", "/a#b", "/\u00fc", "/a${b}c", "/a\\",
    "/a\\'b", "/a b/[c]/{d:e}", "/plain-1.0/x_y",
)  # fmt: skip


def placed(folder: str) -> tuple[str, ...]:
    """Return every override with the name of a folder that a rehearsal appends."""
    one = draft()
    small_verl.put_model(one, SFT, folder)
    nothing: Any = None
    runs = VerlRuns(nothing, nothing, Path(folder), 2, "float32", 1.0, nothing)
    return (*one.words, *runs._placed(2))


def test_texts_are_quoted_where_hydra_reads_more_in_them() -> None:
    texts = {"plain": "plain", "/a/b-1.c": "/a/b-1.c", "a,b": "'a,b'", "it's": r"'it\'s'",
             "a\\": r"'a\\'", "a\\b": r"'a\b'", "${a}": r"'\${a}'", "Null": "'Null'", "": "''",
             "1": "'1'"}  # fmt: skip
    assert {text: as_value(text) for text in texts} == texts
    assert as_value(["a", "b c", -1, None, 0.5]) == "[a,'b c',-1,null,0.5]"
    assert "++model.path='/a,b'" in placed("/a,b")


@pytest.mark.parametrize("folder", FOLDERS)
def test_hydra_reads_every_folder_as_it_is(folder: str) -> None:
    parsing = pytest.importorskip("hydra.core.override_parser.overrides_parser")
    configuration = pytest.importorskip("omegaconf").OmegaConf
    found = {}
    for override in parsing.OverridesParser.create().parse_overrides(placed(folder)):
        assert not override.is_sweep_override()
        found[override.key_or_group] = override.value()
    plain = configuration.to_container(configuration.create(found), resolve=True)
    assert plain["model.path"] == folder
    assert plain["hydra.run.dir"] == plain["trainer.default_local_dir"] == f"{folder}/hydra"
    assert plain["data.custom_cls.path"] == SAMPLES


def test_devices_that_torch_parses_are_the_host() -> None:
    pytest.importorskip("torch")
    from ringproof.rehearsal.standins.cuda import _parsed_on_host

    parse = _parsed_on_host(lambda *given, **named: (given, named))
    assert parse(0, "x") == (("cpu", "x"), {})
    assert parse(device="cuda:1") == ((), {"device": "cpu"})
