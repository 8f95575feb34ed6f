"""C++ and CUDA as a language of anchors.

Symbol syntax: a name (``partition_kernel``), or as much of its qualified name as makes it unique
(``Ring::send``, ``cp::Ring::send``); ``#2`` at its end picks the second of several with the same
qualified name (overloads, branches of ``#if``), in source order. Template arguments are not
written. What can be named: functions, kernels and methods, classes, enumerations and enumerators,
fields, variables and constants of namespaces, aliases, macros, and functions registered in a
``PYBIND11_MODULE`` or ``TORCH_LIBRARY`` by their Python name. A constructor is ``Ring::Ring``.

A prototype counts only if the file does not define the function, and a registration only if nothing
else has its name. Unnamed namespaces are not part of names.

Lines: from the declaration proper to its closing brace or semicolon. ``template <...>`` and
``[[...]]`` above it are left out of the lines, as decorators are in Python, but belong to the code
that is compared; specifiers (``__global__``, ``extern "C"``, ``NAME_API``) belong to both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ringproof.harness.anchors.native.changes import likeness, summarise
from ringproof.harness.anchors.native.contents import (
    documentation_fingerprint,
    fingerprint,
    missing_expectations,
)
from ringproof.harness.anchors.native.declarations import Declaration, Scope
from ringproof.harness.anchors.native.found import NativeFound, Text
from ringproof.harness.anchors.native.grammar import Grammar, Signature
from ringproof.harness.anchors.native.heads import Opening, listed_names, stands_alone, value_at
from ringproof.harness.anchors.native.scan import MAX_DECLARATIONS, scan
from ringproof.harness.anchors.native.tokens import Token, string_value, tokens
from ringproof.harness.anchors.protocol import Definition, SymbolError, UnparsableError

NATIVE_ENDINGS = (".cu", ".cuh", ".cpp", ".cc", ".cxx", ".c", ".hpp", ".hxx", ".hh", ".h")
_MAX_NAMES = 64
_BYTE_ORDER_MARK = re.compile(rb"\A\xef\xbb\xbf")
_REGISTERING = re.compile(r"(?:PYBIND11_\w*MODULE|TORCH_LIBRARY)\w*")
_NUMBERED = re.compile(r"(.*?)(?:#([1-9][0-9]*))?", re.DOTALL)


class NativeModule:
    """A parsed C++ or CUDA file."""

    def __init__(self, source: bytes, grammar: Grammar) -> None:
        self._grammar = grammar
        starts = tuple(found.end() for found in re.finditer(b"\n", source))
        self._text = Text(source, starts)
        self._by_last: dict[str, list[NativeFound]] = {}
        members: dict[Scope, list[NativeFound]] = {}
        found: list[NativeFound] = []
        for statement in scan(source):
            inside = members.pop(statement.opens, ()) if statement.opens is not None else ()
            made = list(self._definitions(statement, tuple(inside)))
            found += made
            if len(found) > 2 * MAX_DECLARATIONS:
                raise UnparsableError(f"more than {2 * MAX_DECLARATIONS:,} definitions")
            if statement.scope.kind in (Opening.TYPE, Opening.ENUM):
                members.setdefault(statement.scope, []).extend(made)
        for item in sorted(found, key=lambda item: (item.begin, item.end_byte)):
            self._by_last.setdefault(item.name[-1], []).append(item)

    def find(self, symbol: str) -> NativeDefinition:
        """See `protocol.Module.find`."""
        return NativeDefinition(self._find(symbol))

    def _find(self, symbol: str) -> NativeFound:
        matched = _NUMBERED.fullmatch(symbol)
        name = tuple((matched.group(1) if matched else symbol).split("::"))
        number = matched.group(2) if matched else None
        candidates = _matching(_ranked(self._by_last.get(name[-1], ())), name)
        if not candidates:
            raise SymbolError(f"no `{symbol}` in the file")
        places = ", ".join(str(item.start) for item in candidates[:8])
        if number is not None:
            if int(number) > len(candidates):
                raise SymbolError(f"`{'::'.join(name)}` is defined on lines {places} only")
            return candidates[int(number) - 1]
        if len(candidates) > 1:
            message = f"`{symbol}` is defined on lines {places} of the file: say `{symbol}#1`"
            raise SymbolError(f"{message} or later", ambiguous=True)
        return candidates[0]

    def catalog(self) -> Mapping[str, NativeDefinition]:
        """See `protocol.Module.catalog`. Names are fully qualified."""
        found: dict[str, NativeDefinition] = {}
        for group in self._by_last.values():
            named: dict[str, list[NativeFound]] = {}
            for item in _ranked(group):
                named.setdefault("::".join(item.name), []).append(item)
            for name, several in named.items():
                single = len(several) == 1
                keys = [name] if single else [f"{name}#{n + 1}" for n in range(len(several))]
                found.update(zip(keys, map(NativeDefinition, several), strict=True))
        return MappingProxyType(found)

    # -- from statements to definitions -------------------------------------------------

    def _definitions(
        self, statement: Declaration, members: tuple[NativeFound, ...]
    ) -> Iterator[NativeFound]:
        head, kind = statement.head, statement.kind
        if kind is Opening.MACRO:
            yield self._made("macro", (head[0].text,), statement)
        elif kind is Opening.ENUMERATOR:
            yield self._made("enumerator", (*self._around(statement), head[0].text), statement)
        elif kind in (Opening.TYPE, Opening.ENUM):
            yield from self._type(statement, members)
        elif kind is Opening.FUNCTION or not stands_alone(head):
            reading = self._read(statement)
            if kind is Opening.FUNCTION and _REGISTERING.fullmatch(head[0].text):
                yield from self._registrations(statement)
            for name in reading.names:
                if name and name[-1]:
                    qualified = (*self._around(statement), *name)
                    yield self._made(_kind(statement, reading), qualified, statement, reading)

    def _read(self, statement: Declaration) -> Signature:
        in_type, body = statement.scope.kind is Opening.TYPE, statement.body is not None
        return self._grammar.read(statement.head, in_type=in_type, body=body)

    def _around(self, statement: Declaration) -> tuple[str, ...]:
        return statement.scope.qualified()

    def _type(
        self, statement: Declaration, members: tuple[NativeFound, ...]
    ) -> Iterator[NativeFound]:
        names = statement.opens.names if statement.opens is not None else ()
        kind = "enum" if statement.kind is Opening.ENUM else "type"
        if names:
            name = (*self._around(statement), *names)
            yield NativeFound(kind, name, statement, self._text, members=members)
        other = "alias" if statement.head[0].text == "typedef" else "variable"
        for extra in listed_names(statement.tail):
            if extra not in names[-1:]:
                yield self._made(other, (*self._around(statement), extra), statement)

    def _registrations(self, statement: Declaration) -> Iterator[NativeFound]:
        """Yield the ``m.def("name", ...)`` calls inside a function's body."""
        first, last = statement.body or (0, 0)
        code = [item for item in tokens(self._text.source, first, last) if item.kind != "comment"]
        ends = _call_ends(code)
        for at in range(1, len(code) - 2):
            called = [item.text for item in code[at - 1 : at + 2]] in ([".", "def", "("],)
            if called and code[at + 2].kind == "string":
                begin = code[at - 2] if at > 1 and code[at - 2].kind == "word" else code[at - 1]
                name = string_value(code[at + 2].text).partition("(")[0]
                end = ends.get(at + 1, last)
                call = Declaration(Opening.DECLARATION, statement.scope, (), begin.start, end)
                yield self._made("registration", (statement.head[0].text, name), call)

    def _made(
        self,
        kind: str,
        name: tuple[str, ...],
        statement: Declaration,
        reading: Signature | None = None,
    ) -> NativeFound:
        return NativeFound(kind, name[-_MAX_NAMES:], statement, self._text, reading)


