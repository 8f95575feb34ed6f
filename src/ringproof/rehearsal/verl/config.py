"""The configuration of a launch of verl, composed by hydra from verl's own files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ringproof.errors import InputError, shown
from ringproof.launch.overrides import SFT

REFUSED = "hydra refuses it"  # how the message for an override that does not exist begins
SFT_NAME, PPO_NAME = "sft_trainer_engine", "ppo_trainer"


def split_words(words: Sequence[str], module: str) -> tuple[str, tuple[str, ...]]:
    """Return the name of the configuration and the overrides of a command line.

    Raises:
        InputError: An option is not one of hydra's that is understood here.
    """
    name, overrides = SFT_NAME if module == SFT else PPO_NAME, []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        option, equals, value = word.partition("=")
        if not word.startswith("-"):
            overrides.append(word)
            continue
        if option not in ("--config-name", "-cn", "--config-path", "-cp"):
            sentence = f"{shown(option)} is not an override; write KEY=VALUE, or --config-name NAME"
            raise InputError("the launch", sentence)
        value = value if equals else (rest.pop(0) if rest else "")
        if option in ("--config-name", "-cn"):
            name = value.removesuffix(".yaml")
        elif value.strip("./") != "config":
            sentence = f"{shown(value)} is not verl's own folder of configurations; leave it out"
            raise InputError(option, sentence)
    return name, tuple(overrides)


def composed(folder: Path, name: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Let hydra compose a configuration; values that refer to others are resolved.

    Args:
        folder: verl's configurations.

    Raises:
        InputError: The name or an override does not exist, with hydra's own message.
    """
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        with initialize_config_dir(config_dir=str(folder.resolve()), version_base=None):
            config = compose(config_name=name, overrides=list(overrides))
        plain = OmegaConf.to_container(config, resolve=True, throw_on_missing=False)
    except (HydraException, OmegaConfBaseException) as error:
        said = " ".join(_messages(error))
        raise InputError("the launch", f"{REFUSED}: {said}; correct the override") from None
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def _messages(error: BaseException) -> list[str]:
    """Return the first lines of an error and of its cause, which says what is wrong."""
    lines = [str(error).strip().split("\n")[0]]
    if error.__cause__ is not None:
        lines.append(str(error.__cause__).strip().split("\n")[0])
    return [line.rstrip(".") for line in dict.fromkeys(lines)]
