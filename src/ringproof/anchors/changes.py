"""Compares two definitions: what differs in words, and how alike they are."""

from __future__ import annotations

import ast
import difflib
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from ringproof.anchors.symbols import (
    FIELDS,
    FUNCTIONS,
    NAMED,
    Definition,
    encoded,
    folded,
    is_docstring,
)

_SHOWN = 4  # differences of one topic; the others are counted
_WIDTH = 60  # characters of code, so that two pieces fit on a line


def changes(old: Definition, new: Definition) -> tuple[str, ...]:
    """Summarize what differs between two versions; ``body`` if it is nothing that has a name."""
    kinds = [type(item.node).__name__ for item in (old, new)]
    if kinds[0] != kinds[1]:
        return (f"kind: {' -> '.join(kinds)}",)
    then, now = _topics(old.node), _topics(new.node)
    found = {topic: _differences(then[topic], now[topic]) for topic in then}
    if list(then["signature"]) != list(now["signature"]) and not found["signature"]:
        found["signature"] = ["reordered"]
    return tuple(_line(topic, parts) for topic, parts in found.items() if parts) or ("body",)


def _differences(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    parts = [f"added {name} {new[name]}".rstrip() for name in new if name not in old]
    parts += [f"removed {name} {old[name]}".rstrip() for name in old if name not in new]
    differing = (name for name in old if old[name] != new.get(name, old[name]))
    return parts + [
        f"{name} {old[name] or 'untyped'} -> {new[name] or 'untyped'}" for name in differing
    ]


def _line(topic: str, parts: list[str]) -> str:
    more = len(parts) - _SHOWN
    return f"{topic}: {', '.join(parts[:_SHOWN])}" + (f" and {more} more" if more > 0 else "")


def likeness(first: Definition, second: Definition) -> float:
    """Return the similarity from 0 (nothing in common) to 1 (equal except for the name).

    It is the Dice coefficient of the parts of the code and their pairs. A field or an option has
    too little code for that, so its name and its documentation count as much as the code.
    """
    if type(first.node) is not type(second.node):
        return 0.0
    parts = [_dice(_counted_code(first), _counted_code(second))]
    if not isinstance(first.node, NAMED):
        names = (" ".join(first.names), " ".join(second.names))
        parts.append(difflib.SequenceMatcher(None, *names).ratio())
        words = [Counter(item.documentation().split()) for item in (first, second)]
        if any(words):
            parts.append(_dice(*words))
    return sum(parts) / len(parts)


def _dice(first: Counter[Any], second: Counter[Any]) -> float:
    total = sum(first.values()) + sum(second.values())
    return 1.0 if total == 0 else 2 * sum((first & second).values()) / total


def _counted_code(definition: Definition) -> Counter[tuple[bytes, ...]]:
    """Count the parts of the code and the pairs of neighbours, with ``@`` for its own name.

    The ends of nodes and the names of their fields are left out: all code has those.
    """
    own = [encoded(name) for name in definition.names]
    parts = []
    for part in definition.code():
        if part in own:
            own.remove(part)  # where it is defined; further uses are part of the code
            parts.append(b"@")
        elif not part.startswith((b")", b" .")):
            parts.append(part)
    return Counter([*((part,) for part in parts), *pairwise(parts)])


def _topics(node: ast.AST) -> Mapping[str, Mapping[str, str]]:
    """Return what a reader looks at: by topic, the items by name, or how often each occurs."""
    return {
        "signature": dict(_signature(node)),
        "defaults": dict(_defaults(node)),
        "decorators": _counts(map(_text, getattr(node, "decorator_list", ()))),
        "bases": _counts(map(_text, getattr(node, "bases", ()))),
        "raises": _counts(_raised(node)),
        "literals": _counts(_literals(node)),
    }


def _counts(items: Iterator[str]) -> Mapping[str, str]:
    """Return how often each item occurs, in words."""
    return {item: f"{n} times" if n > 1 else "once" for item, n in sorted(Counter(items).items())}


def _signature(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield parameters of a function, or fields and methods of a class, with their types."""
    if isinstance(node, FUNCTIONS):
        given = node.args
        marked = [("", argument) for argument in (*given.posonlyargs, *given.args)]
        marked += [("*", given.vararg)] if given.vararg is not None else []
        marked += [("", argument) for argument in given.kwonlyargs]
        marked += [("**", given.kwarg)] if given.kwarg is not None else []
        yield from ((f"{mark}{item.arg}", _text(item.annotation)) for mark, item in marked)
        if node.returns is not None:
            yield "return", _text(node.returns)
    for statement in node.body if isinstance(node, ast.ClassDef) else ():
        if isinstance(statement, NAMED):
            yield f"{statement.name}()", ""
        elif isinstance(statement, ast.AnnAssign):
            yield _text(statement.target), _text(statement.annotation)
        elif isinstance(statement, ast.Assign):
            yield from ((_text(target), "") for target in statement.targets)


def _defaults(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield default values of parameters, values of fields, or the settings of an option."""
    if isinstance(node, FUNCTIONS):
        positional = (*node.args.posonlyargs, *node.args.args)
        tail = positional[len(positional) - len(node.args.defaults) :]
        given = (*zip(tail, node.args.defaults, strict=True),
                 *zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True))  # fmt: skip
        yield from ((item.arg, _text(value)) for item, value in given if value is not None)
    elif isinstance(node, ast.ClassDef):
        for statement in node.body:
            yield from _defaults(statement) if isinstance(statement, FIELDS) else ()
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        yield _text(node.target), _text(node.value)
    elif isinstance(node, ast.Assign):
        yield from ((_text(target), _text(node.value)) for target in node.targets)
    elif isinstance(node, ast.Call):
        yield from ((keyword.arg or "**", _text(keyword.value)) for keyword in node.keywords)


def _raised(node: ast.AST) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Raise) and inner.exc is not None:
            yield _text(inner.exc.func if isinstance(inner.exc, ast.Call) else inner.exc)
        elif isinstance(inner, ast.Assert):
            yield "AssertionError"


def _literals(node: ast.AST) -> Iterator[str]:
    """Yield the constants in a body. Those of signatures and fields count as defaults."""
    stack: list[ast.AST] = [*node.body] if isinstance(node, NAMED) else []
    if isinstance(node, ast.ClassDef):
        stack = [item for item in stack if not isinstance(item, FIELDS)]
    while stack:
        current = stack.pop()
        if not is_docstring(current):
            if isinstance(current, ast.Constant):
                yield _text(current)
            stack.extend(ast.iter_child_nodes(current))


def _text(node: ast.AST | None) -> str:
    """Return a node as source on one line, shortened."""
    if node is None:
        return ""
    try:
        text = folded(ast.unparse(node))
    except (RecursionError, ValueError):
        return "(deeply nested)"
    return text if len(text) <= _WIDTH + 1 else f"{text[:_WIDTH]}…"
