"""Reads one C++ or CUDA declaration with tree-sitter: declared names and signature.

Each declaration is parsed alone and without its body, so that errors do not affect others. Words
that the grammar does not know, mostly macros before the type, are removed for a second attempt. If
that fails, the name is guessed from the brackets and only the parameters are parsed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ringproof.errors import InputError
from ringproof.harness.anchors.native.heads import (
    MACRO_NAME,
    after_angles,
    after_brackets,
    guessed_name,
    outer,
    prefix_length,
)
from ringproof.harness.anchors.native.tokens import Token, code_tokens, spelled, tokens

if TYPE_CHECKING:
    from tree_sitter import Node

PACKAGES = ("tree-sitter", "tree-sitter-cuda")
_WRAPPERS = frozenset(("template_declaration", "linkage_specification"))
_TYPES = frozenset(("class_specifier", "struct_specifier", "union_specifier", "enum_specifier"))
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
    default: str | None = None


@dataclass(frozen=True)
class Signature:
    """Names and signature of a declaration.

    Attributes:
        kind: ``function``, ``variable``, ``alias``, ``type``; ``nothing`` for a macro's call,
            an assertion, a friend and the like.
        names: Qualified names without template arguments; several for ``int a, b``.
        before: Specifiers and type, or the result of a function.
        parameters: Parameters of a function.
        after: Specifiers after the parameters: ``const``, ``noexcept``, ``override``.
        values: Initializers by name.
    """

    kind: str
    names: tuple[tuple[str, ...], ...] = ()
    before: str = ""
    parameters: tuple[Parameter, ...] = ()
    after: str = ""
    values: tuple[tuple[str, str], ...] = ()


class Grammar:
    """Parser, which is created when the first native file is read.

    Raises:
        InputError: tree-sitter or its grammar is not installed, or too old.
    """

    def __init__(self) -> None:
        try:
            import tree_sitter
            import tree_sitter_cuda

            language = tree_sitter.Language(tree_sitter_cuda.language())
            self._parser = tree_sitter.Parser(language)
        except (ImportError, ValueError, TypeError) as error:
            problem = f"C++ and CUDA files need {' and '.join(PACKAGES)}: {error}"
            remedy = f"install them with `pip install {' '.join(PACKAGES)}`"
            raise InputError("anchors", None, problem, remedy) from error

    def read(self, head: Sequence[Token], *, in_type: bool, body: bool) -> Signature:
        """Read a declaration from its tokens up to the body.

        Args:
            in_type: Whether it is a member, which may be a constructor or a bit field.
            body: Whether a function body follows.
        """
        for attempt in (tuple(head), _without_macros(head)):
            reading = self._parsed(attempt, in_type=in_type, body=body)
            if reading is not None:
                return reading
        name = guessed_name(head)
        places = [index for index in outer(head) if head[index].text == "("]
        called = [at for at in places if at and name and head[at - 1].text == name[-1]]
        if not called:
            return Signature("function" if body else "variable" if name else "nothing", (name,))
        return self._rebuilt(head, name, called[0])

    def _parsed(self, head: Sequence[Token], *, in_type: bool, body: bool) -> Signature | None:
        text = _written(head) + (" { }" if body else " ;")
        source = (f"struct S {{ {text} }} ;" if in_type else text).encode("utf-8", "replace")
        root = self._parser.parse(source).root_node
        if _is_confused(root):
            return None
        node: Node | None = root.named_child(0)
        if in_type and node is not None:
            inside = node.child_by_field_name("body")
            node = inside.named_child(0) if inside is not None else None
        while node is not None and node.type in _WRAPPERS:
            node = node.child_by_field_name("body") or node.named_child(node.named_child_count - 1)
        return _reading(node, source) if node is not None else Signature("nothing")

    def _rebuilt(self, head: Sequence[Token], name: tuple[str, ...], at: int) -> Signature:
        """Build a function from a name and the brackets after it."""
        end = after_brackets(head, at)
        start = prefix_length(head)
        source = f"void f {_written(head[at:end])} ;".encode("utf-8", "replace")
        root = self._parser.parse(source).root_node
        found = next((node for node in _walk(root) if node.type == "parameter_list"), None)
        listed = tuple(_parameters(found, source)) if found is not None else ()
        before = head[start : at - 2 * len(name) + 1]
        return Signature("function", (name,), spelled(before), listed, spelled(head[end:]))


def _written(head: Sequence[Token]) -> str:
    """Join tokens to code. Adjacent tokens stay adjacent, others are separated by one space."""
    parts: list[str] = []
    last = -1
    for token in head:
        parts.append(token.text if token.start == last else f" {token.text}")
        last = token.end
    return "".join(parts)


def _without_macros(head: Sequence[Token]) -> tuple[Token, ...]:
    """Remove macros before another word, as in ``NAME_API void f``."""
    kept: list[Token] = []
    places = frozenset(outer(head))
    at = 0
    while at < len(head):
        end = at + 1
        is_macro = at in places and MACRO_NAME.fullmatch(head[at].text) is not None
        if is_macro and end < len(head) and head[end].text == "(":
            end = after_brackets(head, end)
        if is_macro and end < len(head) and head[end].kind == "word":
            at = end
        else:
            kept.append(head[at])
            at += 1
    return tuple(kept)


def _walk(root: Node) -> Iterator[Node]:
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(node.children))


def _is_confused(root: Node) -> bool:
    """Return whether the tree has errors, except those caused by a list as a default value."""
    if not root.has_error:
        return False
    return any(
        node.type == "ERROR" or (node.is_missing and node.type != "type_identifier")
        for node in _walk(root)
    )


def _reading(node: Node, source: bytes) -> Signature:
    if node.type in _TYPES:
        name = node.child_by_field_name("name")
        return (
            Signature("type", (_names(name, source),)) if name is not None else Signature("nothing")
        )
    if node.type in _ALIASES or node.type == "concept_definition":
        names = node.children_by_field_name("declarator") or node.children_by_field_name("name")
        kind = "alias" if node.type in _ALIASES else "variable"
        return Signature(kind, tuple(_names(_unwrapped(name)[0], source) for name in names))
    if node.type not in _DECLARATIONS:
        return Signature("nothing")
    declarators = node.children_by_field_name("declarator")
    if not declarators:
        inner = node.child_by_field_name("type")
        is_type = inner is not None and inner.type in _TYPES
        return _reading(inner, source) if inner is not None and is_type else Signature("nothing")
    name, function, _ = _unwrapped(declarators[0])
    if function is None:
        return _variables(node, declarators, source)
    listed = function.child_by_field_name("parameters")
    start = min(name.start_byte, function.start_byte)
    end = node.end_byte if node.child_by_field_name("body") is None else function.end_byte
    after = _line(source, listed.end_byte if listed is not None else end, end)
    return Signature(
        "function",
        (_names(name, source),),
        _line(source, node.start_byte, start),
        tuple(_parameters(listed, source)) if listed is not None else (),
        after.removesuffix(";"),
    )


def _variables(node: Node, declarators: Sequence[Node], source: bytes) -> Signature:
    names, values = [], []
    for declarator in declarators:
        name, _, value = _unwrapped(declarator)
        names.append(_names(name, source))
        value = value or node.child_by_field_name("default_value")
        if value is not None:
            text = _line(source, value.start_byte, value.end_byte)
            values.append(("::".join(names[-1]), text))
    before = _line(source, node.start_byte, declarators[0].start_byte)
    return Signature("variable", tuple(names), before, values=tuple(values))


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
            candidates = [child for child in node.named_children if _is_declarator(child)]
            inside = candidates[-1] if candidates else None
        if inside is None:
            return node, function, value
        node = inside


def _is_declarator(node: Node) -> bool:
    return node.type.endswith(("declarator", "identifier", "_name"))


def _parameters(listed: Node, source: bytes) -> Iterator[Parameter]:
    children = [node for node in listed.children if node.type in (*_PARAMETERS, "...")]
    for place, node in enumerate(children, 1):
        declarator = node.child_by_field_name("declarator")
        default = node.child_by_field_name("default_value")
        name = _unwrapped(declarator)[0] if declarator is not None else None
        end = default.start_byte if default is not None else node.end_byte
        if name is None or not name.type.endswith("identifier"):
            type_text, text = _line(source, node.start_byte, end), f"({place})"
        else:
            before = source[node.start_byte : name.start_byte]
            joined = before + b" " + source[name.end_byte : end]
            type_text = _line(joined, 0, len(joined))
            text = _line(source, name.start_byte, name.end_byte)
        value = _line(source, default.start_byte, default.end_byte) if default is not None else None
        yield Parameter(text, type_text.removesuffix("="), value)


def _line(source: bytes, start: int, end: int) -> str:
    return spelled(code_tokens(source, start, end))


def _names(node: Node, source: bytes) -> tuple[str, ...]:
    """Split ``a::B<T>::operator==`` into parts without template arguments."""
    parts = list(tokens(source, node.start_byte, node.end_byte))
    names: list[str] = []
    at = 0
    while at < len(parts):
        text = parts[at].text
        if text == "operator":
            names.append(_operator(parts[at:]))
            break
        if text == "<":
            at = after_angles(parts, at)
            continue
        if parts[at].kind == "word" and text != "template":
            tilde = "~" if at and parts[at - 1].text == "~" else ""
            names.append(tilde + text)
        at += 1
    return tuple(names)


def _operator(parts: Sequence[Token]) -> str:
    if [token.text for token in parts[1:3]] == ["(", ")"]:
        return "operator()"
    ends = (index for index, token in enumerate(parts) if token.text == "(")
    return spelled(parts[: next(ends, len(parts))])
