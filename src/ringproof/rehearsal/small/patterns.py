"""Patterns over layers: lists such as ``([0]*3+[1]*58)``, hybrid strings, pipeline layouts."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from ringproof.errors import InputError

LONGEST = 100_000
LONGEST_SEGMENT = 4


def listed(expression: str, name: str) -> tuple[int, ...] | None:
    """Return a pattern's values, or ``None`` where the expression is a plain number.

    Args:
        expression: Lists of integers joined by ``+`` and repeated by ``*``.
        name: Option, for messages.

    Raises:
        InputError: The expression is something else.

    >>> listed("([0]*2+[1]*3)*2", "--moe-layer-freq")
    (0, 0, 1, 1, 1, 0, 0, 1, 1, 1)
    """
    if "[" not in expression:
        return None
    try:
        values = _value(ast.parse(expression.strip(), mode="eval").body)
        if not isinstance(values, list):
            raise ValueError(expression)
        return tuple(values)
    except (SyntaxError, ValueError, RecursionError) as problem:
        remedy = "give lists of integers joined by + and repeated by *"
        raise InputError(name, expression, "this is not a pattern over layers", remedy) from problem


def _value(node: ast.expr) -> list[int] | int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _value(node.operand)
        if isinstance(inner, int):
            return -inner
    if isinstance(node, ast.List):
        values = [_value(item) for item in node.elts]
        return [item for item in values if isinstance(item, int)]
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
            return left + right
        if isinstance(node.op, ast.Mult) and isinstance(left, list) and isinstance(right, int):
            if len(left) * right > LONGEST:
                raise ValueError("too long")
            return left * right
        if isinstance(node.op, ast.Mult) and isinstance(left, int) and isinstance(right, list):
            return right * left
    raise ValueError(ast.dump(node))


def written(values: Sequence[int]) -> str:
    """Return a pattern as an expression.

    >>> written((0, 1, 1))
    '[0,1,1]'
    """
    return "[" + ",".join(str(value) for value in values) + "]"


def chosen(count: int, fewer: int, patterns: Sequence[Sequence[int]], step: int) -> tuple[int, ...]:
    """Choose layers so that every value of every pattern still occurs.

    Args:
        count: Number of layers.
        fewer: Number of layers wanted.
        patterns: Values by layer.
        step: How many more layers are tried at a time.

    Returns:
        Indices of layers, ascending, with the first and the last layer among them.

    >>> chosen(61, 2, [[0] * 3 + [1] * 58], 1)
    (0, 60)
    >>> chosen(12, 2, [[1, 1, 1, 0] * 3], 2)
    (0, 11)
    """
    size = min(fewer, count)
    while True:
        places = tuple(index * (count - 1) // max(size - 1, 1) for index in range(size))
        kept = all({p[i] for i in places} == set(p) for p in patterns if len(p) == count)
        if kept or size + step > count:
            return places if kept else tuple(range(count))
        size += step


def hybrid(pattern: str, pipeline: int) -> str:
    """Return a shorter hybrid pattern in which every segment keeps its kinds of layers.

    Args:
        pattern: Symbols of layers, with ``|`` between pipeline segments and ``/`` before MTP.
        pipeline: PP; a pattern without ``|`` is divided evenly by it.

    >>> hybrid("M-M-M-M*-M-M-M-M*-", 1), hybrid("WEC-|H-C-/W-", 2), hybrid("M-M*M-M*", 2)
    ('M-*', 'WEC-|H-C-/W-', 'M-M*M-M*')
    """
    main, separator, rest = pattern.partition("/")
    joint = "|" if "|" in main else ""
    segments = main.split("|") if joint else [main] * pipeline
    if not joint and len(main) <= LONGEST_SEGMENT * pipeline:
        return pattern
    return joint.join(map(_kinds, segments)) + separator + rest


def _kinds(segment: str) -> str:
    """Every kind of layer once, in order of appearance."""
    if len(segment) <= LONGEST_SEGMENT:
        return segment
    return "".join(dict.fromkeys(segment))


def stages(text: str) -> list[str] | None:
    """Return the stages of a pipeline layout, or ``None`` where it is not understood.

    >>> stages("Et*3|(tt|)*2tm|L")
    ['Ettt', 'tt', 'tt', 'tm', 'L']
    """
    plain = text.replace(",", "").replace(" ", "")
    while found := re.search(r"\(([^()]*)\)(?:\*(\d+))?", plain):
        plain = plain[: found.start()] + found[1] * int(found[2] or 1) + plain[found.end() :]
    plain = re.sub(r"([EtmL|])\*(\d+)", lambda match: match[1] * int(match[2]), plain)
    return plain.split("|") if re.fullmatch(r"[EtmL|]*", plain) else None
