"""Training lines of any other framework, recognised by their shape: a step, and names with numbers.

Read were the lines of NeMo-RL, verl, ms-swift, slime, torchtitan, Automodel, Transformers (with
LLaMA-Factory), DeepSpeed and Lightning. They separate their parts by bars, dashes, commas or
blanks, and write ``name: value``, ``name:value``, ``name=value`` or ``name value``, or the
dictionary of Python. A step stands in the line, in front of a dictionary, in a progress bar, or in
a title above (NeMo-RL); lines of Transformers have none and are counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ringproof.logs.training.formats import COLOUR, ITERATION, Reader
from ringproof.logs.training.quantities import GRAD_NORM, LOSS, STEP, Columns
from ringproof.logs.training.series import printed_precision

_NUMBER = r"[-+]?(?:\d+(?:,\d{3})*(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+|nan|NaN|inf|Infinity)"
# Of a long number only its end can be followed by anything else, so a part of it is tried once.
_PAIR = re.compile(
    rf"(?<![\w/.])['\"]?((?:[A-Za-z_][\w/.]* )?[A-Za-z_][\w/.]*(?:\([\w/]+\))?)['\"]?"
    rf"(?:\s*[:=]\s*|\s+)['\"]?(?:np\.float\d+\()?({_NUMBER})(?!\d)(?![\w/.]*[A-Za-z/])"
)
_STEP = re.compile(
    r"(?i)(?<![\w./])(?:train(?:ing)?[/_ ])?(?:global[_ ]?)?(?:steps?|iteration|iter|num_updates)"
    r"(?:/max_steps)?['\"]?\s*[:=# ]\s*['\"]?(\d{1,15})(?:\.0)?(?:\s*/\s*\d+)?(?![\d.\w])"
)
_BAR = re.compile(r"(?i:epoch) (\d{1,9}):.*?(?<!\d)(\d{1,12})/(\d{1,12}) \[")
_METER = re.compile(r"Epoch: \[(\d{1,9})\] +\[ *(\d{1,12})/(\d{1,12})\]")
_ANY_BAR = re.compile(r"(?<!\d)(\d{1,12})/\d{1,12} \[[\d:]{4,9}<")
_TITLE = re.compile(r"(?<!=)=+ *Step +(\d{1,15})/\d+ *=+")
_ALONE = re.compile(rf"^\W*((?i:loss|grad[ _]norm)): *({_NUMBER})\s*$")
_TRAINING = re.compile(rb"(?i)loss|grad.?norm")
_EVALUATION = re.compile(r"(?i)\b(?:val|valid|validation|eval|test)\w*(?:[ _/]loss|uat)")
_TRAINING_LOSS = re.compile(r"(?i)\btrain\w*[ _/]loss")
_LONGEST = 8000
_WHOLE = ("loss", "grad_norm", "grad norm")


class ShapeReader(Reader):
    """Reads lines that hold a step and a loss or a gradient norm, among any others."""

    def __init__(self, columns: Columns) -> None:
        super().__init__(columns)
        self._title: int | None = None
        self._counted = 0

    def take(self, line: bytes) -> None:
        """Read one line."""
        line = COLOUR.sub(b"", line) if b"\x1b" in line else line
        if len(line) > _LONGEST or ITERATION.search(line):
            return
        if b"=== " in line or b"Step " in line:
            self._take_title(line)
        if not _TRAINING.search(line):
            return
        text = line.decode("utf-8", errors="replace")
        alone = _ALONE.match(text)
        if alone and self._title is not None:
            self._record({STEP: str(self._title), alone[1].lower(): alone[2]})
        elif _TRAINING_LOSS.search(text) or not _EVALUATION.search(text):
            self._take_pairs(text)

    def _take_title(self, line: bytes) -> None:
        title = _TITLE.search(line.decode("utf-8", errors="replace"))
        self._title = int(title[1]) if title else self._title

    def _take_pairs(self, text: str) -> None:
        values = dict(_pairs(text))
        wanted = [name for name in (LOSS, GRAD_NORM) if self._find(name, tuple(values))]
        step = self._step(text) if wanted else None
        if step is not None:
            self._record({STEP: str(step), **values})
            for series in self.series.values():
                raw = values.get(series.column, "")
                if len(series) and not series.precision.rounded and raw:
                    series.precision = printed_precision(raw)

    def _step(self, text: str) -> int | None:
        """Return the step of a line, or ``None`` where it is no line of a training."""
        found = _STEP.search(text)
        if found:
            return int(found[1])
        if bar := _METER.search(text) or _BAR.search(text):
            return int(bar[1]) * int(bar[3]) + int(bar[2])
        if bar := _ANY_BAR.search(text):
            return int(bar[1])
        if "{'" in text and "'epoch'" in text:
            self._counted += 1
            return self._counted
        return None

    def _find(self, wanted: str, names: tuple[str, ...]) -> str | None:
        if wanted == STEP:
            return STEP
        similar = self.columns.similar(wanted, names)
        return super()._find(wanted, names) or next(iter(similar), None)


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """Yield the names and numbers of a line, the first of each name."""
    seen = set()
    for match in _PAIR.finditer(text):
        name = match[1]
        last = name.rpartition(" ")[2]
        # A word in front of the name belongs to it only in names such as "lm loss".
        for one in (name, last) if name not in _WHOLE and last in _WHOLE[:2] else (name,):
            if one not in seen:
                seen.add(one)
                yield one, match[2].replace(",", "")


def is_shaped(head: list[bytes]) -> bool:
    """Whether the first lines of a log hold a training line by its shape, and none of Megatron."""
    if any(ITERATION.search(COLOUR.sub(b"", line)) for line in head):
        return False
    reader = ShapeReader(Columns())
    for line in head:
        reader.take(line)
    return reader.records > 0
