"""Documents of a run, divided into training and evaluation."""

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
        training: Documents from which steps are sampled.
        evaluation: Documents that no step uses.
    """

    training: Documents
    evaluation: Documents


def read_data(source: str, *, longest: int) -> DataSplit:
    """Open the documents that a user names. All ranks that have the files get the same documents.

    Args:
        source: ``stdlib``, ``stdlib:definitions``, ``folder:PATH[,glob=*.md]`` or
            ``synthetic[:seed=0,...]``.
        longest: Maximum tokens per sequence. Longer documents are cut.

    Raises:
        InputError: The source is unknown, or it has fewer than two documents.
    """
    if longest < 1:
        raise InputError("max_sequence_length", longest, "is less than 1", "give 1 or more")
    return split(_documents(source, longest))


def split(documents: Documents) -> DataSplit:
    """Hold out documents at even distances in the order of the source.

    Raises:
        InputError: There is only one document.
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
