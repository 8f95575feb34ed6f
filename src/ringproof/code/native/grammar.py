"""Reads the declarations of a C++ or CUDA file from its tree: names, kinds and signatures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ringproof.code.definitions import UnparsableError
from ringproof.code.native.masking import MaskedSource
from ringproof.code.native.tokens import code_tokens, spelled, tokens
from ringproof.errors import InputError

if TYPE_CHECKING:
    from tree_sitter import Node

PACKAGES = ("tree-sitter", "tree-sitter-cuda")
MAX_DEPTH = 64
"""Names of scopes around a declaration; more are refused."""
MAX_DECLARATIONS = 100_000
"""Declarations in one file, which bounds the memory a hostile file takes; more are refused."""
_TYPES = frozenset(("class_specifier", "struct_specifier", "union_specifier", "enum_specifier"))
_LISTS = frozenset(("declaration_list", "field_declaration_list", "enumerator_list", "ERROR"))
_AROUND = ("template_declaration", "linkage_specification")
_ALIASES = frozenset(("type_definition", "alias_declaration", "namespace_alias_definition"))
_DECLARATIONS = frozenset(
    ("function_definition", "declaration", "field_declaration", "template_instantiation")
)
_PARAMETERS = frozenset(
    ("parameter_declaration", "optional_parameter_declaration", "variadic_parameter_declaration")
)


@dataclass(frozen=True)
class Parameter:
    """Parameter of a function. The name of an unnamed parameter is its position, ``(2)``."""

    name: str
    type: str
    default: str | None


@dataclass(frozen=True)
class Declared:
    """One declared name.

    Attributes:
        kind: ``function``, ``type``, ``enum``, ``enumerator``, ``field``, ``variable``, ``alias``,
            ``concept``, ``macro``, ``registration``, or one of the mere declarations ``prototype``,
            ``forward`` and ``extern``.
        name: Qualified name, without template arguments.
        begin, end: Range of bytes, from ``template`` to the closing brace or semicolon.
        proper: Offset after ``template <...>`` and ``[[...]]``.
        before: Specifiers and type, or the result of a function.
        after: Specifiers after the parameters: ``const``, ``noexcept``, ``override``.
        value: Initializer.
        bases: Base classes.
        body: Range of bytes inside the braces of a function.
        members: Direct members of a class or an enumeration.
    """

    kind: str
    name: tuple[str, ...]
    begin: int
    proper: int
    end: int
    before: str = ""
    parameters: tuple[Parameter, ...] = ()
    after: str = ""
    value: str = ""
    bases: str = ""
    body: tuple[int, int] | None = None
    members: list[Declared] = field(default_factory=list, repr=False)


@dataclass(frozen=True)
class _Scope:
    """Where declarations stand: the names around them, and the list of the type's members."""

    names: tuple[str, ...] = ()
    members: list[Declared] | None = None


def declarations(source: bytes) -> Iterator[Declared]:
    """Yield everything that a file declares.

    Raises:
        InputError: tree-sitter or its grammar is not installed, or too old.
        UnparsableError: There are too many declarations, or too many scopes in one another.
    """
    masked = MaskedSource(source)
    for name, begin, end in masked.defines:
        yield Declared("macro", (name,), begin, begin, end)
    root = _parsed(masked.text)
    for blank_more in (masked.blank_bodies, masked.blank_macros):
        if root.has_error:
            blank_more()
            root = _parsed(masked.text)
    pending: list[tuple[Node, _Scope]] = [(root, _Scope())]
    reader = _Reader(source, masked.begins, pending)
    count = len(masked.defines)
    while pending:
        node, scope = pending.pop()
        count += node.child_count
        if count > MAX_DECLARATIONS:
            raise UnparsableError(f"more than {MAX_DECLARATIONS:,} declarations")
        if len(scope.names) > MAX_DEPTH:
            raise UnparsableError(f"scopes nested more than {MAX_DEPTH} deep")
        made = [item for child in node.children for item in reader.read(child, scope)]
        if scope.members is not None:
            scope.members.extend(made)
        yield from made


def _parsed(text: bytearray) -> Node:
    try:
        import tree_sitter
        import tree_sitter_cuda

        language = tree_sitter.Language(tree_sitter_cuda.language())
        return tree_sitter.Parser(language).parse(bytes(text)).root_node
    except (ImportError, ValueError, TypeError) as error:
        problem = f"C++ and CUDA files need {' and '.join(PACKAGES)}: {error}"
        remedy = f"install them with `pip install {' '.join(PACKAGES)}`"
        raise InputError("anchors", None, problem, remedy) from error


