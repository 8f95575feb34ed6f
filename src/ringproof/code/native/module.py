"""C++ and CUDA files.

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

import bisect
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from ringproof.code.definitions import (
    Definition,
    DefinitionSummary,
    SymbolError,
    UnparsableError,
    Words,
    chosen,
    numbered,
    shortened,
)
from ringproof.code.native.grammar import Declared, declarations
from ringproof.code.native.tokens import (
    Token,
    after_brackets,
    code_tokens,
    spelled,
    string_value,
    tokens,
)

NATIVE_ENDINGS = (".cu", ".cuh", ".cpp", ".cc", ".cxx", ".c", ".hpp", ".hxx", ".hh", ".h")
_BYTE_ORDER_MARK = re.compile(rb"\A\xef\xbb\xbf")
_REGISTERING = re.compile(r"(?:PYBIND11_\w*MODULE|TORCH_LIBRARY)\w*")
_JOINTS = frozenset(("::", ".", "->"))
_BEHIND = re.compile(
    rb"[ \t,;]*(//[/!]<[^\n]*(?:\n[ \t]*//[/!]<[^\n]*)*|/\*[*!]<.*?\*/)", re.DOTALL
)
_ORNAMENT = re.compile(r"^[ \t]*(?:/\*[*!]*<?|\*+/|\*+|//[/!]*<?)|\*+/[ \t]*$", re.MULTILINE)
_MAX_REMARK_BYTES = 100_000
_CHECK = re.compile(r"[A-Z0-9_]*(?:CHECK|ERROR|ASSERT|REQUIRE)\w*|assert|static_assert")
_LITERALS = frozenset(("string", "char", "number"))
_FUNCTIONS = frozenset(("function", "prototype"))
_VALUES = frozenset(("variable", "field", "extern"))
# Kinds with enough code to be compared by code alone; others also by name and documentation.
_LARGE = frozenset(("function", "prototype", "type", "enum", "registration"))
_RANKS = MappingProxyType(
    {"alias": 1, "prototype": 2, "forward": 2, "extern": 2, "registration": 3}
)


def _encoded(text: str) -> bytes:
    data = text.encode("utf-8", "backslashreplace")
    return b"%d:%s" % (len(data), data)


class NativeDefinition(Definition):
    """A definition in a C++ or CUDA file."""

    def __init__(self, declared: Declared, source: bytes, starts: Sequence[int]) -> None:
        self.declared, self._source = declared, source
        self.start = bisect.bisect_right(starts, declared.proper) + 1
        self.end = bisect.bisect_right(starts, max(declared.begin, declared.end - 1)) + 1
        self.is_class = declared.kind in ("type", "enum")
        self.is_small = declared.kind not in _LARGE
        self.family = "function" if declared.kind in _FUNCTIONS else declared.kind
        self.name = declared.name[-1]

    def _code(self) -> tuple[Token, ...]:
        return code_tokens(self._source, self.declared.begin, self.declared.end)

    def words(self) -> Words:
        """Return identifiers, chains with the operators that join them, and string literals."""
        parts = self._code()
        names = {token.text for token in parts if token.kind == "word"}
        texts = [string_value(token.text) for token in parts if token.kind == "string"]
        return Words(names, _chains(parts), texts)

    def split(self, item: str) -> tuple[str, ...]:
        """Split a chain of identifiers into identifiers and operators."""
        return tuple(token.text for token in tokens(item.encode()))

    def code(self) -> Iterator[bytes]:
        """Yield the tokens without comments.

        The parser's tree is not used because a new version of the grammar must not look like a
        change.
        """
        return (_encoded(token.text) for token in self._code())

    def compared_code(self) -> Iterator[bytes]:
        """See `Definition`."""
        own = _encoded(self.name.lstrip("~"))
        return (b"@" if part == own else part for part in self.code())

    def docstrings(self) -> Iterator[str]:
        """Yield the comment directly above, or after it as ``//!<``, on one line."""
        above = _above(self._source, self.declared.begin)
        end = self.declared.end
        behind = _BEHIND.match(self._source, end, min(len(self._source), end + _MAX_REMARK_BYTES))
        raw = above + b"\n" + (behind.group(1) if behind else b"")
        yield " ".join(_ORNAMENT.sub(" ", raw.decode("utf-8", "backslashreplace")).split())

    def summary(self) -> DefinitionSummary:
        """See `Definition`; ``raises`` are failed checks: ``throw``, assertions and the like."""
        declared = self.declared
        counted = {
            "bases": Counter([shortened(declared.bases)] if declared.bases else []),
            "raises": _checks(self._code())[0],
            "literals": self._literals(declared),
        }
        return DefinitionSummary(
            declared.kind, self._signature(), self._settings(declared), counted
        )

    def _signature(self) -> Mapping[str, str]:
        declared = self.declared
        if declared.members:
            return {  # overloads have the same name
                f"{item.name[-1]}{'()' * (item.kind in _FUNCTIONS)}": (
                    item.before if item.kind == "field" else ""
                )
                for item in declared.members
            }
        if declared.kind in _VALUES:
            return {declared.name[-1]: declared.before}
        if declared.kind not in _FUNCTIONS:
            return {}
        head = code_tokens(self._source, declared.begin, declared.proper)
        sides = {"template": spelled(head), "after": declared.after}
        parameters = {parameter.name: parameter.type for parameter in declared.parameters}
        named = {name: text for name, text in sides.items() if text}
        return {**parameters, "return": declared.before, **named}

    def _settings(self, declared: Declared) -> Mapping[str, str]:
        """Return default values of parameters, or values of members and constants."""
        if declared.members:
            parts = (item for item in declared.members if item.kind not in _FUNCTIONS)
            return {name: text for item in parts for name, text in self._settings(item).items()}
        if declared.kind in _FUNCTIONS:
            given = declared.parameters
            return {item.name: item.default for item in given if item.default is not None}
        name, value = declared.name[-1], declared.value
        if declared.kind in ("macro", "alias"):
            skipped = 3 if declared.kind == "macro" else 0
            code = code_tokens(self._source, declared.begin, declared.end)
            return {name: spelled(code[skipped:])}
        return {name: value} if value else {}

    def _literals(self, declared: Declared) -> Counter[str]:
        """Count the literals of function bodies. Those of signatures count as defaults."""
        counts: Counter[str] = Counter()
        for item in declared.members:
            counts.update(self._literals(item))
        if declared.body is not None:
            parts = code_tokens(self._source, *declared.body)
            _, said = _checks(parts)
            kept = (token for at, token in enumerate(parts) if at not in said)
            counts.update(shortened(token.text) for token in kept if token.kind in _LITERALS)
        return counts


