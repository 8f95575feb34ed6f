"""Compares two definitions: what differs in words, and how alike they are."""

from __future__ import annotations

import ast
import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
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

_SHOWN = 4  # items of one kind of difference; the others are counted
_WIDTH = 60  # characters of code, so that two pieces fit on a line


def changes(old: Definition, new: Definition) -> tuple[str, ...]:
    """Summarize what differs between two versions; ``body`` if it is nothing that has a name."""
    kinds = [type(item.node).__name__ for item in (old, new)]
    if kinds[0] != kinds[1]:
        return (f"kind: {' -> '.join(kinds)}",)
    signatures = (_parameters(old.node), _parameters(new.node))
    defaults = (_defaults(old.node), _defaults(new.node))
    said = [*_signature_lines(*signatures), *_default_lines(*defaults)]
    for topic, items in _counted(old.node).items():
        said += _counted_lines(topic, items, _counted(new.node)[topic])
    return tuple(said) or ("body",)


def likeness(first: Definition, second: Definition) -> float:
    """Return the similarity from 0 (nothing in common) to 1 (equal except for the name).

    It is the Dice coefficient of the parts of the code and their pairs. A field or an option has
    too little code for that, so its name and its documentation count as much as the code.
    """
    both = (first, second)
    if type(first.node) is not type(second.node):
        return 0.0
    parts = [_dice(*map(_counted_code, both))]
    if not isinstance(first.node, NAMED):
        names = (" ".join(first.names), " ".join(second.names))
        parts.append(difflib.SequenceMatcher(None, *names).ratio())
        words = [Counter(item.documentation().split()) for item in both]
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


def _parameters(node: ast.AST) -> Mapping[str, str]:
    """Return parameters of a function, or fields and methods of a class, with their types."""
    if isinstance(node, FUNCTIONS):
        found = {name: _text(argument.annotation) for name, argument in _arguments(node.args)}
        return {**found, "return": _text(node.returns)} if node.returns is not None else found
    members: dict[str, str] = {}
    for statement in node.body if isinstance(node, ast.ClassDef) else ():
        if isinstance(statement, NAMED):
            members[f"{statement.name}()"] = ""
        elif isinstance(statement, ast.AnnAssign):
            members[_text(statement.target)] = _text(statement.annotation)
        elif isinstance(statement, ast.Assign):
            members.update((_text(target), "") for target in statement.targets)
    return members


def _arguments(arguments: ast.arguments) -> Iterator[tuple[str, ast.arg]]:
    for argument in (*arguments.posonlyargs, *arguments.args):
        yield argument.arg, argument
    if arguments.vararg is not None:
        yield f"*{arguments.vararg.arg}", arguments.vararg
    for argument in arguments.kwonlyargs:
        yield argument.arg, argument
    if arguments.kwarg is not None:
        yield f"**{arguments.kwarg.arg}", arguments.kwarg


def _defaults(node: ast.AST) -> Mapping[str, str]:
    """Return default values of parameters, values of fields, or the settings of an option."""
    if isinstance(node, FUNCTIONS):
        positional = (*node.args.posonlyargs, *node.args.args)
        tail = positional[len(positional) - len(node.args.defaults) :]
        pairs = [*zip(tail, node.args.defaults, strict=True)]
        keywords = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        pairs += [(argument, value) for argument, value in keywords if value is not None]
        return {argument.arg: _text(value) for argument, value in pairs}
    if isinstance(node, ast.ClassDef):
        fields = (item for item in node.body if isinstance(item, FIELDS))
        return {name: text for field in fields for name, text in _defaults(field).items()}
    if isinstance(node, ast.AnnAssign):
        return {_text(node.target): _text(node.value)} if node.value is not None else {}
    if isinstance(node, ast.Assign):
        return {_text(target): _text(node.value) for target in node.targets}
    if isinstance(node, ast.Call):
        return {keyword.arg or "**": _text(keyword.value) for keyword in node.keywords}
    return {}


def _counted(node: ast.AST) -> Mapping[str, Counter[str]]:
    """Count the decorators, bases, raised errors and constants of a definition."""
    raised: Counter[str] = Counter()
    for inner in ast.walk(node):
        if isinstance(inner, ast.Raise) and inner.exc is not None:
            raised[_text(inner.exc.func if isinstance(inner.exc, ast.Call) else inner.exc)] += 1
        elif isinstance(inner, ast.Assert):
            raised["AssertionError"] += 1
    return {
        "decorators": Counter(map(_text, getattr(node, "decorator_list", ()))),
        "bases": Counter(map(_text, getattr(node, "bases", ()))),
        "raises": raised,
        "literals": _literals(node),
    }


def _literals(node: ast.AST) -> Counter[str]:
    """Count the constants in a body. Those of signatures and fields count as defaults."""
    counts: Counter[str] = Counter()
    stack: list[ast.AST] = [*node.body] if isinstance(node, NAMED) else []
    if isinstance(node, ast.ClassDef):
        stack = [item for item in stack if not isinstance(item, FIELDS)]
    while stack:
        current = stack.pop()
        if is_docstring(current):
            continue
        if isinstance(current, ast.Constant):
            counts[_text(current)] += 1
        stack.extend(ast.iter_child_nodes(current))
    return counts


def _text(node: ast.AST | None) -> str:
    """Return a node as source on one line, shortened."""
    if node is None:
        return ""
    try:
        text = folded(ast.unparse(node))
    except (RecursionError, ValueError):
        return "(deeply nested)"
    return text if len(text) <= _WIDTH + 1 else f"{text[:_WIDTH]}…"


def _signature_lines(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    parts = [f"added {name}" for name in new if name not in old]
    parts += [f"removed {name}" for name in old if name not in new]
    both = [name for name in old if name in new]
    if both != [name for name in new if name in old]:
        parts.append("reordered")
    differing = (name for name in both if old[name] != new[name])
    parts += [f"{name}: {old[name] or 'untyped'} -> {new[name] or 'untyped'}" for name in differing]
    yield from _line("signature", parts)


def _default_lines(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    pairs = ((name, old.get(name, "none"), new.get(name, "none")) for name in names)
    yield from _line("defaults", [f"{name} {then} -> {now}" for name, then, now in pairs])


def _counted_lines(topic: str, old: Counter[str], new: Counter[str]) -> Iterator[str]:
    added = (f"+{item}" for item in sorted(new - old))
    yield from _line(topic, [*added, *(f"-{item}" for item in sorted(old - new))])


def _line(topic: str, parts: list[str]) -> Iterable[str]:
    more = len(parts) - _SHOWN
    listed = ", ".join(parts[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return [f"{topic}: {listed}"] if parts else []
