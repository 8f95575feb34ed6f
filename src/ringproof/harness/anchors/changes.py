"""Summarizes the changes between two versions of a Python definition."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping

from ringproof.harness.anchors.symbols import Found, is_docstring

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEFINITIONS = (*_FUNCTIONS, ast.ClassDef)
_SHOWN = 4
_WIDTH = 60


def summarise(old: Found, new: Found) -> tuple[str, ...]:
    """Summarize the differences that matter to a reader of a card.

    The order is: kind, signature (or the fields of a class), defaults (or the value of a field, or
    the settings of an option), decorators, bases, raised errors, literals. The result is ``body``
    if only other parts differ. Values are shortened.
    """
    first, second = old.nodes[0], new.nodes[0]
    if type(first) is not type(second):
        return (f"kind: {type(first).__name__} -> {type(second).__name__}",)
    said = [
        *signature_lines(_parameters(first), _parameters(second)),
        *default_lines(_settings(first), _settings(second)),
        *counted_lines("decorators", _decorators(first), _decorators(second)),
        *counted_lines("bases", _bases(first), _bases(second)),
        *counted_lines("raises", _raised(first), _raised(second)),
        *counted_lines("literals", _literals(first), _literals(second)),
    ]
    return tuple(said) or ("body",)


def signature_lines(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    """Yield one line about names that were added, removed, reordered or changed in type."""
    parts = [f"added {name}" for name in new if name not in old]
    parts += [f"removed {name}" for name in old if name not in new]
    both = [name for name in old if name in new]
    if both != [name for name in new if name in old]:
        parts.append("reordered")
    for name in both:
        if old[name] != new[name]:
            types = (shortened(text) or "untyped" for text in (old[name], new[name]))
            parts.append(f"{name}: {' -> '.join(types)}")
    if parts:
        yield f"signature: {_few(parts)}"


def default_lines(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    """Yield one line about default values that changed."""
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    values = [[shortened(side.get(name, "none")) for side in (old, new)] for name in names]
    parts = [f"{name} {' -> '.join(pair)}" for name, pair in zip(names, values, strict=True)]
    if parts:
        yield f"defaults: {_few(parts)}"


def counted_lines(what: str, old: Counter[str], new: Counter[str]) -> Iterator[str]:
    """Yield one line about items that were added or removed."""
    parts = [f"+{item}" for item in sorted(new - old)]
    parts += [f"-{item}" for item in sorted(old - new)]
    if parts:
        yield f"{what}: {_few(parts)}"


def _few(parts: list[str]) -> str:
    more = len(parts) - _SHOWN
    return ", ".join(parts[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _text(node: ast.AST | None) -> str:
    """Return a node as source on one line, shortened."""
    if node is None:
        return ""
    try:
        text = " ".join(ast.unparse(node).split())
    except (RecursionError, ValueError):
        return "(deeply nested)"
    return shortened(text)


def shortened(text: str) -> str:
    """Cut code to a width that leaves room on the line."""
    return text if len(text) <= _WIDTH + 1 else f"{text[:_WIDTH]}…"


def _parameters(node: ast.AST) -> Mapping[str, str]:
    """Return parameters of a function, or fields and methods of a class, with their types."""
    if isinstance(node, _FUNCTIONS):
        found = {name: _text(argument.annotation) for name, argument in _arguments(node.args)}
        return {**found, "return": _text(node.returns)} if node.returns is not None else found
    if not isinstance(node, ast.ClassDef):
        return {}
    members = {}
    for statement in node.body:
        if isinstance(statement, _DEFINITIONS):
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


def _settings(node: ast.AST) -> Mapping[str, str]:
    """Return default values of parameters or fields, or the settings of an option."""
    if isinstance(node, _FUNCTIONS):
        positional = (*node.args.posonlyargs, *node.args.args)
        tail = positional[len(positional) - len(node.args.defaults) :]
        pairs = [*zip(tail, node.args.defaults, strict=True)]
        keywords = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        pairs += [(argument, value) for argument, value in keywords if value is not None]
        return {argument.arg: _text(value) for argument, value in pairs}
    if isinstance(node, ast.ClassDef):
        fields = (item for item in node.body if isinstance(item, (ast.AnnAssign, ast.Assign)))
        return {name: text for field in fields for name, text in _settings(field).items()}
    if isinstance(node, ast.AnnAssign):
        return {_text(node.target): _text(node.value)} if node.value is not None else {}
    if isinstance(node, ast.Assign):
        return {_text(target): _text(node.value) for target in node.targets}
    if isinstance(node, ast.Call):
        return {keyword.arg or "**": _text(keyword.value) for keyword in node.keywords}
    return {}


def _decorators(node: ast.AST) -> Counter[str]:
    return Counter(_text(item) for item in getattr(node, "decorator_list", ()))


def _bases(node: ast.AST) -> Counter[str]:
    return Counter(_text(item) for item in getattr(node, "bases", ()))


def _raised(node: ast.AST) -> Counter[str]:
    names: Counter[str] = Counter()
    for inner in ast.walk(node):
        if isinstance(inner, ast.Raise) and inner.exc is not None:
            error = inner.exc.func if isinstance(inner.exc, ast.Call) else inner.exc
            names[_text(error)] += 1
        elif isinstance(inner, ast.Assert):
            names["AssertionError"] += 1
    return names


def _literals(node: ast.AST) -> Counter[str]:
    """Count the constants in a body. Those of signatures and fields count as defaults."""
    counts: Counter[str] = Counter()
    stack: list[ast.AST] = [*node.body] if isinstance(node, _DEFINITIONS) else []
    if isinstance(node, ast.ClassDef):
        stack = [item for item in stack if not isinstance(item, (ast.AnnAssign, ast.Assign))]
    while stack:
        current = stack.pop()
        if is_docstring(current):
            continue
        if isinstance(current, ast.Constant):
            counts[_text(current)] += 1
        stack.extend(ast.iter_child_nodes(current))
    return counts
