"""Declarations of a C++ or CUDA file and their scopes, before they are parsed."""

from __future__ import annotations

from dataclasses import dataclass

from ringproof.harness.anchors.native.heads import Opening
from ringproof.harness.anchors.native.tokens import Token


@dataclass(eq=False)
class Scope:
    """A namespace, type or enumeration. Unnamed ones are not part of qualified names.

    An unnamed type gets its name at its end (``typedef struct {...} Name;``).
    """

    kind: Opening
    names: tuple[str, ...]
    parent: Scope | None = None

    def qualified(self) -> tuple[str, ...]:
        """Return the names of all scopes around a member, outermost first."""
        names: tuple[str, ...] = ()
        scope: Scope | None = self
        while scope is not None:
            names, scope = scope.names + names, scope.parent
        return names


@dataclass(frozen=True)
class Declaration:
    """One declaration, definition, enumerator or macro.

    Attributes:
        head: Tokens up to the body, in which the braces of an initializer are empty.
        begin, end: Range of bytes, from ``template`` to the closing brace or semicolon.
        body: Range of bytes inside the braces of a function.
        opens: Scope that a type or an enumeration opens.
        tail: Tokens between the closing brace of a type and its semicolon.
    """

    kind: Opening
    scope: Scope
    head: tuple[Token, ...]
    begin: int
    end: int
    body: tuple[int, int] | None = None
    opens: Scope | None = None
    tail: tuple[Token, ...] = ()
