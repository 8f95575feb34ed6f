"""Documents of a run as token ids: where they come from, which are held out, and their order.

Documents are read only on the rank that needs them. Files give bytes, a vocabulary of 256.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import sysconfig
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ringproof.errors import InputError, shown
from ringproof.reference.planning.elementwise import IntArray

Tokens = npt.NDArray[np.unsignedinteger]
"""Token ids of one document, of any unsigned type."""

HELD_OUT_EVERY = 20
"""One document in so many is held out; of fewer, the last one."""
_FORMS = "use stdlib, stdlib:definitions or synthetic:seed=0"
_DEFINITION = re.compile(rb"\n\n(?=@|def |class |async def )")
_FOREIGN = frozenset({"site-packages", "dist-packages", "__pycache__"})

WORDS = 32
FOLLOWERS = 3
NAME_LETTERS = 8
RECALL_EVERY = 16
"""Words from one mention of the name to the next in the synthetic language."""
_SHARES = (0.75, 0.15, 0.1)
_LETTERS = b"abcdefghijklmnopqrstuvwxyz"
_OPTION = re.compile(r"(seed|documents|mean|sigma)=(\d{1,9}(?:\.\d{1,9})?)")


class Documents(Protocol):
    """Documents whose lengths are known before they are read. They are the same on every rank."""

    @property
    def lengths(self) -> IntArray:
        """Number of tokens of each document, shape ``(n,)``. Each is at least 1."""

    def name(self, index: int) -> str:
        """Return the name of a document for messages."""

    def read(self, index: int) -> Tokens:
        """Read the tokens of a document, shape ``(lengths[index],)``.

        Raises:
            InputError: The document cannot be read, or its length has changed.
        """


@dataclass(frozen=True)
class DataSplit:
    """Two disjoint sets of documents: those of the steps, and those that no step uses."""

    training: Documents
    evaluation: Documents


def read_data(source: str, *, longest: int) -> DataSplit:
    """Open the documents that a user names. All ranks that have the files get the same documents.

    Args:
        source: ``stdlib``, ``stdlib:definitions`` or ``synthetic[:seed=0,...]``.
        longest: Maximum tokens per sequence. Longer documents are cut.

    Raises:
        InputError: The source is unknown, or it has fewer than two documents.
    """
    kind, colon, options = source.partition(":")
    documents: Documents
    if source == "stdlib":
        documents = standard_library(longest)
    elif source == "stdlib:definitions":
        documents = library_definitions(longest)
    elif kind == "synthetic" and (options or not colon):
        documents = read_language(options, longest)
    else:
        raise InputError("data", f"{shown(source)} is an unknown source; {_FORMS}")
    if len(documents.lengths) < 2:
        problem = f"{shown(source)} is a single document"
        raise InputError("data", f"{problem}; give two or more")
    return split(documents)


def split(documents: Documents) -> DataSplit:
    """Hold out documents at even distances in the order of the source; there are two or more."""
    count = len(documents.lengths)
    held_out = np.arange(count) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
    if not held_out.any():
        held_out[-1] = True
    return DataSplit(
        Selection(documents, np.flatnonzero(~held_out)),
        Selection(documents, np.flatnonzero(held_out)),
    )


@dataclass(frozen=True)
class Selection:
    """A subset of other documents, by their indices; implements ``Documents``."""

    whole: Documents
    indices: IntArray

    @property
    def lengths(self) -> IntArray:
        """Number of tokens of each document."""
        return self.whole.lengths[self.indices]

    def name(self, index: int) -> str:
        """Return the name of a document for messages."""
        return self.whole.name(int(self.indices[index]))

    def read(self, index: int) -> Tokens:
        """See :class:`Documents`."""
        return self.whole.read(int(self.indices[index]))


@dataclass(frozen=True)
class Files:
    """Documents that are files or parts of files; implements ``Documents``.

    ``starts`` are the offsets of the documents in their files; all 0 when ``None``.
    """

    paths: tuple[str, ...]
    lengths: IntArray
    starts: IntArray | None = None

    def name(self, index: int) -> str:
        """Return the path and the offset in the file."""
        start = 0 if self.starts is None else int(self.starts[index])
        return f"{self.paths[index]}, byte {start}" if start else self.paths[index]

    def read(self, index: int) -> Tokens:
        """See :class:`Documents`."""
        length = int(self.lengths[index])
        try:
            with Path(self.paths[index]).open("rb") as file:
                if self.starts is not None:
                    file.seek(int(self.starts[index]))
                content = file.read(length)
        except OSError as error:
            problem = f"the file cannot be read: {error.strerror}"
            raise InputError(self.paths[index], f"{problem}; leave it out") from error
        if len(content) < length:
            problem = f"the file had {length} bytes when the run began, and now {len(content)}"
            raise InputError(self.paths[index], f"{problem}; do not change the data")
        return np.frombuffer(content, np.uint8)


def standard_library(longest: int) -> Files:
    """Return the ``.py`` files of the interpreter's standard library, sorted by path.

    Installed packages and empty files are left out, and longer files are cut.

    Raises:
        InputError: There are no files because the interpreter has its library in an archive.
    """
    sizes = [(path, Path(path).stat().st_size) for path in _library_paths()]
    taken = [(path, min(size, longest)) for path, size in sizes if size]
    lengths = np.array([length for _, length in taken], np.int64)
    return Files(tuple(path for path, _ in taken), lengths)


def library_definitions(longest: int) -> Files:
    """Return the top-level definitions of the standard library, and the text before the first one.

    Half of them have at most about 500 bytes, and one in a hundred has 30,000 or more (Python
    3.11). So they have a long tail, while most files are longer than a tiny model's context.
    """
    paths, starts, lengths = [], [], []
    for path in _library_paths():
        content = Path(path).read_bytes()
        cuts = [0, *(found.end() for found in _DEFINITION.finditer(content)), len(content)]
        for start, stop in itertools.pairwise(cuts):
            if stop > start:
                paths.append(path)
                starts.append(start)
                lengths.append(min(stop - start, longest))
    return Files(tuple(paths), np.array(lengths, np.int64), np.array(starts, np.int64))


def _library_paths() -> list[str]:
    root = Path(sysconfig.get_path("stdlib"))
    found: list[tuple[str, str]] = []
    for place, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _FOREIGN]
        paths = [Path(place, name) for name in names if name.endswith(".py")]
        found += [(path.relative_to(root).as_posix(), str(path)) for path in paths]
    if not found:
        problem = "no file of the standard library is on disk"
        raise InputError("data", f"{problem}; use synthetic")
    return [path for _, path in sorted(found)]


@dataclass(frozen=True, kw_only=True)
class SyntheticLanguage:
    """A language that a model learns in a hundred steps, and that needs long context.

    Its words are drawn once. Each word is followed by one of three others, most often by the first
    of them, so that a model that knows words and their order has a far lower loss than one that
    knows only letters. Every document has a random name of eight capital letters, at the beginning
    and again after each ``@``. The name can only be predicted by copying it from far away, across
    the ranks of a CP group. Random numbers come from numpy's ``RandomState``, whose streams never
    change. Implements ``Documents``.

    >>> bytes(SyntheticLanguage(longest=64).read(0))
    b'QMZPUSAE ecq tabm ngcwgtb jhhdmpo mcrphlq jhhdmpo tabm zsbs ajn '

    Args:
        documents: Number of documents.
        mean: Mean of the lognormal lengths before they are cut to ``longest``.
        sigma: Standard deviation of their logarithms.
    """

    longest: int
    seed: int = 0
    documents: int = 4096
    mean: float = 256.0
    sigma: float = 1.0

    @cached_property
    def lengths(self) -> IntArray:
        """Number of tokens of each document, at least 2 unless the document is cut."""
        location = math.log(self.mean) - self.sigma**2 / 2
        drawn = _random(self.seed, 0).lognormal(location, self.sigma, self.documents)
        return np.clip(drawn, min(2, self.longest), self.longest).astype(np.int64)

    @cached_property
    def words(self) -> tuple[bytes, ...]:
        """The vocabulary: three to seven letters each."""
        random = _random(self.seed, 1)
        return tuple(_draw(random, _LETTERS, random.randint(3, 8)) for _ in range(WORDS))

    @cached_property
    def followers(self) -> IntArray:
        """Words that may follow each word, likeliest first. Shape: ``(WORDS, FOLLOWERS)``."""
        random = _random(self.seed, 2)
        return np.stack([random.permutation(WORDS)[:FOLLOWERS] for _ in range(WORDS)])

    def name(self, index: int) -> str:
        """Return the name of a document for messages."""
        return f"synthetic:seed={self.seed} document {index}"

    def read(self, index: int) -> Tokens:
        """See ``Documents``."""
        length = int(self.lengths[index])
        random = _random(self.seed, 3, index)
        name = _draw(random, _LETTERS.upper(), NAME_LETTERS)
        word = int(random.randint(WORDS))
        choices = random.choice(FOLLOWERS, length // 4 + 1, p=_SHARES)  # a word has 4 bytes or more
        parts = [name]
        for count, choice in enumerate(choices, 1):
            parts.append(self.words[word])
            if not count % RECALL_EVERY:
                parts.append(b"@" + name)
            word = int(self.followers[word, choice])
        return np.frombuffer(b" ".join(parts)[:length], np.uint8)


def read_language(options: str, longest: int) -> SyntheticLanguage:
    """Open the synthetic language with options such as ``seed=0,documents=4096,mean=256,sigma=1``.

    Raises:
        InputError: An option is unknown, given twice, not a number, or out of range.
    """
    given: dict[str, float] = {}
    for part in options.split(",") if options else ():
        match = _OPTION.fullmatch(part)
        if match is None or match[1] in given:
            problem = f"{shown(part)} is unknown, there twice, or not a number"
            raise InputError("synthetic", f"{problem}; write seed=0,documents=4096,mean=256")
        given[match[1]] = float(match[2])
    for name, least in (("seed", 0), ("documents", 2)):
        value = given.get(name, least)
        if value % 1 or not least <= value <= 10**6:
            problem = f"{value:g} is not a whole number from {least} to 1,000,000"
            raise InputError(f"synthetic: {name}", f"{problem}; correct it")
    kinds = {"seed": int, "documents": int}
    options_of: dict[str, Any] = {
        name: kinds.get(name, float)(value) for name, value in given.items()
    }
    language = SyntheticLanguage(longest=longest, **options_of)
    if language.mean < 1 or language.sigma > 10:
        problem = f"{shown(options)} has a mean of less than 1, or a sigma of more than 10"
        raise InputError("synthetic", f"{problem}; correct it")
    return language


def _random(*seed: int) -> np.random.RandomState:
    return np.random.RandomState(list(seed))


def _draw(random: np.random.RandomState, letters: bytes, count: int) -> bytes:
    return bytes(letters[place] for place in random.randint(len(letters), size=count))


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """Samples every document once per epoch, in a new random order for each epoch.

    The documents of a step follow from seed, global batch and step alone. There is no state, so a
    run is resumed from its step number, and runs on any number of ranks use the same samples.
    """

    seed: int
    global_batch: int
    documents: int

    def indices(self, step: int) -> IntArray:
        """Return the documents of a step, shape ``(global_batch,)``. Steps count from 0.

        A step that begins in one epoch may end in the next.
        """
        first = step * self.global_batch
        places = np.arange(first, first + self.global_batch)
        epochs = places // self.documents
        found = np.empty(self.global_batch, np.int64)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            order = _random(self.seed, epoch).permutation(self.documents)
            found[here] = order[places[here] % self.documents]
        return found
