"""The shell's integer arithmetic, without assignments."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

BINARY: Mapping[type[ast.operator], Callable[[int, int], int]] = MappingProxyType(
    {
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.LShift: operator.lshift,
        ast.RShift: operator.rshift,
        ast.BitAnd: operator.and_,
        ast.BitOr: operator.or_,
        ast.BitXor: operator.xor,
        ast.Pow: operator.pow,
    }
)
COMPARED: Mapping[type[ast.cmpop], Callable[[int, int], bool]] = MappingProxyType(
    {
        ast.Lt: operator.lt,
        ast.LtE: operator.le,
        ast.Gt: operator.gt,
        ast.GtE: operator.ge,
        ast.Eq: operator.eq,
        ast.NotEq: operator.ne,
    }
)
LARGEST_EXPONENT = 62


class NotKnown(Exception):
    """A value that only an execution would give.

    Args:
        text: The value as it is written.
        name: The variable that holds it, where there is one.
    """

    def __init__(self, text: str, name: str = "") -> None:
        super().__init__(text)
        self.text, self.name = text, name


def calculate(expression: str, look_up: Callable[[str], str]) -> int:
    """Evaluate an arithmetic expression in which parameters are already expanded.

    Raises:
        NotKnown: An operator is not supported, a value is not a number, or it divides by zero.

    >>> calculate("(WORLD + 3) / 4 * 2", {"WORLD": "5"}.__getitem__)
    4
    >>> calculate("2 > 1 && !0", {}.__getitem__)
    1
    """
    source = re.sub(r"&&", " and ", expression).replace("||", " or ")
    source = re.sub(r"!(?!=)", " not ", source).replace("/", "//")
    source = re.sub(r"\b0+(?=\d)", "", source)
    condition, question, rest = source.partition("?")
    if question:
        yes, _, no = rest.partition(":")
        chosen = yes if calculate(condition.replace("//", "/"), look_up) else no
        return calculate(chosen.replace("//", "/"), look_up)
    if not source.strip():
        return 0
    try:
        return int(_value(ast.parse(source.strip(), mode="eval").body, look_up))
    except (SyntaxError, ZeroDivisionError, ValueError, RecursionError) as problem:
        raise NotKnown(f"(({expression.strip()}))") from problem


def _value(node: ast.expr, look_up: Callable[[str], str]) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return int(node.value)
    if isinstance(node, ast.Name):
        return calculate(look_up(node.id), look_up)
    if isinstance(node, ast.UnaryOp):
        value = _value(node.operand, look_up)
        return int(not value) if isinstance(node.op, ast.Not) else _signed(node.op, value)
    if isinstance(node, ast.BoolOp):
        values = [bool(_value(part, look_up)) for part in node.values]
        return int(all(values) if isinstance(node.op, ast.And) else any(values))
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        compare = COMPARED.get(type(node.ops[0]))
        if compare:
            return int(compare(_value(node.left, look_up), _value(node.comparators[0], look_up)))
    if isinstance(node, ast.BinOp):
        return _binary(node, look_up)
    raise ValueError(ast.dump(node))


def _signed(sign: ast.unaryop, value: int) -> int:
    if isinstance(sign, ast.Invert):
        return ~value
    return -value if isinstance(sign, ast.USub) else value


def _binary(node: ast.BinOp, look_up: Callable[[str], str]) -> int:
    left, right = _value(node.left, look_up), _value(node.right, look_up)
    if isinstance(node.op, ast.FloorDiv | ast.Mod):  # the shell rounds towards zero
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        return quotient if isinstance(node.op, ast.FloorDiv) else left - right * quotient
    if isinstance(node.op, ast.Pow) and not 0 <= right <= LARGEST_EXPONENT:
        raise ValueError(right)
    return BINARY[type(node.op)](left, right)
