"""Launches of verl and Megatron-Bridge, whose settings are overrides of hydra."""

from __future__ import annotations

import re

SFT, PPO = "verl.trainer.sft_trainer", "verl.trainer.main_ppo"
VERL_MODULES = (SFT, PPO)
CRITIC, REFERENCE = f"{PPO}:critic", f"{PPO}:reference"  # the other models of PPO
BRIDGE = "megatron.bridge"  # any script that trains with it

# Settings that a rehearsal replaces or does not use, whatever their values.
_UNUSED = re.compile(
    r"(data\.(train_files|val_files|.*_key|custom_cls\.\w+|cache_dir|path)"
    r"|trainer\.(project_name|experiment_name|default_\w+_dir|logger|resume_\w+|\w+_dir)"
    r"|(actor_rollout_ref\.)?model\.(tokenizer_path|custom_chat_template)"
    r"|.*\.dist_checkpointing_path"
    r"|critic\..*|reward\w*\..*|custom_reward_function\..*|ray_kwargs\..*"
    r"|actor_rollout_ref\.(rollout|ref)\..*)"
)

_HOME = re.compile(r"([^=]+)=(~[^'\"]*)")


def quoted(word: str) -> str:
    """Return an override whose value begins with ``~`` as hydra reads it: in quotes.

    A shell has put the home folder in its place where it expands that.
    """
    found = _HOME.fullmatch(word)
    return f"{found[1]}='{found[2]}'" if found else word


_PLAIN = re.compile(r"[A-Za-z/][\w./-]*(?<!/)", re.ASCII)
_WORDS = ("null", "true", "false", "nan", "inf")  # which hydra reads as something else than text


def as_value(value: object) -> str:
    """Return a value as hydra reads it in an override, texts in quotes where they need them.

    >>> as_value(["console", "a,b", None, True])
    "[console,'a,b',null,True]"
    """
    if value is None:
        return "null"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(as_value, value))}]"
    text = str(value)
    if not isinstance(value, str) or (_PLAIN.fullmatch(text) and text.lower() not in _WORDS):
        return text
    # In quotes a backslash is itself, except before a quote, at the end, and before ``${``.
    text = re.sub(r"(\\*)('|\$\{|\Z)", _escaped, text)
    return f"'{text}'"


def _escaped(found: re.Match[str]) -> str:
    return found[1] * 2 + ("\\" + found[2] if found[2] else "")


_MODEL = re.compile(r"(actor_rollout_ref\.)?model\.path")


def is_model(word: str) -> bool:
    """Return whether an override names the model, of which the last part of its path is used."""
    return _MODEL.fullmatch(word.lstrip("+~").partition("=")[0]) is not None


def is_unused(word: str) -> bool:
    """Return whether the value of an override has no effect on a rehearsal.

    >>> is_unused("data.train_files=$HOME/train.parquet"), is_unused("engine.seed=$SEED")
    (True, False)
    """
    name, equals, _ = word.lstrip("+~").partition("=")
    return bool(equals) and _UNUSED.fullmatch(name) is not None
