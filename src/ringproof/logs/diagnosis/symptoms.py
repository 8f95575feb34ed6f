"""The symptom index: what upstream prints, and which statement of a card explains it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from ruamel.yaml import YAML

from ringproof.logs.diagnosis.places import inside

KINDS = ("exception", "device", "usage", "nan", "hang", "follow-up", "silent")


class Symptom(BaseModel):
    """One entry of the index; the file says what each field means."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    kind: str
    cause: str
    remedy: str
    error: re.Pattern[str] | None = None
    says: re.Pattern[str] | None = None
    functions: frozenset[str] = Field(frozenset(), alias="in")
    code: re.Pattern[str] | None = None
    place: re.Pattern[str] | None = None
    needs: frozenset[str] = frozenset()
    restart: str = ""
    general: bool = False
    upstream: str = ""
    statements: tuple[str, ...] = ()

    def fits(
        self, error: str, message: str, functions: Sequence[str], code: str, place: str = ""
    ) -> bool:
        """Whether an exception is this one; a name counts with and without its modules."""
        return (
            (self.error is None or any(map(self.error.fullmatch, _names(error))))
            and (self.says is None or self.says.search(message) is not None)
            and (not self.functions or not self.functions.isdisjoint(functions))
            and (self.code is None or not code or self.code.search(code) is not None)
            and (self.place is None or self.place.search(place) is not None)
        )


def _names(error: str) -> tuple[str, ...]:
    return error.rpartition(".")[2], error


class Index(tuple[Symptom, ...]):
    """All symptoms, in the order in which they are tried."""

    def candidates(
        self, error: str, message: str, functions: Sequence[str] = (), code: str = "",
        place: str = "",
    ) -> tuple[Symptom, ...]:  # fmt: skip
        """Return the symptoms that an error can be, up to the first that needs no fact of the run.

        Args:
            error: Name of the exception; ``usage``, ``collective timeout``, ``not a number`` or
                ``exit code -9`` for what is not one.
            message: What it says; of several lines the first is tried before all of them.
            functions: Functions of the traceback; ``code`` is the last frame's source line,
                ``place`` its file, from which the folder of installed packages is taken away.
        """
        usage, place = error == "usage", inside(place)
        found = []
        for one in self:
            if usage != (one.kind == "usage"):
                continue
            if any(
                one.fits(error, text, functions, code, place)
                for text in dict.fromkeys((message.partition("\n")[0], message))
            ):
                found.append(one)
                if not one.needs:
                    break
        return tuple(found)

    def find(
        self, error: str, message: str, functions: Sequence[str] = (), code: str = ""
    ) -> Symptom | None:
        """Return the first symptom that an error can be, or ``None``; see `candidates`."""
        return next(iter(self.candidates(error, message, functions, code)), None)


def load_index() -> Index:
    """Read the index that comes with the package."""
    text = files(__package__).joinpath("symptoms.yaml").read_text(encoding="utf-8")
    entries = YAML(typ="safe", pure=True).load(text)
    return Index(TypeAdapter(tuple[Symptom, ...]).validate_python(entries))