class NativeModule:
    """A parsed C++ or CUDA file.

    Raises:
        UnparsableError: It is binary, or it has too many scopes or declarations.
        InputError: tree-sitter is not installed.
    """

    def __init__(self, source: bytes) -> None:
        if b"\0" in source:
            raise UnparsableError("no C++ source: it contains NUL bytes")
        self._source = _BYTE_ORDER_MARK.sub(b"   ", source, count=1)
        self._starts = tuple(found.end() for found in re.finditer(b"\n", self._source))
        found: list[Declared] = []
        for item in declarations(self._source):
            found.append(item)
            if item.body is not None and _REGISTERING.fullmatch(item.name[-1]):
                found += _registrations(self._source, item)
        self._by_last: dict[str, list[Declared]] = {}
        for item in sorted(found, key=lambda item: (item.begin, item.end)):
            self._by_last.setdefault(item.name[-1], []).append(item)

    def find(self, symbol: str) -> NativeDefinition:
        """See `Module.find`."""
        written, _, number = symbol.partition("#")
        name = tuple(written.split("::"))
        several = _matching(_ranked(self._by_last.get(name[-1], ())), name)
        definitions = [self._definition(item) for item in several]
        return chosen(definitions, written, number, "the file")

    def catalog(self) -> Mapping[str, Definition]:
        """See `Module.catalog`. Names are fully qualified."""
        found: dict[str, Definition] = {}
        for group in self._by_last.values():
            named: dict[str, list[NativeDefinition]] = {}
            for item in _ranked(group):
                named.setdefault("::".join(item.name), []).append(self._definition(item))
            for name, several in named.items():
                found.update(numbered(name, several))
        return MappingProxyType(found)

    def _definition(self, declared: Declared) -> NativeDefinition:
        return NativeDefinition(declared, self._source, self._starts)


