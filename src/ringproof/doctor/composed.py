"""What verl itself says about a configuration: hydra composes it, and verl's checks judge it.

They are run by one rank of as many as the launch has, see `ringproof.rehearsal.verl.ranks.checks`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ringproof.doctor.checked import Checked
from ringproof.doctor.facts import facts_of
from ringproof.doctor.reading import OVERRIDE
from ringproof.doctor.settings import PREFIXES, Settings
from ringproof.doctor.validated import SECONDS, answer_of
from ringproof.errors import InputError
from ringproof.launch.overrides import PPO, SFT, VERL_MODULES
from ringproof.launch.shell.expand import marks, readable

FUNCTION = "ringproof.rehearsal.verl.ranks.checks:judged"
TITLE = "verl's own configuration and checks, up to its groups of ranks"
MEGATRON_NAME = "ppo_megatron_trainer"
ENGINES = ("engine", "optim", "model_engine")
"""Overrides that choose what trains: the first two together, or the last."""
LACKS = ("TypeError:", "AttributeError:", "KeyError:")
"""How the message begins where verl computes with a value that nobody gave."""


def request_of(settings: Settings) -> dict[str, Any]:
    """Return what is asked of verl, see `ringproof.rehearsal.verl.ranks.checks`.

    ``ranks`` is the world size where it is no setting of verl itself, ``dropped`` are the words
    whose value is not known, which are left out, and ``bare`` says that they are overrides alone.

    Raises:
        InputError: It is no launch of a program of verl that is known, and no overrides of one.
    """
    from ringproof.rehearsal.verl.config import split_words

    unknown = [word for word in settings.arguments if marks(word)]
    words = [word for word in settings.arguments if not marks(word)]
    at = next((i for i, word in enumerate(words) if word in VERL_MODULES), None)
    if at is None and not (words and all(map(OVERRIDE.fullmatch, words))):
        sentence = f"only {' and '.join(VERL_MODULES)} and their overrides can be asked"
        raise InputError("the configuration", f"{sentence}; leave --checks out")
    sft = any(name.partition(".")[0] == "engine" for name in settings.fields)
    module = words[at] if at is not None else SFT if sft else PPO
    name, overrides = split_words(words[(-1 if at is None else at) + 1 :], module)
    megatron = any(field.startswith(PREFIXES["verl"]) for field in settings.fields)
    if at is None and megatron and settings.fields.keys().isdisjoint(ENGINES):
        name = MEGATRON_NAME if module == PPO else name
        overrides = (*(f"{part}=megatron" for part in ENGINES[:2] if sft), *overrides)
    ranks = settings.ranks or facts_of(settings).model_size
    return {"module": module, "name": name, "overrides": list(overrides), "ranks": ranks,
            "dropped": unknown, "bare": at is None}  # fmt: skip


def ask(
    asked: Mapping[str, Any], verl: str, megatron: str, engine: str | None, *, cache: Path,
    folder: Path, offline: bool, progress: Callable[[str, str], None], limit: float | None = None,
    named: bool = True,
) -> Checked:  # fmt: skip
    """Let verl check a configuration.

    Args:
        named: Whether this version was asked for; another one may have the settings that hydra
            does not find here.
        verl: As `open_verl` takes it; ``megatron`` and ``engine`` likewise.
        folder: Where logs are written.
        limit: Longest time of everything, in seconds.

    Raises:
        InputError: An upstream cannot be opened.
    """
    from ringproof.rehearsal.runs.validating import validate
    from ringproof.rehearsal.verl.config import REFUSED, composed
    from ringproof.rehearsal.verl.running import CONFIGURATIONS
    from ringproof.rehearsal.verl.upstreams import open_verl

    root, name = open_verl(verl, cache=cache, offline=offline)
    configurations = root / CONFIGURATIONS
    try:
        config = composed(configurations, asked["name"], asked["overrides"])
    except InputError as error:
        if not error.sentence.startswith(REFUSED):
            raise
        answer = Checked(name, False if named else None, error.sentence, title=TITLE)
        return _without(asked["dropped"], answer)
    size = _ranks_of_ppo(config) if asked["module"] == PPO else asked["ranks"]
    outcome = validate(
        FUNCTION, {**asked, "folder": str(configurations)}, lambda **_: (root, name), megatron,
        engine, cache=cache, folder=folder, offline=offline, progress=progress,
        seconds=limit or SECONDS, ranks=size,
    )  # fmt: skip
    answer = answer_of(outcome, limit, ("verl/", "megatron/"), TITLE)
    if asked["bare"] and answer.accepted is False and answer.message.startswith(LACKS):
        # Overrides alone are an excerpt: what verl misses may stand in the rest of the launch.
        message = f"{answer.message}; give the whole launch"
        answer = replace(answer, accepted=None, message=message)
    return _without(asked["dropped"], answer)


def _ranks_of_ppo(config: Mapping[str, Any]) -> int:
    trainer, size = config.get("trainer"), 1
    for name in ("nnodes", "n_gpus_per_node"):
        value = trainer.get(name) if isinstance(trainer, dict) else None
        if type(value) is not int or value < 1:
            sentence = f"{value!r:.40} is no whole number of at least 1; give trainer.{name}=NUMBER"
            raise InputError(f"trainer.{name}", sentence)
        size *= value
    return size


def _without(dropped: list[str], answer: Checked) -> Checked:
    """Name the words that were left out, without which a refusal says nothing of the launch."""
    if not dropped:
        return answer
    name = f"{answer.upstream}, without {', '.join(readable(word) for word in dropped)}"
    if answer.accepted is not False:
        return replace(answer, upstream=name)
    found = (mark for word in dropped for mark in marks(word))
    needed = (f"--set {one.name}=VALUE" if one.name else one.text for one in found)
    message = f"{answer.message}; give {' '.join(dict.fromkeys(needed))}"
    return replace(answer, upstream=name, accepted=None, message=message)
