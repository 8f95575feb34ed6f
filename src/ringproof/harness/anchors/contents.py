"""Identifiers, strings and fingerprint of a Python definition."""

from __future__ import annotations

import ast
import hashlib
from collections import deque
from collections.abc import Iterator, Sequence

from ringproof.harness.anchors.symbols import is_docstring

_HOLDERS = (ast.stmt, ast.excepthandler, ast.match_case)
# Fields that do not affect the meaning. Positions are attributes and not fields.
_IGNORED_FIELDS = frozenset(("ctx", "kind", "type_comment", "type_ignores"))


def missing_expectations(nodes: Sequence[ast.AST], expects: Sequence[str]) -> tuple[str, ...]:
    """Return the expectations that do not occur inside the nodes.

    An item occurs as an identifier (name, attribute, parameter, keyword, definition, import), as a
    dotted chain of them (``config.cp_comm_type``), or as a part of a string literal: docstrings
    and the literal parts of f-strings included, white space folded. Comments never count.
    """
    if not expects:
        return ()
    chains: set[tuple[str, ...]] = set()
    texts: list[str] = []
    for root in nodes:
        for node in ast.walk(root):
            chains.update(_identifiers(node))
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(_folded(node.value))
    names = {name for chain in chains for name in chain}
    return tuple(item for item in expects if not _occurs(_folded(item), names, chains, texts))


def _occurs(item: str, names: set[str], chains: set[tuple[str, ...]], texts: Sequence[str]) -> bool:
    parts = tuple(item.split("."))
    if len(parts) == 1 and item in names:
        return True
    if len(parts) > 1 and any(contains(chain, parts) for chain in chains):
        return True
    return any(item in text for text in texts)


def contains(chain: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    """Return whether ``parts`` occur in ``chain`` side by side and in this order."""
    width = len(parts)
    return any(chain[start : start + width] == parts for start in range(len(chain) - width + 1))


def _folded(text: str) -> str:
    return " ".join(text.split())


def _identifiers(node: ast.AST) -> Iterator[tuple[str, ...]]:
    if isinstance(node, ast.Name):
        yield (node.id,)
    elif isinstance(node, ast.Attribute):
        yield _chain(node)
    elif isinstance(node, (ast.arg, ast.keyword)):
        if node.arg is not None:
            yield (node.arg,)
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield (node.name,)
    elif isinstance(node, ast.alias):
        yield tuple(node.name.split("."))
        if node.asname is not None:
            yield (node.asname,)


def _chain(node: ast.Attribute) -> tuple[str, ...]:
    """Split ``a.b.c`` into parts, without a call or an index at its start."""
    parts: list[str] = []
    current: ast.expr = node
    while isinstance(current, ast.Attribute):
        parts.append(current.attr)
        current = current.value
    if isinstance(current, ast.Name):
        parts.append(current.id)
    return tuple(reversed(parts))


def fingerprint(nodes: Sequence[ast.AST]) -> str:
    """Return the SHA-256 of the syntax tree without positions, comments and docstrings.

    `ast.dump` is not used because its text differs between Python versions. Empty fields are left
    out, so that a field that a later Python adds does not change the fingerprint until it is used.
    The function is iterative because a tree can be deeper than the recursion limit.
    """
    digest = hashlib.sha256()
    stack: list[object] = [node for node in reversed(nodes) if not is_docstring(node)]
    while stack:
        current = stack.pop()
        if isinstance(current, _Close):
            digest.update(b")")
        elif isinstance(current, ast.AST):
            digest.update(f"({type(current).__name__}".encode())
            stack.append(_Close())
            stack.extend(reversed(list(_children(current))))
        else:
            digest.update(f" {current!r}".encode("utf-8", "backslashreplace"))
    return digest.hexdigest()


class _Close:
    """Marks the end of a node on the stack."""


class _Label(str):
    """Name of a field on the stack, distinguished from string values by a dot."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f".{self}"


def _children(node: ast.AST) -> Iterator[object]:
    for name, value in ast.iter_fields(node):
        if name in _IGNORED_FIELDS or value is None or value == []:
            # `Constant.value` may be None itself; any other missing field means nothing.
            if isinstance(node, ast.Constant) and name == "value":
                yield _Label("None")
            continue
        yield _Label(name)
        values = value if isinstance(value, list) else [value]
        for item in values:
            if not (name == "body" and isinstance(item, ast.AST) and is_docstring(item)):
                yield item


def documentation_fingerprint(nodes: Sequence[ast.AST]) -> str:
    """Return the SHA-256 of the docstrings inside, with white space folded."""
    digest = hashlib.sha256()
    for root in nodes:
        for node in _statements(root):
            if is_docstring(node):
                value = node.value.value  # type: ignore[attr-defined]
                digest.update(f"{_folded(value)}\n".encode("utf-8", "backslashreplace"))
    return digest.hexdigest()


def _statements(root: ast.AST) -> Iterator[ast.AST]:
    """Yield statements and their holders in the order of `ast.walk`, without expressions."""
    pending = deque((root,))
    while pending:
        node = pending.popleft()
        yield node
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                pending.extend(item for item in value if isinstance(item, _HOLDERS))
