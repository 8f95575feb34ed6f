"""The quantities that are looked for in a log, and their values by step."""

from __future__ import annotations

import itertools
import math
import operator
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ringproof.errors import InputError

STEP, LOSS, GRAD_NORM, EVALUATION = "step", "loss", "grad_norm", "evaluation"
JUDGED = (LOSS, GRAD_NORM)
EXACT_DIGITS = 15
"""A decimal number with this many significant digits names one float64, near enough."""
MAX_STEP = 1 << 60

# In the order in which they are tried. Spelling is compared as :func:`plain` has it.
USUAL_NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        STEP: ("step", "iteration", "global_step", "_step", "trainer/global_step", "iter"),
        LOSS: ("loss", "lm loss", "train_loss", "train/loss", "training_loss"),
        GRAD_NORM: ("grad_norm", "train/grad_norm", "gradient_norm", "global_grad_norm"),
        EVALUATION: ("validation loss", "val_loss", "eval_loss", "eval/loss"),
    }
)


def plain(name: str) -> str:
    """A name without the differences between loggers: ``lm loss``, ``LM-Loss`` -> ``lm_loss``."""
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

    def names(self, wanted: str) -> tuple[str, ...]:
        """The names in the file that may hold ``wanted``, best first."""
        return self.chosen.get(wanted) or USUAL_NAMES.get(wanted, (wanted,))

    def find(self, wanted: str, present: Iterable[str]) -> str | None:
        """The name that holds ``wanted`` among those of a file, whatever its spelling."""
        spelled: dict[str, str] = {}
        for name in present:
            spelled.setdefault(plain(name), name)
        known = (spelled.get(plain(name)) for name in self.names(wanted))
        return next((name for name in known if name is not None), None)


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


@dataclass(frozen=True)
class Precision:
    """How finely a log prints a value: as fixed ``decimals`` or as ``significant`` digits.

    With neither, the log is taken at its word: JSON and CSV may hold any number of digits.
    """

    decimals: int | None = None
    significant: int | None = None

    @property
    def rounded(self) -> bool:
        """Whether values are known to be rounded for print."""
        return self.decimals is not None or self.significant is not None

    def unit(self, value: float) -> float:
        """One unit in the last printed place of ``value``; 0 where nothing is rounded.

        >>> Precision(significant=7).unit(1.234567), Precision(decimals=3).unit(20.0)
        (1e-06, 0.001)
        """
        if self.decimals is not None:
            return 10.0**-self.decimals
        if self.significant is None or value == 0 or not math.isfinite(value):
            return 0.0
        return 10.0 ** (math.floor(math.log10(abs(value))) - self.significant + 1)


def printed_precision(text: str) -> Precision:
    """The precision of a number as printed.

    >>> printed_precision("1.234567E+00"), printed_precision("0.123")
    (Precision(decimals=None, significant=7), Precision(decimals=3, significant=None))
    """
    mantissa, exponent, _ = text.strip().lower().partition("e")
    whole, _, fraction = mantissa.lstrip("+-").partition(".")
    if not (whole + fraction).isdigit():
        return Precision()
    if exponent:
        return Precision(significant=len(whole) + len(fraction))
    return Precision(decimals=len(fraction))


@dataclass
class Series:
    """The values of one quantity of one run, in the order of the file until `settle`.

    Attributes:
        name: As it is compared: ``loss``; ``column`` is what the file calls it.
        repeated: Steps that stood more than once (the run was restarted): the later one counts.
        changed: How many of them with another value than before.
    """

    name: str
    column: str
    steps: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))
    repeated: int = 0
    changed: int = 0
    first_repeated: int | None = None
    precision: Precision = Precision()

    def __len__(self) -> int:
        return len(self.steps)

    def add(self, step: int, value: float) -> None:
        """Append the next value of the file."""
        self.steps.append(step)
        self.values.append(value)

    def by_step(self) -> dict[int, float]:
        """Return the values by step; of steps that stand more than once the later one counts."""
        return dict(zip(self.steps, self.values, strict=True))

    def settle(self) -> None:
        """Order by step; of steps that stand more than once the later one counts."""
        later = itertools.islice(self.steps, 1, None)
        if all(map(operator.lt, self.steps, later)):
            return
        latest: dict[int, float] = {}
        repeated: set[int] = set()
        changed: set[int] = set()
        for step, value in zip(self.steps, self.values, strict=True):
            if step in latest:
                repeated.add(step)
                if value != latest[step]:
                    changed.add(step)
            latest[step] = value
        self.steps = array("q", sorted(latest))
        self.values = array("d", map(latest.__getitem__, self.steps))
        self.repeated, self.changed = len(repeated), len(changed)
        self.first_repeated = min(repeated, default=None)

    @property
    def interval(self) -> int:
        """The usual distance between two steps; 1 for a single one."""
        later = itertools.islice(self.steps, 1, None)
        gaps = Counter(map(operator.sub, later, self.steps))
        return gaps.most_common(1)[0][0] if gaps else 1

    @property
    def digits(self) -> int:
        """Significant digits shown by the longest value, counted to :data:`EXACT_DIGITS`."""
        most = 0
        for value in filter(math.isfinite, self.values):
            most = max(most, significant_digits(value))
            if most >= EXACT_DIGITS:
                break
        return min(most, EXACT_DIGITS)


def significant_digits(value: float) -> int:
    """Digits of the shortest decimal that is this float.

    >>> significant_digits(5.4321), significant_digits(1200.0), significant_digits(0.1 + 0.2)
    (5, 2, 17)
    """
    mantissa = repr(value).lstrip("-").partition("e")[0]
    return len(mantissa.replace(".", "").strip("0"))


def step_number(value: object) -> int | None:
    """A step: a whole number from 0, also where it is written as ``10.0`` or as text."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str | bytes):
        value = number(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and 0 <= value < MAX_STEP else None


def number(value: object) -> float | None:
    """A float from what JSON or text may hold, ``None`` if it is not a number.

    JSON's ``null`` is read as NaN, because writers that obey the standard write it for NaN.
    """
    if value is None:
        return float("nan")
    if isinstance(value, bool) or not isinstance(value, int | float | str | bytes):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None
