"""The refutations of a card, ``cards/SKILL/refutations.toml``.

Each makes one statement false by edits of upstream's code, or says why nothing here can::

    [[refutation]]
    statement = "power-of-two-domain"
    [[refutation.edit]]
    upstream = "megatron-lm-dev"
    path = "megatron/core/parallel_state.py"
    inside = "initialize_model_parallel"
    find = "dp_size % 2"
    replace = "False"

    [[excused]]
    statement = "te-exactness"
    why = "the numbers are those of a kernel that has no source here"
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints, ValidationError

from ringproof.cards import Statement
from ringproof.cards.card import CardModel, Id, OneOrMany
from ringproof.errors import InputError, shown
from ringproof.files import read_input
from ringproof.tables import parsed

REFUTATIONS_FILE = "refutations.toml"
"""Beside ``card.yaml``."""
MAX_BYTES = 1_000_000
_Text = Annotated[str, StringConstraints(min_length=1)]


class SourceEdit(CardModel):
    """A replacement of text in one file of upstream."""

    upstream: Annotated[tuple[_Text, ...], OneOrMany(), Field(min_length=1)]
    """Upstreams of the card; or OWNER/NAME, PACKAGE==VERSION or PACKAGE, see `targets`."""
    path: _Text
    inside: str = ""
    """Dotted name of the function or class that has the text; empty for the whole file."""
    find: _Text
    """What is replaced. It must occur exactly ``count`` times."""
    replace: str
    count: int = Field(1, ge=1)


class Refutation(CardModel):
    """Edits under which a statement is false."""

    statement: Id
    proof: str = ""
    """The test that has to fail; by default any that executes upstream's code."""
    edit: tuple[SourceEdit, ...] = Field(min_length=1)


class Excuse(CardModel):
    """A statement that no edit makes false, and why."""

    statement: Id
    why: _Text


class Refutations(CardModel):
    """The content of ``refutations.toml``."""

    refutation: tuple[Refutation, ...] = ()
    excused: tuple[Excuse, ...] = ()

    def of(self, statement: str) -> Refutation | Excuse | None:
        """Return the refutation or the excuse of a statement, if it has one."""
        return next((one for one in self.all if one.statement == statement), None)

    @property
    def all(self) -> tuple[Refutation | Excuse, ...]:
        """All refutations, then all excuses."""
        return (*self.refutation, *self.excused)


def load_refutations(card: Path, said: Iterable[Statement]) -> Refutations:
    """Read the refutations beside a card; there are none without the file.

    Args:
        card: ``card.yaml``.
        said: The statements of the card.

    Raises:
        InputError: The file is not of this form, or names a statement twice or one that the card
            does not have.
    """
    path = card.with_name(REFUTATIONS_FILE)
    if not path.is_file():
        return Refutations()
    data = read_input(path, MAX_BYTES, remedy="make it smaller")
    try:
        found = Refutations.model_validate(parsed(data.decode("utf-8")))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(f"{path}: {where}", f"{first['msg']}; correct it") from error
    except ValueError as error:
        sentence = f"this is not TOML ({shown(str(error))}); correct it"
        raise InputError(str(path), sentence) from error
    named = Counter(one.statement for one in found.all)
    known = {one.id for one in said}
    for name, times in named.items():
        if name not in known:
            raise InputError(str(path), f"the card has no statement {shown(name)}; correct the id")
        if times > 1:
            sentence = f"{shown(name)} is there {times} times; refute or excuse it once"
            raise InputError(str(path), sentence)
    return found


def refutation_digest(statement: Statement, edits: Sequence[SourceEdit]) -> str:
    """Return the digest of a statement, of the names of its proofs, and of edits."""
    written = [one.model_dump(mode="json") for one in edits]
    proofs = [proof.id for proof in statement.proofs]
    whole = json.dumps([statement.says.split(), proofs, written], sort_keys=True)
    return hashlib.sha256(whole.encode()).hexdigest()
