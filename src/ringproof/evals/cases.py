"""Cases: the prompts of ``evals.json``, joined with the expectations beside the card.

``skills/NAME/evals/evals.json`` and ``cards/NAME/tasks/evals.json`` have the form of the Agent
Skills ecosystem. ``cards/NAME/expectations.yaml`` says for each assertion of a case what an answer
must and must not say, and which statements of the card make that true. It stays out of the
installed skill, which would otherwise hold the answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from ringproof.cards.document import read_document
from ringproof.errors import InputError
from ringproof.files import read_input

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


def _listed(value: object) -> object:
    """One of something may stand without a list around it."""
    return value if isinstance(value, list) else [value]


def _compiled(value: object) -> tuple[re.Pattern[str], ...]:
    try:
        return tuple(re.compile(str(text), re.IGNORECASE) for text in cast("list[Any]", value))
    except re.error as error:
        raise ValueError(f"{value} is not a regular expression: {error}") from error


_Texts = Annotated[tuple[str, ...], BeforeValidator(_listed)]
_Patterns = Annotated[
    tuple[re.Pattern[str], ...], BeforeValidator(_compiled), BeforeValidator(_listed)
]


class _Expected(_Strict):
    """What one assertion means for a program.

    Attributes:
        says: Patterns of which each must be found.
        lacks: Patterns of which none may be found.
        facts: Ids of the statements of the card that make it true.
        rule: Pattern that the skill's text has, where the answer follows from a rule of it.
        computed: The calculation by which it follows, such as ``36 * 1 * 4``.
    """

    says: _Patterns = ()
    lacks: _Patterns = ()
    facts: _Texts = Field((), alias="fact")
    rule: str = ""
    computed: str = ""


class Assertion(_Expected):
    """One assertion about an answer; ``text`` is the assertion in words."""

    text: str

    def met(self, answer: str) -> bool:
        """Whether an answer has all that it must have and nothing that it must not."""
        return all(pattern.search(answer) for pattern in self.says) and not any(
            pattern.search(answer) for pattern in self.lacks
        )


_Expectations = dict[str, Annotated[tuple[_Expected, ...], BeforeValidator(_listed)]]


@dataclass(frozen=True)
class EvalCase:
    """One prompt.

    Attributes:
        expected: The answer in short, for a human.
        files: Contents of the files that the prompt speaks of, by their names.
    """

    skill: str
    id: str
    prompt: str
    expected: str
    expectations: tuple[Assertion, ...]
    files: Mapping[str, bytes]

    @property
    def negative(self) -> bool:
        """Whether the skill should not be used for it."""
        return self.id.startswith("negative-")


def load_cases(skill: Path, card: Path) -> tuple[EvalCase, ...]:
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


def _expectations(path: Path) -> _Expectations:
    if not path.exists():
        remedy = "write it; the skills of ringproof have one each"
        raise InputError(
            str(path), None, "is missing: nothing says what an answer must say", remedy
        )
    try:
        return TypeAdapter(_Expectations).validate_python(read_document(path).data)
    except ValidationError as error:
        raise _wrong(path, error) from error


def _wrong(path: Path, error: Exception) -> InputError:
    problem = "has another form: " + " ".join(str(error).split())[:300]
    return InputError(str(path), None, problem, "correct it")


def _case(skill: str, item: _Eval, path: Path, given: _Expectations, beside: Path) -> EvalCase:
    expected = given.get(item.id, ())
    if len(expected) != len(item.assertions):
        problem = f"has {len(item.assertions)} assertions and {len(expected)} expectations"
        raise InputError(str(beside), item.id, problem, "write one for each, in their order")
    if not any(one.says for one in expected):
        problem = "expects nothing that an answer says, so that silence would do"
        raise InputError(str(beside), item.id, problem, "add `says` to one expectation")
    made = tuple(
        Assertion.model_construct(text=text, **dict(one))
        for text, one in zip(item.assertions, expected, strict=True)
    )
    files = {name: _file(path.parent, name) for name in item.files}
    return EvalCase(skill, item.id, item.prompt, item.expected_output, made, files)


def _file(folder: Path, name: str) -> bytes:
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise InputError("files", name, "is outside of the folder of evals.json", "move it there")
    return read_input(path, MAX_BYTES, field="files", remedy="correct evals.json")
