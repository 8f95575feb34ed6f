"""Cases: the prompts of ``evals.json``, joined with the expectations beside the card.

``skills/NAME/evals/evals.json`` and ``cards/NAME/tasks/evals.json`` have the form of the Agent
Skills ecosystem. ``cards/NAME/expectations.yaml`` says for each assertion of a case what an answer
must and must not say, and which statements of the card make that true. It stays out of the
installed skill, which would otherwise hold the answers.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import add, mul, sub, truediv
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from ringproof.errors import InputError
from ringproof.files import read_input
from ringproof.harness.cards.document import read_document

MAX_BYTES = 2_000_000
EXPECTATIONS = "expectations.yaml"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Eval(_Strict):
    id: str
    prompt: str
    expected_output: str
    assertions: tuple[str, ...]
    files: tuple[str, ...] = ()


class _Document(_Strict):
    skill_name: str
    evals: tuple[_Eval, ...]


class _Expected(_Strict):
    """What one assertion means for a program; see `Expectation`."""

    says: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    fact: tuple[str, ...] = ()
    rule: str = ""
    computed: str = ""


@dataclass(frozen=True)
class Expectation:
    """One assertion about an answer.

    Attributes:
        text: The assertion in words.
        says: Patterns of which each must be found.
        lacks: Patterns of which none may be found.
        facts: Ids of the statements of the card that make it true.
        rule: Pattern that the skill's text has, where the answer follows from a rule of it.
        computed: The calculation by which it follows, such as ``36 * 1 * 4``.
    """

    text: str
    says: tuple[re.Pattern[str], ...]
    lacks: tuple[re.Pattern[str], ...]
    facts: tuple[str, ...] = ()
    rule: str = ""
    computed: str = ""

    def met(self, answer: str) -> bool:
        """Whether an answer has all that it must have and nothing that it must not."""
        return all(pattern.search(answer) for pattern in self.says) and not any(
            pattern.search(answer) for pattern in self.lacks
        )


@dataclass(frozen=True)
class Case:
    """One prompt.

    Attributes:
        expected: The answer in short, for a human.
        files: Contents of the files that the prompt speaks of, by their names.
    """

    skill: str
    id: str
    prompt: str
    expected: str
    expectations: tuple[Expectation, ...]
    files: Mapping[str, bytes]

    @property
    def negative(self) -> bool:
        """Whether the skill should not be used for it."""
        return self.id.startswith("negative-")


def load_cases(skill: Path, card: Path) -> tuple[Case, ...]:
    """Return the cases of a skill.

    Args:
        skill: Its folder.
        card: Its ``card.yaml``.

    Raises:
        InputError: A file is missing or has another form, or a case has no expectations, or not one
            for each assertion, or none that an answer could meet by what it says.
    """
    beside = card.with_name(EXPECTATIONS)
    given = _expectations(beside)
    cases = []
    for path in (skill / "evals" / "evals.json", card.parent / "tasks" / "evals.json"):
        if path.exists():
            cases += [_case(skill.name, item, path, given, beside) for item in _evals(path)]
    unknown = sorted(set(given) - {case.id for case in cases})
    if unknown:
        raise InputError(str(beside), unknown[0], "is not the id of a case", "correct it")
    return tuple(cases)


def _evals(path: Path) -> tuple[_Eval, ...]:
    data = read_input(path, MAX_BYTES, remedy="name the folder of the skills")
    try:
        return _Document.model_validate(json.loads(data)).evals
    except (ValueError, RecursionError) as error:
        raise _wrong(path, error) from error


def _expectations(path: Path) -> Mapping[str, tuple[_Expected, ...]]:
    if not path.exists():
        remedy = "write it; the skills of ringproof have one each"
        raise InputError(
            str(path), None, "is missing: nothing says what an answer must say", remedy
        )
    try:
        form = TypeAdapter(dict[str, tuple[_Expected, ...]])
        return form.validate_python(_tuples(read_document(path).data))
    except ValidationError as error:
        raise _wrong(path, error) from error


def _tuples(value: object) -> object:
    """One pattern or id may stand without a list around it."""
    if not isinstance(value, dict):
        return value
    listed = ("says", "lacks", "fact")
    return {
        case: [
            {
                key: [entry] if key in listed and isinstance(entry, str) else entry
                for key, entry in item.items()
            }
            if isinstance(item, dict)
            else item
            for item in (items if isinstance(items, list) else [items])
        ]
        for case, items in value.items()
    }


def _wrong(path: Path, error: Exception) -> InputError:
    problem = "has another form: " + " ".join(str(error).split())[:300]
    return InputError(str(path), None, problem, "correct it")


def _case(
    skill: str, item: _Eval, path: Path, given: Mapping[str, tuple[_Expected, ...]], beside: Path
) -> Case:
    expected = given.get(item.id, ())
    if len(expected) != len(item.assertions):
        problem = f"has {len(item.assertions)} assertions and {len(expected)} expectations"
        raise InputError(str(beside), item.id, problem, "write one for each, in their order")
    made = tuple(_expectation(*pair) for pair in zip(item.assertions, expected, strict=True))
    if not any(one.says for one in made):
        problem = "expects nothing that an answer says, so that silence would do"
        raise InputError(str(beside), item.id, problem, "add `says` to one expectation")
    files = {name: _file(path.parent, name) for name in item.files}
    return Case(skill, item.id, item.prompt, item.expected_output, made, files)


def _expectation(text: str, one: _Expected) -> Expectation:
    says, lacks = _patterns(one.says), _patterns(one.lacks)
    return Expectation(text, says, lacks, one.fact, one.rule, one.computed)


def _patterns(texts: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    try:
        return tuple(re.compile(text, re.IGNORECASE) for text in texts)
    except re.error as error:
        problem = f"is not a regular expression: {error}"
        raise InputError(EXPECTATIONS, ", ".join(texts), problem, "correct it") from error


def _file(folder: Path, name: str) -> bytes:
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise InputError("files", name, "is outside of the folder of evals.json", "move it there")
    return read_input(path, MAX_BYTES, field="files", remedy="correct evals.json")


_OPERATORS: Mapping[type[ast.operator], Callable[[float, float], float]] = MappingProxyType(
    {ast.Add: add, ast.Sub: sub, ast.Mult: mul, ast.Div: truediv}
)


def calculated(text: str) -> float:
    """Return the value of a calculation with numbers, ``+ - * /`` and parentheses.

    Raises:
        ValueError: It is something else.
    """

    def value(node: ast.expr) -> float:
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return float(node.value)
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](value(node.left), value(node.right))
        raise ValueError(f"not a calculation: {text}")

    return value(ast.parse(text, mode="eval").body)


def texts_of(skill: Path) -> Iterator[str]:
    """Yield the texts of a skill that an assistant reads."""
    for path in (skill / "SKILL.md", *sorted((skill / "references").glob("*.md"))):
        yield path.read_text(encoding="utf-8")


def as_json(expectation: Expectation, met: bool) -> dict[str, Any]:
    """An expectation and whether it was met, in the form of the ecosystem's ``grading.json``."""
    return {"text": expectation.text, "passed": met}
