"""What is looked for in a log, under which names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ringproof.errors import InputError

STEP, LOSS, GRAD_NORM, EVALUATION = "step", "loss", "grad_norm", "evaluation"
JUDGED = (LOSS, GRAD_NORM)

# In the order in which they are tried. Spelling is compared as :func:`plain` has it.
USUAL_NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        STEP: ("step", "iteration", "global_step", "_step", "trainer/global_step", "iter"),
        LOSS: ("loss", "lm loss", "train_loss", "train/loss", "training_loss"),
        GRAD_NORM: ("grad_norm", "train/grad_norm", "gradient_norm", "global_grad_norm"),
        EVALUATION: ("validation loss", "val_loss", "eval_loss", "eval/loss"),
    }
)


@dataclass(frozen=True)
class Columns:
    """The series wanted and the names they go by.

    Args:
        series: Names of the series, in order.
        chosen: Names in the file that the user gave for ``step`` or a series: the first that a
            file holds counts, so that two files may differ.
    """

    series: tuple[str, ...] = JUDGED
    chosen: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))

    def names(self, wanted: str) -> tuple[str, ...]:
        """The names in the file that may hold ``wanted``, best first."""
        return self.chosen.get(wanted) or USUAL_NAMES.get(wanted, (wanted,))


def plain(name: str) -> str:
    """A name without the differences between loggers: ``lm loss``, ``LM-Loss`` -> ``lm_loss``."""
    return name.strip().lower().replace(" ", "_").replace("-", "_")


def parse_columns(series: str | None, columns: str | None) -> Columns:
    """Columns from ``--series loss,grad_norm`` and ``--columns 'step=iter,loss=lm loss|loss'``.

    Raises:
        InputError: an empty name, a name twice, or a column for something not asked for.
    """
    wanted = JUDGED if series is None else tuple(part.strip() for part in series.split(","))
    if not all(wanted) or len(set(wanted)) < len(wanted) or STEP in wanted:
        raise InputError("--series", series, "not a list of names", "such as loss,grad_norm")
    chosen: dict[str, tuple[str, ...]] = {}
    for part in columns.split(",") if columns is not None else ():
        name, equals, found = part.partition("=")
        name, names = name.strip(), tuple(item.strip() for item in found.split("|"))
        if not equals or not all(names) or name in chosen:
            remedy = "such as step=iteration,loss=train/loss,grad_norm=gn"
            raise InputError("--columns", part, "not NAME=COLUMN", remedy)
        if name != STEP and name not in wanted:
            remedy = f"the names are step, {', '.join(wanted)}; add others with --series"
            raise InputError("--columns", part, "names no series that is compared", remedy)
        chosen[name] = names
    return Columns(wanted, MappingProxyType(chosen))
