"""``ringproof doctor`` lets verl compose a configuration and check it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from checks.doctor.test_corpus import CORPUS, beyond
from checks.doctor.upstream_lines import stack_at
from ringproof.cli.doctor import NEWEST_VERL
from ringproof.cli.rehearse import VERL_PACKAGES
from ringproof.doctor import composed
from ringproof.doctor.checked import Checked, settled
from ringproof.doctor.examine import examine
from ringproof.doctor.reading import read_settings
from ringproof.doctor.rule import Effect
from ringproof.errors import InputError
from ringproof.launch.overrides import PPO, SFT
from ringproof.rehearsal.protocol.reports import Failure
from ringproof.rehearsal.runs import validating
from ringproof.upstream.sources import open_tree

RELEASE = "pip:megatron-core==0.16.1"
ACTOR = "actor_rollout_ref.actor.megatron."
CP = f"{ACTOR}context_parallel_size=4"
SIZE, CHOSEN = "engine.context_parallel_size=2", ["engine=megatron", "optim=megatron"]
LAUNCH = f"python3 -m {PPO} --config-name=ppo_megatron_trainer trainer.nnodes=2 {CP}"
BY_TOKENS = f"{LAUNCH} actor_rollout_ref.actor.use_dynamic_bsz=True"


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (LAUNCH, (PPO, "ppo_megatron_trainer", ["trainer.nnodes=2", CP], 4)),
        (f"{CP} trainer.nnodes=2 trainer.n_gpus_per_node=8", (PPO, "ppo_megatron_trainer")),
        (f"model_engine=megatron {CP}", (PPO, "ppo_trainer")),
        (f"engine=megatron {SIZE}", (SFT, "sft_trainer_engine")),
        (f"engine.seed=1 {SIZE}",
         (SFT, "sft_trainer_engine", [*CHOSEN, "engine.seed=1", SIZE], 2)),
    ],
)  # fmt: skip
def test_what_is_asked_of_verl(words: str, asked: tuple[object, ...]) -> None:
    found = composed.request_of(read_settings(words.split(), {}))
    values = [found[name] for name in ("module", "name", "overrides", "ranks")]
    assert tuple(values[: len(asked)]) == asked


@pytest.fixture
def verl(monkeypatch: pytest.MonkeyPatch):
    """Let verl refuse everything, with the configuration that the returned dict holds."""
    config: dict[str, object] = {"trainer": {"nnodes": 1, "n_gpus_per_node": 8}}
    refusal = Failure("raised", 0, "AssertionError: n_gpus (8)", place="verl/utils/config.py:1")
    here = "ringproof.rehearsal"
    monkeypatch.setattr(f"{here}.verl.upstreams.open_verl", lambda *_, **__: (Path(), "verl"))
    monkeypatch.setattr(f"{here}.verl.config.composed", lambda *_: config)
    monkeypatch.setattr(f"{here}.runs.validating.validate",
                        lambda *_, **__: validating.BesideMegatron("verl", refusal))  # fmt: skip
    return config


def answered(asked):
    given = {"cache": Path(), "folder": Path(), "offline": True, "progress": print}
    return composed.ask(asked, "verl", "core", None, **given)


@pytest.mark.parametrize("word", ["trainer.nnodes=$NNODES", "data.train_files=$NNODES/x"])
def test_a_word_that_is_not_known_leaves_a_refusal_open(tmp_path: Path, verl, word: str) -> None:
    script = tmp_path / "train.sh"
    script.write_text(f"{LAUNCH.replace('trainer.nnodes=2', word)} trainer.n_gpus_per_node=8\n")
    unknown = answered(composed.request_of(read_settings([str(script)], {})))
    assert unknown.accepted is None and unknown.upstream.endswith(f"without {word}")
    assert unknown.message.endswith("; give --set NNODES=VALUE")
    known = answered(composed.request_of(read_settings([str(script)], {"NNODES": "2"})))
    assert known.accepted is False and known.upstream == "verl"


@pytest.mark.parametrize("count", [None, "2", "", 0, True, 1.5])
def test_a_launch_without_a_size_is_bad_input(verl, count: object) -> None:
    asked = composed.request_of(read_settings(LAUNCH.split(), {}))
    verl["trainer"] = {"nnodes": 1, "n_gpus_per_node": count}
    with pytest.raises(InputError, match=r"^trainer\.n_gpus_per_node: .*; give trainer\.n_gpus"):
        answered(asked)
    for trainer in ({"n_gpus_per_node": 8}, None):
        verl["trainer"] = trainer
        with pytest.raises(InputError, match=r"^trainer\.nnodes: None is no whole number"):
            answered(asked)
        assert answered({**asked, "module": SFT}).accepted is False
    del verl["trainer"]
    with pytest.raises(InputError, match=r"^trainer\.nnodes: "):
        answered(asked)


@pytest.mark.parametrize("name", ["reported-verl-dynamic", "thread-ulysses-padding"])
def test_rules_speak_where_verl_did_not(tmp_path: Path, name: str) -> None:
    (one,) = (entry for entry in CORPUS if entry.id == name)
    ((line, _),) = one.verdict.items()
    examined = examine(one.settings(tmp_path), stack_at(line))
    assert [found.effect for found in examined.findings] == [Effect.REFUSED]
    assert settled(examined, Checked("verl", None, why_not="no tensordict")) == examined
    assert not settled(examined, Checked("verl", True)).findings


def test_other_programs_of_verl_are_not_asked() -> None:
    words = f"python3 -m recipe.dapo.main_dapo {CP} trainer.nnodes=2"
    with pytest.raises(InputError, match="can be asked"):
        composed.request_of(read_settings(words.split(), {}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message", "place"),
    [
        (f"{BY_TOKENS} {ACTOR}dynamic_context_parallel=True", "must be a positive integer",
         "verl/workers/config/engine.py"),
        (f"{BY_TOKENS} trainer.n_gpus_per_node=3", "is not divisible by",
         "megatron/core/parallel_state.py"),
        (f"{LAUNCH} {ACTOR}context_paralel_size=2", "'context_paralel_size' is not in struct", ""),
        (BY_TOKENS, "", ""),
    ],
    ids=["budget", "ranks", "misspelt", "right"],
)  # fmt: skip
def test_what_verl_refuses_is_reported_with_its_place(
    tmp_path: Path, stage, words: str, message: str, place: str
) -> None:
    answer = asked(tmp_path, stage.cache, words.split())
    assert answer.accepted is not bool(message), answer
    assert message in answer.message and answer.place.startswith(place)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["thread-ulysses-padding", "verl-qwen3-vl-30b"])
def test_a_configuration_of_the_corpus_is_judged_as_it_says(
    tmp_path: Path, stage, name: str
) -> None:
    (one,) = (entry for entry in CORPUS if entry.id == name)
    (message,) = {beyond(verdict) for verdict in one.verdict.values()}
    answer = asked(tmp_path, stage.cache, list(one.words))
    assert answer.accepted is not bool(message), answer
    assert message in answer.message


def asked(folder: Path, cache: Path, words: list[str]):
    missing = [name for name in VERL_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"verl needs {', '.join(missing)}: pip install '.[verl]'")
    for spec in (NEWEST_VERL, RELEASE):
        try:
            open_tree(spec, cache=cache, offline=True)
        except InputError as error:
            pytest.skip(str(error))
    return composed.ask(
        composed.request_of(read_settings(words, {})), NEWEST_VERL, RELEASE, None, cache=cache,
        folder=folder, offline=True, progress=lambda *_: None,
    )  # fmt: skip
