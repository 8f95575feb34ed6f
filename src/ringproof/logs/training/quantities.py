"""The quantities that are looked for in a training log, the names they go by, and their numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ringproof.errors import InputError, shown

STEP, LOSS, GRAD_NORM, EVALUATION = "step", "loss", "grad_norm", "evaluation"
JUDGED = (LOSS, GRAD_NORM)
MAX_STEP = 1 << 60

USUAL_NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        STEP: (
            "step",
            "iteration",
            "global_step",
            "_step",
            "trainer/global_step",
            "iter",
            "global_step/max_steps",
            "current_steps",
        ),
        LOSS: ("loss", "lm loss", "train_loss", "train/loss", "training_loss"),
        GRAD_NORM: ("grad_norm", "train/grad_norm", "gradient_norm", "global_grad_norm", "gnorm"),
        EVALUATION: ("validation loss", "val_loss", "eval_loss", "eval/loss"),
    }
)
"""Names in the order in which they are tried. Their spelling is compared as `plain` writes it."""

_ENDINGS = MappingProxyType({LOSS: ("loss",), GRAD_NORM: ("grad_norm", "gradnorm")})
# Losses on held-out data, and parts of a loss that are no loss of the model itself.
_NOT_TRAINING = re.compile(r"(?:^|[^a-z])(?:val|valid|validation|eval|test)(?:[^a-z]|$)")
_AUXILIARY = re.compile(r"balanc|aux|z_loss|mtp|indexer|entropy|(?:^|[^a-z])kl_|vf_|value_|critic")


_OF_ALL = re.compile(r"^(\d{1,15})/\d{1,15}$")


def plain(name: str) -> str:
    """Return a name without the differences between loggers: ``LM-Loss`` becomes ``lm_loss``."""
    return name.strip().lower().replace(" ", "_").replace("-", "_")


@dataclass(frozen=True)
class Columns:
    """The series wanted and the names they go by.

    Args:
        chosen: Names in the file that the user gave for ``step`` or a series: the first that a
            file holds counts, so that two files may differ.
    """

    series: tuple[str, ...] = JUDGED
    chosen: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))

    def find(self, wanted: str, present: Iterable[str]) -> str | None:
        """Return the name that holds ``wanted`` among those of a file, whatever its spelling."""
        spelled: dict[str, str] = {}
        for name in present:
            spelled.setdefault(plain(name), name)
        names = self.chosen.get(wanted) or USUAL_NAMES.get(wanted, (wanted,))
        return next((spelled[plain(name)] for name in names if plain(name) in spelled), None)

    def similar(self, wanted: str, present: Iterable[str]) -> list[str]:
        """Return the names that end like ``wanted`` and may hold it, unless the user chose one."""
        endings = () if wanted in self.chosen else _ENDINGS.get(wanted, ())
        return [
            name
            for name in present
            if plain(name).endswith(endings)
            and not (_NOT_TRAINING.search(plain(name)) or _AUXILIARY.search(plain(name)))
        ]


def parse_columns(series: str | None, columns: str | None) -> Columns:
    """Parse ``--series loss,grad_norm`` and ``--columns 'step=iter,loss=lm loss|loss'``.

    Raises:
        InputError: An empty name, a name twice, or a column for something not asked for.
    """
    wanted = JUDGED if series is None else tuple(part.strip() for part in series.split(","))
    if not all(wanted) or len(set(wanted)) < len(wanted) or STEP in wanted:
        sentence = f"{shown(series)} is not a list of different names; write it as loss,grad_norm"
        raise InputError("--series", sentence)
    chosen: dict[str, tuple[str, ...]] = {}
    for part in columns.split(",") if columns is not None else ():
        name, equals, found = part.partition("=")
        name, names = name.strip(), tuple(item.strip() for item in found.split("|"))
        if not equals or not all(names) or name in chosen:
            example = "step=iteration,loss=train/loss,grad_norm=gn"
            sentence = f"{shown(part)} is not NAME=COLUMN; write it as {example}"
            raise InputError("--columns", sentence)
        if name != STEP and name not in wanted:
            known = f"use one of step, {', '.join(wanted)}, or add it to --series"
            raise InputError("--columns", f"{shown(name)} is not compared; {known}")
        chosen[name] = names
    return Columns(wanted, MappingProxyType(chosen))


def step_number(value: object) -> int | None:
    """Return a step: a whole number from 0, also written as ``10.0``, as text or as ``10/100``."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        value = number(_OF_ALL.sub(r"\1", value))
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and 0 <= value < MAX_STEP else None


def number(value: object) -> float | None:
    """Return a float from what JSON or text may hold, ``None`` if it is not a number.

    JSON's ``null`` is read as NaN, because writers that obey the standard write it for NaN.
    """
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None
