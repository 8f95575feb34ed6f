"""The documents of a run, and those that are held out for evaluation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ringproof.errors import InputError
from ringproof.reference.training.documents import (
    Documents,
    Selection,
    folder_files,
    library_definitions,
    standard_library,
)
from ringproof.reference.training.language import read_language

HELD_OUT_EVERY = 20
"""One document in so many is held out; of fewer, the last one."""
_FORMS = "use stdlib, stdlib:definitions, folder:PATH, folder:PATH,glob=*.md or synthetic:seed=0"


@dataclass(frozen=True)
class DataSplit:
    """Two disjoint sets of documents.

    Args:
        training: What steps draw from.
        evaluation: What no step sees.
    """

    training: Documents
    evaluation: Documents


def read_data(source: str, *, longest: int) -> DataSplit:
    """The documents that a user's word stands for, the same on every rank that has the files.

    Args:
        source: ``stdlib``, ``stdlib:definitions``, ``folder:PATH[,glob=*.md]`` or
            ``synthetic[:seed=0,...]``.
        longest: Tokens of a sequence at most; longer documents are cut.

    Raises:
        InputError: Another word, no documents, or a single one.
    """
    if longest < 1:
        raise InputError("max_sequence_length", longest, "is less than 1", "give 1 or more")
    return split(_documents(source, longest))


def split(documents: Documents) -> DataSplit:
    """Hold documents out, evenly spread over the source's order.

    Raises:
        InputError: There is only one.
    """
    count = len(documents.lengths)
    if count < 2:
        raise InputError("data", documents.source, "is a single document", "give two or more")
    held_out = np.arange(count) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
    if not held_out.any():
        held_out[-1] = True
    return DataSplit(
        Selection(documents, np.flatnonzero(~held_out)),
        Selection(documents, np.flatnonzero(held_out)),
    )


def _documents(source: str, longest: int) -> Documents:
    kind, colon, options = source.partition(":")
    if source == "stdlib":
        return standard_library(longest)
    if source == "stdlib:definitions":
        return library_definitions(longest)
    if kind == "folder" and options:
        return folder_files(options, longest)
    if kind == "synthetic" and (options or not colon):
        return read_language(options, longest)
    raise InputError("data", source, "unknown source", _FORMS)
