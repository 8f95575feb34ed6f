"""The conformance matrix: each case is a small training, a place in the table and its path.

The cases are in ``cases.toml`` and, those of verl, in ``verl.toml``, by their section of the table.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ringproof.errors import InputError, shown
from ringproof.tables import read_table

GPT = "pretrain_gpt.py"
HYBRID = "pretrain_hybrid.py"


@dataclass(frozen=True)
class Data:
    """Samples that a case trains on.

    Attributes:
        arguments: Options that select them; ``{folder}`` is where data files lie.
        reference: Options of the run on one rank only.
        conversations: Whether the files are conversations, which a stand-in of the packages
            ``datasets`` and ``transformers`` reads.
    """

    arguments: str
    reference: str = ""
    conversations: bool = False


@dataclass(frozen=True)
class Case:
    """One training on several ranks, compared with the same training on one.

    Attributes:
        id: Name, for people and for ``--case``.
        group: Section of the table.
        model: Key of `MODELS`, or of the models of verl.
        data: Key of `DATA`, or the program of verl: a key of its programs.
        arguments: Options, or overrides of hydra, that the reference on one rank does not have.
        path: Attention paths that must be seen, as ``TYPE:SIZE`` or ``TYPE:SIZExSIZE``.
        both: Options that case and reference share.
        dtype: Dtype of the program, which decides what counts as equal.
        evaluates: Whether losses of evaluations are compared, too.
        connections: ``CUDA_DEVICE_MAX_CONNECTIONS``: FSDP asks for another value than TP and CP.
    """

    id: str
    group: str
    ranks: int
    path: tuple[str, ...]
    arguments: str
    model: str = "dense"
    data: str = "plain"
    both: str = ""
    dtype: str = "float32"
    evaluates: bool = False
    connections: int = 1

    @property
    def script(self) -> str:
        """Name of Megatron's program that trains the model."""
        return HYBRID if self.model == "hybrid" else GPT


_TABLE = MappingProxyType(read_table("ringproof.rehearsal.conform", "cases.toml"))
BASE: str = _TABLE["base"]
MODELS = MappingProxyType(dict(_TABLE["models"]))
DATA = MappingProxyType({name: Data(**fields) for name, fields in _TABLE["data"].items()})


def _read(groups: Mapping[str, Any], data: str) -> Iterator[Case]:
    """Yield the cases of a table."""
    for group, cases in groups.items():
        for fields in cases:
            yield Case(group=group, **{"data": data, **fields, "path": tuple(fields["path"])})


VERL = MappingProxyType(read_table("ringproof.rehearsal.conform", "verl.toml"))
CASES = tuple(_read(_TABLE["cases"], "plain"))
VERL_CASES = tuple(_read(VERL["cases"], "sft"))


def chosen(
    ids: Iterable[str], groups: Iterable[str] = (), among: tuple[Case, ...] = CASES
) -> tuple[Case, ...]:
    """Return the cases with these ids or of these groups, in the order of the matrix.

    Args:
        ids: Identifiers of cases.
        among: The matrix: `CASES` or `VERL_CASES`.

    Raises:
        InputError: There is no such case or group.
    """
    wanted, sections = list(ids), list(groups)
    for option, given, known in (
        ("--case", wanted, {case.id for case in among}),
        ("--group", sections, {case.group for case in among}),
    ):
        for name in given:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                also = f"take {near[0]}, or " if near else ""
                sentence = f"{shown(name)} does not exist; {also}see ringproof conform --list"
                raise InputError(option, sentence)
    if not wanted and not sections:
        return among
    return tuple(case for case in among if case.id in wanted or case.group in sections)