@dataclass(frozen=True)
class _Reader:
    """Reads nodes, and adds the lists of declarations inside them to ``pending``."""

    source: bytes
    begins: Mapping[int, int]
    pending: list[tuple[Node, _Scope]]

    def read(self, node: Node, scope: _Scope) -> Iterator[Declared]:
        """Yield what one node declares."""
        while node.type in _AROUND:
            inner = node.child_by_field_name("body") or node.children[-1]
            node = node.children[-2] if inner.type == ";" and node.child_count > 1 else inner
        if node.type in _LISTS:
            self.pending.append((node, scope))
        elif node.type == "namespace_definition":
            name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
            names = self._names(name) if name is not None else ()
            if body is not None:
                self.pending.append((body, _Scope((*scope.names, *names))))
        elif node.type == "enumerator":
            name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
            if name is not None:
                names = (*scope.names, *self._names(name))
                text = self._text(value) if value is not None else ""
                yield Declared("enumerator", names, *self._span(node), value=text)
        elif node.type in _TYPES:
            yield from self._type(node, node, scope)
        elif node.type in (*_ALIASES, "concept_definition"):
            yield from self._alias(node, scope)
        elif node.type in _DECLARATIONS:
            inner_type = node.child_by_field_name("type")
            if inner_type is not None and inner_type.type in _TYPES:
                yield from self._type(inner_type, node, scope)
            yield from self._declared(node, scope)

    def _start(self, node: Node) -> int:
        """Return the offset at which a node begins, blanked macros included."""
        start = node.start_byte
        while start in self.begins:
            start = self.begins[start]
        return start

    def _span(self, node: Node) -> tuple[int, int, int]:
        """Return ``begin``, ``proper`` and ``end`` of a declaration."""
        parts = (part for part in node.children if part.type != "attribute_declaration")
        proper = self._start(next(parts, node))
        is_function = node.type == "function_definition"
        while node.parent is not None and node.parent.type in _AROUND:
            node = node.parent
            proper = node.start_byte if node.type == "linkage_specification" else proper
        after, end = node.next_sibling, node.end_byte
        # The semicolon of a type is not in its node.
        is_open = self.source[end - 1 : end] != b";" and not is_function
        if is_open and after is not None and self.source[end : after.end_byte].strip() == b";":
            end = after.end_byte
        return self._start(node), proper, end

    def _type(self, node: Node, whole: Node, scope: _Scope) -> Iterator[Declared]:
        """Yield a type that is defined, or declared alone.

        An unnamed type has the name of the first declarator (``typedef struct {...} Name;``).
        """
        body = node.child_by_field_name("body")
        name = node.child_by_field_name("name")
        declarators = whole.children_by_field_name("declarator") if whole is not node else []
        if name is None and body is not None and declarators:
            name = _unwrapped(declarators[0])[0]
        names = self._names(name) if name is not None else ()
        span = self._span(whole)
        if body is None:
            if names and not declarators and whole.type != "template_instantiation":
                yield Declared("forward", (*scope.names, *names), *span)
            return
        members: list[Declared] = []
        kind = "enum" if node.type == "enum_specifier" else "type"
        if names:
            bases = next((c for c in node.children if c.type == "base_class_clause"), None)
            listed = self._text(bases).removeprefix(":") if bases is not None else ""
            qualified = (*scope.names, *names)
            yield Declared(kind, qualified, *span, bases=listed, members=members)
        self.pending.append((body, _Scope((*scope.names, *names), members)))

    def _alias(self, node: Node, scope: _Scope) -> Iterator[Declared]:
        inner = node.child_by_field_name("type")
        declarators = node.children_by_field_name("declarator")
        if inner is not None and inner.type in _TYPES and inner.child_by_field_name("body"):
            unnamed = inner.child_by_field_name("name") is None
            yield from self._type(inner, node, scope)
            declarators = declarators[1:] if unnamed else declarators
        elif not declarators:
            declarators = node.children_by_field_name("name")
        kind = "alias" if node.type in _ALIASES else "variable"
        span = self._span(node)
        for declarator in declarators:
            name = self._names(_unwrapped(declarator)[0])
            if name:
                yield Declared(kind, (*scope.names, *name), *span)

    def _declared(self, node: Node, scope: _Scope) -> Iterator[Declared]:
        """Yield the functions and variables of a declaration."""
        declarators = node.children_by_field_name("declarator")
        span = self._span(node)
        for declarator in declarators:
            name, function, value = _unwrapped(declarator)
            names = self._names(name)
            if not names:
                continue
            qualified = (*scope.names, *names)
            if function is not None:
                yield self._function(node, qualified, name, function)
                continue
            value = value or node.child_by_field_name("default_value")
            text = self._text(value) if value is not None else ""
            before = self._line(node.start_byte, declarators[0].start_byte)
            kind = self._variable_kind(span[0], name.start_byte, scope, text)
            yield Declared(kind, qualified, *span, before, value=text)

    def _variable_kind(self, begin: int, name: int, scope: _Scope, value: str) -> str:
        words = {token.text for token in tokens(self.source, begin, name) if token.kind == "word"}
        member = scope.members is not None
        shared = member and "static" in words and not words & {"inline", "constexpr"}
        if ("extern" in words or shared) and not value:
            return "extern"
        return "field" if member else "variable"

    def _function(
        self, node: Node, qualified: tuple[str, ...], name: Node, function: Node
    ) -> Declared:
        span = self._span(node)
        body = node.child_by_field_name("body")
        listed = function.child_by_field_name("parameters")
        settled = any(child.type.endswith("_method_clause") for child in node.children)
        inside = None if body is None else (body.start_byte + 1, body.end_byte - 1)
        after = ""
        if listed is not None:
            last = node.end_byte if body is None else function.end_byte
            after = self._line(listed.end_byte, last).removesuffix(";")
        return Declared(
            "function" if body is not None or settled else "prototype",
            qualified,
            *span,
            before=self._line(node.start_byte, min(name.start_byte, function.start_byte)),
            parameters=tuple(self._parameters(listed)) if listed is not None else (),
            after=after,
            body=inside,
        )

    def _parameters(self, listed: Node) -> Iterator[Parameter]:
        children = [node for node in listed.children if node.type in (*_PARAMETERS, "...")]
        for place, node in enumerate(children, 1):
            declarator = node.child_by_field_name("declarator")
            default = node.child_by_field_name("default_value")
            name = _unwrapped(declarator)[0] if declarator is not None else None
            start, end = self._start(node), default.start_byte if default else node.end_byte
            if name is None or not name.type.endswith("identifier"):
                kind, text = self._line(start, end), f"({place})"
            else:
                before = self.source[start : name.start_byte]
                joined = before + b" " + self.source[name.end_byte : end]
                kind, text = spelled(code_tokens(joined, 0, len(joined))), self._text(name)
            value = self._text(default) if default is not None else None
            yield Parameter(text, kind.removesuffix("="), value)

    def _text(self, node: Node) -> str:
        return self._line(node.start_byte, node.end_byte)

    def _line(self, start: int, end: int) -> str:
        return spelled(code_tokens(self.source, start, end))

    def _names(self, node: Node) -> tuple[str, ...]:
        """Split ``a::B<T>::operator==`` into parts without template arguments."""
        parts = list(tokens(self.source, node.start_byte, node.end_byte))
        names: list[str] = []
        angles = 0
        for at, token in enumerate(parts):
            angles += (token.text == "<") - (token.text == ">")
            if token.text == "operator":
                call = [item.text for item in parts[at + 1 : at + 3]] == ["(", ")"]
                last = (i for i in range(at, len(parts)) if parts[i].text == "(")
                rest = parts[at : next(last, len(parts))]
                return (*names, "operator()" if call else spelled(rest))
            if token.kind == "word" and token.text != "template" and not angles:
                names.append(f"~{token.text}" if at and parts[at - 1].text == "~" else token.text)
        return tuple(names)


def _unwrapped(declarator: Node) -> tuple[Node, Node | None, Node | None]:
    """Return the name inside a declarator, its function declarator, and its initializer."""
    node, function, value = declarator, None, None
    while True:
        if node.type == "init_declarator":
            value = node.child_by_field_name("value")
        elif node.type == "function_declarator":
            function = node
        elif node.type == "parenthesized_declarator":
            function = None  # a pointer to a function
        elif node.type == "operator_cast":
            return node, node.child_by_field_name("declarator"), value
        elif not node.type.endswith("_declarator"):
            return node, function, value
        inside = node.child_by_field_name("declarator")
        if inside is None:
            ends = ("declarator", "identifier", "_name")
            inside = next((c for c in reversed(node.named_children) if c.type.endswith(ends)), None)
        if inside is None:
            return node, function, value
        node = inside