def _call_ends(code: Sequence[Token]) -> Mapping[int, int]:
    """Return the end of each closing bracket by the index of its opening bracket."""
    ends: dict[int, int] = {}
    open_brackets: list[int] = []
    for at, item in enumerate(code):
        if item.text == "(":
            open_brackets.append(at)
        elif item.text == ")" and open_brackets:
            ends[open_brackets.pop()] = item.end
    return ends


def _kind(statement: Declaration, reading: Signature) -> str:
    """Return the kind of a declaration; ``prototype`` for a function defined elsewhere."""
    head = statement.head
    words = {token.text for token in head if token.kind == "word"}
    member = statement.scope.kind is Opening.TYPE
    if reading.kind == "function":
        settled = value_at(head) is not None and head[-1].text in ("default", "delete")
        return "function" if statement.body is not None or settled else "prototype"
    if reading.kind == "type":
        return "forward"
    if reading.kind == "alias":
        return "alias"
    elsewhere = "extern" in words or (member and "static" in words and not words & _INLINE)
    if elsewhere and not reading.values:
        return "extern"
    return "field" if member else "variable"


_INLINE = frozenset(("inline", "constexpr"))
_RANKS = MappingProxyType(
    {"alias": 1, "prototype": 2, "forward": 2, "extern": 2, "registration": 3}
)


