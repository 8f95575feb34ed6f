"""The declarations of a C++ or CUDA file and the scopes they stand in, before they are read."""

from __future__ import annotations

from dataclasses import dataclass

from ringproof.harness.anchors.native.heads import Opening
from ringproof.harness.anchors.native.tokens import Token


@dataclass(eq=False)
class Scope:
    """A namespace, type or enumeration; unnamed ones add nothing to qualified names.

    An unnamed type gets its name where it ends (``typedef struct {...} Name;``).
    """

    kind: Opening
    names: tuple[str, ...]
    parent: Scope | None = None

    def qualified(self) -> tuple[str, ...]:
        """The names of all scopes around a member, outermost first."""
        names: tuple[str, ...] = ()
        scope: Scope | None = self
        while scope is not None:
            names, scope = scope.names + names, scope.parent
        return names


@dataclass(frozen=True)
class Declaration:
    """One declaration, definition, enumerator or macro.

    Attributes:
        head: Its tokens up to the body; an initializer's braces are empty there.
        begin, end: Its bytes, from ``template`` to the closing brace or semicolon.
        body: Bytes inside the braces of a function.
        opens: The scope that a type or an enumeration opens.
        tail: What stands between the closing brace of a type and its semicolon.
    """

    kind: Opening
    scope: Scope
    head: tuple[Token, ...]
    begin: int
    end: int
    body: tuple[int, int] | None = None
    opens: Scope | None = None
    tail: tuple[Token, ...] = ()