def _registrations(source: bytes, module: Declared) -> Iterator[Declared]:
    """Yield the ``m.def("name", ...)`` calls inside a function's body."""
    code = code_tokens(source, *(module.body or (0, 0)))
    past = 0
    for at in range(1, len(code) - 2):
        called = [item.text for item in code[at - 1 : at + 2]] == [".", "def", "("]
        if at >= past and called and code[at + 2].kind == "string":
            named = at > 1 and code[at - 2].kind == "word"
            begin = code[at - 2 if named else at - 1].start
            name = string_value(code[at + 2].text).partition("(")[0]
            past = after_brackets(code, at + 1)
            end = code[past - 1].end
            yield Declared("registration", (module.name[-1], name), begin, begin, end)


def _ranked(items: Sequence[Declared]) -> list[Declared]:
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


def _matching(items: Sequence[Declared], name: tuple[str, ...]) -> list[Declared]:
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


def _chains(parts: Sequence[Token]) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    chain: list[str] = []
    for token in parts:
        joint = token.kind == "mark" and token.text in _JOINTS
        goes_on = bool(chain) and (chain[-1] in _JOINTS) != joint
        if goes_on and (joint or token.kind == "word"):
            chain.append(token.text)
        else:
            found.append(tuple(chain))
            chain = [token.text] if token.kind == "word" else []
    return [chain for chain in (*found, tuple(chain)) if len(chain) > 1]


def _above(source: bytes, begin: int) -> bytes:
    """Return the comment whose last line is directly above a position, or nothing."""
    before = source[max(0, begin - _MAX_REMARK_BYTES) : begin]
    code = before.rstrip(b" \t\r\n")
    if before[len(code) :].count(b"\n") > 1:
        return b""
    if code.endswith(b"*/"):
        start = code.rfind(b"/*")
        alone = not code[code.rfind(b"\n", 0, max(start, 0)) + 1 : start].strip()
        is_behind = code[start + 3 : start + 4] == b"<"
        return code[start:] if start >= 0 and alone and not is_behind else b""
    lines: list[bytes] = []
    for line in reversed(code.split(b"\n")):
        stripped = line.strip()
        if not stripped.startswith(b"//") or stripped[3:4] == b"<":
            break
        lines.append(line)
    return b"\n".join(reversed(lines))


def _checks(parts: Sequence[Token]) -> tuple[Counter[str], frozenset[int]]:
    """Return the failed checks of a body, and the indices of their message literals."""
    counts: Counter[str] = Counter()
    said: set[int] = set()
    past = 0
    for at, token in enumerate(parts[:-1]):
        if token.kind != "word" or at < past:
            continue
        if token.text == "throw":
            end = next((i for i in range(at, len(parts)) if parts[i].text in ("(", ";")), at)
            counts[f"throw {shortened(spelled(parts[at + 1 : end]))}"] += 1
        elif parts[at + 1].text == "(" and _CHECK.fullmatch(token.text):
            past = after_brackets(parts, at + 1)
            inside = [i for i in range(at + 1, past) if parts[i].kind == "string"]
            said.update(inside)
            words = " ".join(string_value(parts[i].text) for i in inside)
            counts[f"{token.text} {shortened(repr(words))}" if words else token.text] += 1
    return counts, frozenset(said)
