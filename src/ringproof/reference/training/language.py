"""A synthetic language that a model learns in a hundred steps, and that needs long context.

Its words are drawn once. Each word is followed by one of three others, most often by the first of
them, so that a model that knows words and their order has a far lower loss than one that knows only
letters. Every document has a random name of eight capital letters, at the beginning and again after
each ``@``. The name can only be predicted by copying it from far away, across the ranks of a CP
group.

>>> bytes(SyntheticLanguage(longest=64).read(0))
b'QMZPUSAE ecq tabm ngcwgtb jhhdmpo mcrphlq jhhdmpo tabm zsbs ajn '
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ringproof.errors import InputError
from ringproof.reference.planning.domain import IntArray
from ringproof.reference.training.documents import Tokens

WORDS = 32
FOLLOWERS = 3
NAME_LETTERS = 8
RECALL_EVERY = 16
"""Words from one mention of the name to the next."""
_SHARES = (0.75, 0.15, 0.1)
_LETTERS = b"abcdefghijklmnopqrstuvwxyz"
_CAPITALS = _LETTERS.upper()
_OPTION = re.compile(r"(seed|documents|mean|sigma)=(\d{1,9}(?:\.\d{1,9})?)")


@dataclass(frozen=True, kw_only=True)
class SyntheticLanguage:
    """Documents of a synthetic language; implements ``Documents``.

    Random numbers come from numpy's ``RandomState``, whose streams never change.

    Args:
        longest: Maximum tokens per document.
        seed: Seed of words and documents.
        documents: Number of documents.
        mean: Mean of the lognormal lengths before they are cut.
        sigma: Standard deviation of their logarithms.
    """

    longest: int
    seed: int = 0
    documents: int = 4096
    mean: float = 256.0
    sigma: float = 1.0

    @property
    def source(self) -> str:
        """What the user named."""
        return f"synthetic:seed={self.seed}"

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
        """One document's name, for a message."""
        return f"{self.source} document {index}"

    def read(self, index: int) -> Tokens:
        """See ``Documents``."""
        length = int(self.lengths[index])
        random = _random(self.seed, 3, index)
        name = _draw(random, _CAPITALS, NAME_LETTERS)
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
    """Open the language that a user names.

    Args:
        options: Empty, or some of ``seed=0,documents=4096,mean=256,sigma=1.0``.
        longest: Tokens of a document at most.

    Raises:
        InputError: An option is unknown, given twice, not a number, or out of range.
    """
    given: dict[str, float] = {}
    for part in options.split(",") if options else ():
        match = _OPTION.fullmatch(part)
        if match is None or match[1] in given:
            problem = "is unknown, there twice, or no number"
            raise InputError("synthetic", part, problem, "write seed=0,documents=4096,mean=256")
        given[match[1]] = float(match[2])
    language = SyntheticLanguage(
        longest=longest,
        seed=_whole(given, "seed", 0, least=0),
        documents=_whole(given, "documents", 4096, least=2),
        mean=given.get("mean", 256.0),
        sigma=given.get("sigma", 1.0),
    )
    if language.mean < 1 or language.sigma > 10:
        problem = "mean is less than 1, or sigma more than 10"
        raise InputError("synthetic", options, problem, "correct it")
    return language


def _whole(given: dict[str, float], name: str, default: int, *, least: int) -> int:
    value = given.get(name, float(default))
    if not value.is_integer() or not least <= value <= 10**6:
        problem = f"is not a whole number from {least} to 1,000,000"
        raise InputError(f"synthetic: {name}", value, problem, "correct it")
    return int(value)


def _random(*seed: int) -> np.random.RandomState:
    return np.random.RandomState(list(seed))


def _draw(random: np.random.RandomState, letters: bytes, count: int) -> bytes:
    return bytes(letters[place] for place in random.randint(len(letters), size=count))
