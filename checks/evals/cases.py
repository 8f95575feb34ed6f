"""The evals of the skills, joined with what an answer must say.

``skills/NAME/evals/evals.json`` and ``cards/NAME/tasks/evals.json`` have the form of the Agent
Skills ecosystem. ``cards/NAME/expectations.yaml`` says for each assertion of a case what an answer
must and must not say, and which statements of the card make that true.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter

from ringproof.cards import find_cards
from ringproof.cards.document import read_document

ROOT = Path(__file__).parents[2]
CARDS = find_cards(ROOT / "skills")


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
    """A single item may be written without a list around it."""
    return value if isinstance(value, list) else [value]


def _compiled(value: Any) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(str(text), re.IGNORECASE) for text in value)


_Texts = Annotated[tuple[str, ...], BeforeValidator(_listed)]
_Patterns = Annotated[
    tuple[re.Pattern[str], ...], BeforeValidator(_compiled), BeforeValidator(_listed)
]


class Expectation(_Strict):
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

    def met(self, answer: str) -> bool:
        """Whether an answer has all that it must have and nothing that it must not."""
        return all(pattern.search(answer) for pattern in self.says) and not any(
            pattern.search(answer) for pattern in self.lacks
        )


_Expectations = TypeAdapter(dict[str, Annotated[tuple[Expectation, ...], BeforeValidator(_listed)]])


@dataclass(frozen=True)
class EvalCase:
    """One prompt, with an expectation for each assertion.

    Attributes:
        expected: The answer in short, for a human.
        files: Contents of the files that the prompt names, by their names.
    """

    skill: str
    id: str
    prompt: str
    expected: str
    assertions: tuple[str, ...]
    expectations: tuple[Expectation, ...]
    files: Mapping[str, bytes]

    @property
    def negative(self) -> bool:
        """Whether the skill should not be used for it."""
        return self.id.startswith("negative-")


@cache
def cases_of(name: str, root: Path = ROOT) -> tuple[EvalCase, ...]:
    """Return the cases of a skill.

    Raises:
        ValueError: A file has another form, or assertions and expectations do not fit together.
    """
    card = root / "cards" / name
    given = _Expectations.validate_python(read_document(card / "expectations.yaml").data)
    cases = []
    for path in (root / "skills" / name / "evals" / "evals.json", card / "tasks" / "evals.json"):
        if path.exists():
            document = _Document.model_validate(json.loads(path.read_bytes()))
            cases += [_case(name, item, path.parent, given) for item in document.evals]
    if set(given) != {case.id for case in cases}:
        raise ValueError(f"{name}: expectations for no case: {set(given)}")
    return tuple(cases)


def _case(
    skill: str, item: _Eval, folder: Path, given: Mapping[str, tuple[Expectation, ...]]
) -> EvalCase:
    expected = given.get(item.id, ())
    if len(expected) != len(item.assertions):
        raise ValueError(f"{item.id}: {len(item.assertions)} assertions, {len(expected)} expected")
    if not any(one.says for one in expected):
        raise ValueError(f"{item.id}: silence would meet all expectations")
    files = {name: (folder / name).read_bytes() for name in item.files}
    return EvalCase(
        skill, item.id, item.prompt, item.expected_output, item.assertions, expected, files
    )


def judged(case: EvalCase, answer: str) -> tuple[bool, ...]:
    """Return for each expectation whether an answer meets it.

    An answer that says nothing of what it must say meets none, whatever it leaves out.
    """
    met = tuple(one.met(answer) for one in case.expectations)
    useful = any(ok for ok, one in zip(met, case.expectations, strict=True) if one.says)
    return met if useful else (False,) * len(met)