def _ranked(items: Sequence[NativeFound]) -> list[NativeFound]:
    """Remove mere declarations of items that are also defined.

    Two items are the same if one qualified name is the end of the other, since the definition of a
    method may write out fewer or more of its namespaces.
    """
    best: dict[tuple[str, ...], int] = {}
    longer: dict[tuple[str, ...], int] = {}
    lowest = 3
    for item in items:
        rank = _RANKS.get(item.kind, 0)
        lowest = min(lowest, rank)
        best[item.name] = min(rank, best.get(item.name, rank))
        for at in range(len(item.name)):
            longer[item.name[at:]] = min(rank, longer.get(item.name[at:], rank))
    kept = []
    for item in items:
        rank = _RANKS.get(item.kind, 0)
        shorter = (best.get(item.name[at:], rank) for at in range(len(item.name)))
        other = min(longer[item.name], *shorter) if rank < 3 else lowest
        if other >= rank:
            kept.append(item)
    return kept


def _matching(items: Sequence[NativeFound], name: tuple[str, ...]) -> list[NativeFound]:
    """Return the items whose qualified name is, or else ends in, a name.

    Raises:
        SymbolError: The items have several qualified names.
    """
    found = [item for item in items if item.name[-len(name) :] == name]
    exact = [item for item in found if item.name == name]
    if exact:
        return exact
    if len(name) == 1:  # the name of a class does not mean its constructor
        found = [item for item in found if item.name[-2:] != name * 2] or found
    names = sorted({"::".join(item.name) for item in found})
    if len(names) > 1:
        listed = " or ".join(f"`{text}`" for text in names[:4])
        raise SymbolError(f"`{'::'.join(name)}` has several meanings: say {listed}", ambiguous=True)
    return found


@dataclass(frozen=True)
class NativeDefinition:
    """See `protocol.Definition`."""

    found: NativeFound

    @property
    def start(self) -> int:
        """Its first line, without ``template <...>``."""
        return self.found.start

    @property
    def end(self) -> int:
        """Its last line."""
        return self.found.end

    def missing(self, expects: Sequence[str]) -> tuple[str, ...]:
        """See `native_contents.missing_expectations`."""
        return missing_expectations(self.found, expects)

    def fingerprint(self) -> str:
        """See `native_contents.fingerprint`."""
        return fingerprint(self.found)

    def documentation(self) -> str:
        """See `native_contents.documentation_fingerprint`."""
        return documentation_fingerprint(self.found)

    def changes(self, later: Definition) -> tuple[str, ...]:
        """See `native_changes.summarise`."""
        if not isinstance(later, NativeDefinition):
            return ("language",)
        return summarise(self.found, later.found)

    def likeness(self, other: Definition) -> float:
        """See `native_changes.likeness`."""
        return likeness(self.found, other.found) if isinstance(other, NativeDefinition) else 0.0


class Native:
    """C++ and CUDA as a language of anchors."""

    name = "C++ or CUDA"

    def parse(self, source: bytes) -> NativeModule:
        """See `protocol.Language.parse`; raises `InputError` when tree-sitter is missing."""
        if b"\0" in source:
            raise UnparsableError("no C++ source: it contains NUL bytes")
        return NativeModule(_BYTE_ORDER_MARK.sub(b"   ", source, count=1), Grammar())

    def last_name(self, symbol: str) -> str:
        """See `protocol.Language.last_name`."""
        return symbol.split("::")[-1].partition("#")[0].lstrip("~").split()[-1]
