"""Definition in a C++ or CUDA file, with place, tokens and signature."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field

from ringproof.harness.anchors.native.declarations import Declaration
from ringproof.harness.anchors.native.grammar import Signature
from ringproof.harness.anchors.native.heads import prefix_length
from ringproof.harness.anchors.native.tokens import Token, code_tokens


@dataclass(frozen=True)
class Text:
    """Bytes of a file, and the offsets of its lines after the first."""

    source: bytes
    starts: Sequence[int]

    def line(self, position: int) -> int:
        """Return the line of a byte, from 1."""
        return bisect.bisect_right(self.starts, position) + 1


@dataclass(frozen=True, eq=False)
class NativeFound:
    """Definition in a C++ or CUDA file.

    Attributes:
        kind: ``function``, ``type``, ``enum``, ``enumerator``, ``field``, ``variable``, ``alias``,
            ``macro``, ``registration``, or one of the mere declarations ``prototype``, ``forward``
            and ``extern``.
        name: Qualified name.
        reading: Its signature, for functions and variables.
        members: Direct members of a class or an enumeration.
    """

    kind: str
    name: tuple[str, ...]
    statement: Declaration = field(repr=False)
    text: Text = field(repr=False)
    reading: Signature | None = None
    members: tuple[NativeFound, ...] = field(default=(), repr=False)

    @property
    def begin(self) -> int:
        """First byte, ``template <...>`` included."""
        return self.statement.begin

    @property
    def end_byte(self) -> int:
        """Offset after the last byte."""
        return self.statement.end

    @property
    def start(self) -> int:
        """First line, without ``template <...>`` and ``[[...]]``."""
        head = self.statement.head
        proper = head[prefix_length(head)].start if head else self.begin
        return self.text.line(self.begin if self.kind == "macro" else proper)

    @property
    def end(self) -> int:
        """Last line."""
        return self.text.line(max(self.begin, self.end_byte - 1))

    def code(self) -> tuple[Token, ...]:
        """Return the tokens without comments."""
        return code_tokens(self.text.source, self.begin, self.end_byte)
