"""Similarity of two Python definitions, independent of their names."""

from __future__ import annotations

import ast
import difflib
from collections import Counter
from collections.abc import Iterator

from ringproof.harness.anchors.symbols import Found, is_docstring

_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def similarity(first: Found, second: Found) -> float:
    """Return the similarity from 0 (nothing in common) to 1 (equal except for the name).

    Definitions are compared by the Dice coefficient of the parent-child pairs and leaves of their
    trees. The tree of a field or an option is too small for that, so its name and the words of its
    documentation count as much as its value.
    """
    if type(first.nodes[0]) is not type(second.nodes[0]):
        return 0.0
    trees = dice(_features(first), _features(second))
    if isinstance(first.nodes[0], _NAMED):
        return trees
    names = _own_name(first), _own_name(second)
    return with_names(trees, names, (_words(first), _words(second)))


def with_names(
    code: float, names: tuple[str, str], words: tuple[Counter[str], Counter[str]]
) -> float:
    """Average the similarity of code, names and documentation.

    Args:
        code: Similarity of the code, from 0 to 1.
        names: Names of the two definitions.
        words: Words of their documentation, which does not count when both have none.
    """
    parts = [code, difflib.SequenceMatcher(None, *names).ratio()]
    if words[0] or words[1]:
        parts.append(dice(*words))
    return sum(parts) / len(parts)


def dice(first: Counter[str], second: Counter[str]) -> float:
    """Return the Dice coefficient of two multisets, which is 1 when both are empty."""
    total = sum(first.values()) + sum(second.values())
    return 1.0 if total == 0 else 2 * sum((first & second).values()) / total


def _features(found: Found) -> Counter[str]:
    root = found.nodes[0]
    counts: Counter[str] = Counter()
    stack: list[ast.AST] = [root]
    while stack:
        node = stack.pop()
        if node is not root:
            counts.update(_leaves(node))
        for child in ast.iter_child_nodes(node):
            own_name = node is root and not isinstance(root, _NAMED) and _is_own_name(child, root)
            if not (own_name or is_docstring(child) or isinstance(child, ast.expr_context)):
                counts[f"{type(node).__name__}>{type(child).__name__}"] += 1
                stack.append(child)
    return counts


def _leaves(node: ast.AST) -> Iterator[str]:
    for name, value in ast.iter_fields(node):
        plain = isinstance(value, (str, int, float, complex, bytes, bool))
        if plain and name not in ("kind", "type_comment"):
            yield f"{type(node).__name__}.{name}={value!r}"


def _is_own_name(child: ast.AST, root: ast.AST) -> bool:
    if isinstance(root, ast.AnnAssign):
        return child is root.target
    if isinstance(root, ast.Assign):
        return child in root.targets
    return isinstance(root, ast.Call) and child in root.args


def _own_name(found: Found) -> str:
    root = found.nodes[0]
    named = [child for child in ast.iter_child_nodes(root) if _is_own_name(child, root)]
    parts = [getattr(child, "id", getattr(child, "value", "")) for child in named]
    return " ".join(part for part in parts if isinstance(part, str))


def _words(found: Found) -> Counter[str]:
    """Count the words of a field's docstring. The help of an option is part of its tree."""
    texts = (node.value.value for node in found.nodes[1:] if is_docstring(node))  # type: ignore[attr-defined]
    return Counter(word for text in texts for word in text.split())
