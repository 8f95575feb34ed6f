"""A configuration as settings by Megatron's own names, wherever they were written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ringproof.errors import InputError, shown

NOTHING = ("", "none", "null", "None", "~")
"""Texts that stand for a value that is not given."""
FALSE = ("false", "0", "no", "off", "False", "FALSE", "No", "Off")
PREFIXES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "bridge": ("model.",),
        "verl": ("actor_rollout_ref.actor.megatron.", "engine."),
        "nemo-rl": ("policy.megatron_cfg.",),
        "skyrl": ("trainer.policy.megatron_config.", "megatron_config."),
        "roll": ("actor_train.strategy_args.strategy_config.",),
        "nemo": ("trainer.strategy.", "model."),
        "llama-factory": ("",),
        "ms-swift": ("--", ""),
        "automodel": ("distributed.",),
        "torchtitan": ("parallelism.",),
    }
)
"""By program, what stands before the settings of the model that trains.

There are further models, for example the reference model of verl.
"""
TITLES: Mapping[str, str] = MappingProxyType(
    {
        "megatron": "Megatron-LM's own training script",
        "bridge": "Megatron-Bridge",
        "verl": "verl",
        "nemo-rl": "NeMo-RL",
        "skyrl": "SkyRL",
        "roll": "ROLL",
        "nemo": "NeMo",
        "llama-factory": "LLaMA-Factory",
        "ms-swift": "ms-swift",
        "automodel": "NeMo Automodel",
        "torchtitan": "torchtitan",
    }
)
"""Names of the programs for people."""
WITHOUT_MEGATRON = ("automodel", "torchtitan")
"""Programs that train without Megatron-LM, to which none of its rules applies."""


class Noting(Mapping[str, Any]):
    """A mapping that notes in ``read`` which of its names are looked at."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = given
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        value = self._given[name]
        self.read.add(name)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)


@dataclass(frozen=True)
class Settings:
    """What a configuration says.

    Attributes:
        values: Words of each setting by the name that Megatron's parser gives it, for example
            ``context_parallel_size``. A switch that is on has no words.
        names: How the configuration writes a setting, for messages: ``--context-parallel-size`` or
            ``model.context_parallel_size``.
        ranks: World size; ``None`` if the configuration does not say.
        environment: Variables of the launch; ``None`` if it is not known.
        program: What reads it: ``megatron`` (its training scripts with their argument checks), or
            another program of `TITLES`.
        fields: All fields of the configuration of another program, by their full names.
        source: File, for messages.
        notes: What was not read, and why.
        blackwell: Whether the GPUs are Blackwell or newer, from which some of upstream's checks
            hold no longer.
        ampere: Whether the GPUs are older than Hopper, for which cuDNN takes no packed input.
        script: Path of the program, as written; empty if the configuration names none.
    """

    values: Mapping[str, tuple[str, ...]]
    names: Mapping[str, str]
    program: str
    source: str
    ranks: int | None = None
    environment: Mapping[str, str] | None = None
    ranks_per_node: int | None = None
    notes: tuple[str, ...] = ()
    arguments: tuple[str, ...] = field(default=(), repr=False)
    blackwell: bool = False
    ampere: bool = False
    script: str = ""
    fields: Mapping[str, str] = field(default_factory=dict, repr=False)

    def entry(self, *names: str) -> str:
        """Return the value of the first of these fields that is given; empty without one.

        A name matches a field that it equals or that ends in it after a dot.
        """
        for name in names:
            for full in self.fields:
                named = full == name or full.endswith(f".{name}")
                if named and self.fields[full] not in NOTHING:
                    return self.fields[full]
        return ""

    def exact(self, *names: str) -> str:
        """Return the value of the first of these fields that is given, by its whole name."""
        values = (self.fields[name] for name in names if name in self.fields)
        return next((value for value in values if value not in NOTHING), "")

    def switch(self, *names: str) -> bool:
        """Whether one of these fields is given and on."""
        return self.entry(*names) not in ("", *FALSE)

    def whole(self, *names: str, default: int = 0) -> int:
        """Return a field as a whole number; ``default`` where it is not one."""
        text = self.entry(*names)
        return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else default

    def written(self, name: str) -> str:
        """How this configuration writes a setting, or would."""
        if name in self.names:
            return self.names[name]
        dashed = "--" + name.replace("_", "-")
        return dashed if self.program == "megatron" else f"{PREFIXES[self.program][0]}{name}"

    def given(self, name: str) -> bool:
        """Whether a setting has a value."""
        words = self.values.get(name)
        return words is not None and (not words or words[0] not in NOTHING)

    def on(self, name: str) -> bool:
        """Whether a switch is on."""
        words = self.values.get(name)
        return words is not None and (not words or words[0] not in (*NOTHING, *FALSE))

    def text(self, name: str, default: str = "") -> str:
        """Return the value of a setting as it is written."""
        return " ".join(self.values[name]) if self.given(name) else default

    def number(self, name: str, default: int) -> int:
        """Return the value of a setting.

        Raises:
            InputError: It is no whole number.
        """
        if not self.given(name):
            return default
        text = self.text(name)
        if re.fullmatch(r"[+-]?[0-9]{1,18}", text) is None:
            raise InputError(self.written(name), f"{shown(text)} is not a whole number; give one")
        return int(text)

    def numbers(self, name: str) -> tuple[int, ...] | None:
        """Return a list of whole numbers, however it is written; ``None`` if it is not given."""
        if not self.given(name):
            return None
        words = re.split(r"[\s,\[\]()]+", self.text(name).strip("[]() "))
        if any(re.fullmatch(r"[0-9]{1,18}", word) is None for word in words):
            problem = "is not a list of whole numbers"
            raise InputError(
                self.written(name), f"{shown(self.text(name))} {problem}; write it like 2 4"
            )
        return tuple(map(int, words))
