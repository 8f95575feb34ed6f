"""``ringproof doctor`` lets Megatron-Bridge build a recipe and validate it."""

from __future__ import annotations

import importlib.util
import shlex
from pathlib import Path

import pytest

from checks.doctor.test_corpus import CORPUS, beyond
from checks.doctor.upstream_lines import stack_at
from checks.documented import documented
from ringproof.doctor import checked, validated
from ringproof.doctor.examine import examine
from ringproof.doctor.reading import read_settings
from ringproof.errors import InputError
from ringproof.rehearsal.fixtures import SessionServers
from ringproof.rehearsal.protocol.reports import Failure
from ringproof.stack.pairs import core_of
from ringproof.upstream.sources import open_tree

RECIPE = "torchrun --nproc-per-node 8 run_recipe.py --recipe qwen3_8b_sft_config"
TWO = "model.context_parallel_size=2 train.train_iters=10"
ASKED = {"recipe": "x", "overrides": [], "model": {}, "world": 0, "tunes": False}


def test_what_is_asked_of_bridge():
    settings = read_settings(f"{RECIPE} {TWO} model.cp_comm_type=None".split(), {})
    assert validated.request_of(settings) == {
        "recipe": "qwen3_8b_sft_config",
        "overrides": [*TWO.split(), "model.cp_comm_type=null"],
        "model": {"num_attention_heads": 32, "num_query_groups": 8},
        "world": 8,
        "tunes": False,
    }


def test_the_command_of_the_page_names_a_recipe_of_bridge():
    (line,) = (one for one in documented("docs/doctor.md") if "--recipe" in one)
    words = shlex.split(line)
    settings = read_settings(words[words.index("--") + 1 :], {})
    assert (settings.program, settings.ranks) == ("bridge", 8)
    asked = validated.request_of(settings)
    assert asked["recipe"] == "qwen3_8b_sft_config"
    assert asked["overrides"] == ["model.context_parallel_size=2"]


@pytest.mark.parametrize(
    ("words", "program"),
    [
        (RECIPE, "bridge"),
        (f"{RECIPE} optimizer.lr=1", "bridge"),
        ("torchrun train.py --recipe x", "megatron"),
        ("torchrun train.py --recipe x a.b=1 c.d=2", "megatron"),
        ("torchrun train.py model.context_parallel_size=2", "megatron"),
    ],
)
def test_a_recipe_is_a_sign_of_bridge(words, program):
    assert read_settings(words.split(), {}).program == program


def test_a_recipe_and_a_known_release_are_needed():
    with pytest.raises(InputError, match="names no recipe"):
        validated.request_of(
            read_settings(f"torchrun run_recipe.py --recipe a-b {TWO}".split(), {})
        )
    asked = validated.request_of(read_settings([*TWO.split(), "dataset.dataset_root=x"], {}))
    assert (asked["recipe"], asked["tunes"]) == ("", True)
    assert core_of("0.6.2") == "pip:megatron-core==0.19.2"
    with pytest.raises(InputError, match="'9\\.0\\.1' is not known"):
        core_of("9.0.1")


@pytest.mark.parametrize(
    ("failure", "accepted"),
    [
        (None, True),
        (Failure("raised", 0, "AssertionError: no", "megatron/bridge/training/config.py:3"), False),
        (Failure("raised", 0, "LookupError: no recipe", "ringproof/x.py:3"), None),
        (Failure("raised", 0, "ValueError: 5040 layers", "megatron/core/a.py:3"), None),
        (Failure("raised", 0, "ImportError: x", "megatron/core/a.py:3"), None),
        (Failure("timeout", -1, "ended"), None),
    ],
)
def test_a_refusal_is_what_bridge_raises_about_what_it_was_given(monkeypatch, failure, accepted):
    validating = importlib.import_module("ringproof.rehearsal.runs.validating")
    monkeypatch.setattr(
        validating, "validate", lambda *_, **__: validating.BesideMegatron("bridge", failure)
    )
    given = {"cache": Path(), "folder": Path(), "offline": True, "progress": print}
    answer = validated.ask(ASKED, "bridge", "core", None, **given, limit=10.0)
    assert answer.accepted is accepted
    assert bool(answer.why_not) is (failure is not None and failure.kind == "timeout")


def asked(stage: SessionServers, release: str, words: str, folder: Path):
    missing = [name for name in validated.PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"Megatron-Bridge needs {', '.join(missing)}")
    bridge, megatron = f"pip:megatron-bridge=={release}", core_of(release)
    for spec in (bridge, megatron):
        try:
            open_tree(spec, cache=stage.cache, offline=True)
        except InputError as error:
            pytest.skip(str(error))
    return validated.ask(
        validated.request_of(read_settings(words.split(), {}, ranks=8)), bridge, megatron, None,
        folder=folder, cache=stage.cache, offline=True, progress=lambda *_: None,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("release", ["0.3.1", "0.5.1"])
def test_bridge_refuses_a_mean_loss_under_cp(stage: SessionServers, tmp_path, release):
    loss = "model.calculate_per_token_loss=true ddp.average_in_collective=false"
    refused = asked(stage, release, f"{RECIPE} {TWO}", tmp_path / "mean")
    accepted = asked(stage, release, f"{RECIPE} {TWO} {loss}", tmp_path / "per-token")
    assert refused.accepted is False, refused
    assert "calculate_per_token_loss must be True" in refused.message
    assert refused.place.startswith("megatron/bridge/training/config.py")
    assert accepted.accepted, accepted
    said = list(checked.lines(accepted, examine(read_settings(TWO.split(), {}), stack_at("main"))))
    assert "no step was run" in said[-1] and "two steps" not in said[-1]


@pytest.mark.slow
def test_settings_without_a_recipe_are_put_on_the_base_of_all(stage: SessionServers, tmp_path):
    (one,) = (entry for entry in CORPUS if entry.id == "reported-bridge-evaluation")
    answer = asked(stage, "0.6.2", " ".join((*one.words, "dataset.unknown=1")), tmp_path)
    assert answer.accepted is False and beyond(one.verdict["main"]) in answer.message, answer
