"""A configuration as settings by Megatron's own names, wherever they were written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ringproof.errors import InputError, shown

NOTHING = ("", "none", "null", "None", "~")
"""Texts that stand for a value that is not given."""
FALSE = ("false", "0", "no", "off", "False")
PREFIXES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "bridge": ("model.",),
        "verl": ("actor_rollout_ref.actor.megatron.", "engine."),
        "nemo-rl": ("policy.megatron_cfg.",),
    }
)
"""By program, what stands before the settings of the model that trains.

There are further models, for example the reference model of verl.
"""


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
            ``bridge``, ``verl`` or ``nemo-rl``, which use the library.
        source: File, for messages.
        notes: What was not read, and why.
        blackwell: Whether the GPUs are Blackwell or newer, from which some of upstream's checks
            hold no longer.
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
    script: str = ""

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
        if re.fullmatch(r"[+-]?\d{1,18}", text) is None:
            raise InputError(self.written(name), f"{shown(text)} is not a whole number; give one")
        return int(text)

    def numbers(self, name: str) -> tuple[int, ...] | None:
        """Return a list of whole numbers, however it is written; ``None`` if it is not given."""
        if not self.given(name):
            return None
        words = re.split(r"[\s,\[\]()]+", self.text(name).strip("[]() "))
        if any(re.fullmatch(r"\d{1,18}", word) is None for word in words):
            problem = "is not a list of whole numbers"
            raise InputError(
                self.written(name), f"{shown(self.text(name))} {problem}; write it like 2 4"
            )
        return tuple(map(int, words))
