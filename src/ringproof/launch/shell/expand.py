"""Expansion of the shell's words over known variables; what cannot be known stays marked.

A value that only an execution would give is carried as a marked text, between two private-use
characters, so that it is noticed only where it is needed.
"""

from __future__ import annotations

import ast
import fnmatch
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ringproof.launch.shell.budget import ReadingBudget
from ringproof.launch.shell.parse import WordPart, parts_of, whole_number, words_of

LONGEST_EXPRESSION = 10_000
WRITTEN_BASE = re.compile(r"\b([0-9]{1,2})#([0-9A-Za-z]+)")


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

    Numbers have 64 bits and wrap around, and a leading zero makes them octal, as in bash.

    Raises:
        NotKnown: An operator is not supported, a value is not a number, or it divides by zero.

    >>> calculate("(WORLD + 3) / 4 * 2", {"WORLD": "5"}.__getitem__)
    4
    >>> calculate("2 > 1 && !0 ? 7 / -2 : 1", {}.__getitem__)
    -3
    >>> calculate("9223372036854775807 + 1 == -2 ** 63 && 010 + 16#ff == 263", {}.__getitem__)
    1
    """
    condition, question, rest = expression.partition("?")
    if question:
        yes, _, no = rest.partition(":")
        return calculate(yes if calculate(condition, look_up) else no, look_up)
    source = expression.replace("&&", " and ").replace("||", " or ").replace("/", "//")
    try:
        if len(source) > LONGEST_EXPRESSION:
            raise ValueError(len(source))
        source = WRITTEN_BASE.sub(lambda found: str(int(found[2], int(found[1]))), source)
        source = re.sub(r"\b0+(?=\d)", "0o", re.sub(r"!(?!=)", " not ", source)).strip()
        return _wrapped(int(_value(ast.parse(source or "0", mode="eval").body, look_up)))
    except (ArithmeticError, KeyError, SyntaxError, ValueError, *TOO_DEEP) as problem:
        raise NotKnown(f"(({expression.strip()}))") from problem


def _wrapped(number: int) -> int:
    """Return what 64 bits hold of a number."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _value(node: ast.expr, look_up: Callable[[str], str]) -> int:
    match node:
        case ast.Constant(value=int(number)):
            return _wrapped(number)
        case ast.Name(name):
            return calculate(look_up(name), look_up)
        case ast.BoolOp(ast.And(), parts):
            return all(_value(part, look_up) for part in parts)
        case ast.BoolOp(ast.Or(), parts):
            return any(_value(part, look_up) for part in parts)
        case ast.UnaryOp(sign, operand):
            return _wrapped(OPERATORS[type(sign)](_value(operand, look_up)))
        case ast.BinOp(left, sign, right) | ast.Compare(left, [sign], [right]):
            change = OPERATORS[type(sign)]
            return _wrapped(change(_value(left, look_up), _value(right, look_up)))
    raise ValueError(type(node).__name__)


def _quotient(left: int, right: int) -> int:
    """Divide as the shell does, which rounds towards zero."""
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _power(base: int, exponent: int) -> int:
    if exponent < 0:
        raise ValueError(exponent)
    return pow(base, exponent, 1 << 64)


TOO_DEEP = (MemoryError, RecursionError)
"""What Python's parser raises where an expression is nested too deeply."""

OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = MappingProxyType(
    {
        ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
        ast.FloorDiv: _quotient, ast.Mod: lambda a, b: a - b * _quotient(a, b), ast.Pow: _power,
        ast.LShift: lambda a, b: a << b % 64, ast.RShift: lambda a, b: a >> b % 64,
        ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor,
        ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
        ast.Eq: operator.eq, ast.NotEq: operator.ne,
        ast.Not: operator.not_, ast.USub: operator.neg, ast.UAdd: operator.pos,
        ast.Invert: operator.invert,
    }
)  # fmt: skip

UNKNOWN, UNSET, END, NAMED = "\ue000", "\ue002", "\ue001", "\ue004"
BREAK, VANISH = "\ue003", "\ue005"  # the end of an array's element; an array without elements
PRIVATE = re.compile("[\ue000-\ue005]")
"""The marks. They are taken out of a script that is read, so that none is forged."""
MARK = re.compile(f"[{UNKNOWN}{UNSET}]([^{END}{NAMED}]*){NAMED}([^{END}]*){END}")
UNSET_MARK = re.compile(f"{UNSET}[^{END}]*{END}")
FIELD = re.compile(f"(?:[{UNKNOWN}{UNSET}][^{END}]*{END}|[^ \t\n{UNKNOWN}{UNSET}])+|[ \t\n]+")
OWN_FOLDER = re.compile(  # $(dirname "$0"), $(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
    r"(cd)?(\$\()?(realpath|readlink-f|dirname|[$(])*(\$0|\$?\{?BASH_SOURCE(\[0\])?\}?|0)\)*"
    r"(?P<below>(/[\w.]+)*)\)?(&&pwd)?"
)
PARAMETER = re.compile(
    r"\$(?P<bare>[A-Za-z_]\w*|[\d@*#?$!-])|\$\{(?P<hash>#(?=.))?(?P<bang>!(?=.))?"
    r"(?P<name>[A-Za-z_]\w*|\d+|[@*#?$!-])(?:\[(?P<index>[^]]*)\])?"
    r"(?P<operator>:?[-=+?]|%%?|##?|//?|\^\^?|,,?|:)?(?P<argument>.*)\}",
    re.DOTALL,
)
Value = str | tuple[str, ...]


@dataclass(frozen=True)
class UnknownValue:
    """A value that is not known.

    Attributes:
        name: The variable that holds it; empty where none does.
    """

    text: str
    name: str


def unknown(text: str, name: str = "") -> str:
    """Return the marked text of a value that only an execution would give."""
    return f"{UNKNOWN}{text}{NAMED}{name}{END}"


def unset(text: str, name: str) -> str:
    """Return the marked text of a variable that has no value."""
    return f"{UNSET}{text}{NAMED}{name}{END}"


def marks(text: str) -> tuple[UnknownValue, ...]:
    """Return the unknown values in a text, in order."""
    return tuple(UnknownValue(*found) for found in MARK.findall(text))


def named(text: str, name: str) -> str:
    """Return a text whose unknown values are held by a variable from now on."""
    return re.sub(f"{NAMED}{END}", f"{NAMED}{name}{END}", text)


def plain(text: str) -> str:
    """Return a text with the marks of unset variables taken as empty.

    Raises:
        NotKnown: The text contains a value that only an execution would give.
    """
    text = UNSET_MARK.sub("", text)
    if found := marks(text):
        raise NotKnown(found[0].text, found[0].name)
    return text


def readable(text: str) -> str:
    """Return a text with its unknown values as they are written in the script."""
    return MARK.sub(lambda found: found.group(1), text)


def without_marks(script: str) -> tuple[str, dict[str, str]]:
    """Return a script in which variables stand for unknown values, and those variables."""
    held: dict[str, str] = {}

    def put(found: re.Match[str]) -> str:
        name = f"RINGPROOF_UNKNOWN_{len(held)}"
        held[name] = found.group()
        return f"${{{name}}}"

    return MARK.sub(put, script), held


@dataclass
class Scope:
    """What is known at a place in a script.

    Attributes:
        source: Name of the script, which is also its ``$0``.
        folder: Folder of the script; ``None`` where it has none.
        positional: Arguments of the script or of the function.
        budget: What the whole reading may still take.
    """

    source: str
    folder: Path | None
    positional: tuple[str, ...] = ()
    variables: dict[str, Value] = field(default_factory=dict)
    budget: ReadingBudget = field(default_factory=ReadingBudget)

    def assign(self, name: str, value: Value) -> None:
        """Set a variable, which from now on holds the unknown values in its text."""
        if isinstance(value, str):
            self.variables[name] = named(value, name)
        else:
            self.variables[name] = tuple(named(part, name) for part in value)

    def text(self, name: str) -> str | None:
        """Return a variable's value as one string, or ``None`` where it is not set."""
        if (place := whole_number(name)) is not None:
            if place == 0:
                return self.source
            return self.positional[place - 1] if place <= len(self.positional) else None
        if name in "@*":
            return " ".join(self.positional) if self.positional else None
        if name == "#":
            return str(len(self.positional))
        if name in "?$!-":
            return unknown("$" + name)
        value = self.variables.get(name)
        if isinstance(value, tuple):
            return value[0] if value else None
        return value

    def elements(self, name: str) -> tuple[str, ...]:
        """Return a variable's value as an array."""
        if name in "@*":
            return self.positional
        value = self.variables.get(name, ())
        return value if isinstance(value, tuple) else (value,)


def fields(words: Iterable[str], scope: Scope) -> tuple[str, ...]:
    """Expand words into the arguments that they become, each none, one or several."""
    return tuple(field for word in words for field in _fields(word, scope))


def _fields(word: str, scope: Scope) -> list[str]:
    found: list[str] = []
    current: str | None = None
    for piece, quoted in _pieces(word, scope):
        for part in [piece] if quoted or piece in (BREAK, VANISH) else FIELD.findall(piece):
            if part == BREAK or (not quoted and part.isspace()):
                found += [] if current is None else [current]
                current = None
            elif part == VANISH:
                current = current or None
            else:
                current = (current or "") + part
    return found + ([] if current is None else [current])


def text(word: str, scope: Scope, *, quoted: bool = False) -> str:
    """Expand a word into one string, as on the right of an assignment."""
    pieces = _pieces(word, scope, quoted=quoted)
    return "".join(" " if piece == BREAK else piece for piece, _ in pieces if piece != VANISH)


def number(expression: str, scope: Scope) -> int:
    """Evaluate an arithmetic expression.

    Raises:
        NotKnown: A value in it is not known, or an operator is not supported.
    """
    expanded = text(expression, scope, quoted=True)

    def look_up(name: str) -> str:
        scope.budget.spend(steps=1)
        value = scope.text(name)
        return "0" if value is None else plain(value) or "0"

    try:
        return calculate(plain(expanded), look_up)
    except RecursionError as problem:
        raise NotKnown(expression) from problem
    except NotKnown as problem:
        first = next((mark for mark in marks(expanded) if mark.name), None)
        raise (NotKnown(first.text, first.name) if first else problem) from None


Piece = tuple[str, bool]
"""A text, and whether it is protected from being split into fields."""


def _pieces(word: str, scope: Scope, *, quoted: bool = False, split: bool = False) -> list[Piece]:
    """Expand a word.

    Args:
        quoted: Whether it stands in double quotes.
        split: Whether text that is not quoted is split, as the default in ``${X:-default}`` is.
    """
    scope.budget.spend(characters=len(word))
    found: list[Piece] = []
    for part in parts_of(word, quoted=quoted):
        before = len(found)
        if part.literal:
            found.append((part.text, part.quoted or not split))
        elif part.text.startswith("$((") and part.text.endswith("))"):
            found.append((_arithmetic(part.text, scope), part.quoted))
        elif part.text.startswith(("$(", "`", "<(", ">(")):
            found.append((_command(part.text, scope), part.quoted))
        else:
            found += _parameter(part, scope)
        new = found[before:]
        scope.budget.spend(steps=len(new), characters=sum(len(piece) for piece, _ in new))
    return found


def _arithmetic(source: str, scope: Scope) -> str:
    try:
        return str(number(source[3:-2], scope))
    except NotKnown as problem:
        return unknown(problem.text or source, problem.name)


def _command(source: str, scope: Scope) -> str:
    """Echoing a known text and naming the script's own folder need no execution."""
    body = source.lstrip("$<>")[1:-1]
    name, *arguments = words_of(body) or [""]
    if name == "echo" and not re.search(r"[|;&<>`]", body):
        return " ".join(fields(arguments, scope))
    own = re.sub(r"-P|--|&>/dev/null|2?>/dev/null|2>&1", "", re.sub(r"[\s\"']", "", body))
    if (folder := OWN_FOLDER.fullmatch(own)) and scope.folder:
        return f"{scope.folder}{folder['below'] or ''}"
    return unknown(source)


def _parameter(part: WordPart, scope: Scope) -> list[Piece]:
    match, quoted = PARAMETER.fullmatch(part.text), part.quoted
    if match is None:
        return [(unknown(part.text), quoted)]
    name: str = match["bare"] or match["name"]
    index: str | None = match["index"]
    operator: str = match["operator"] or ""
    if match["bang"]:
        name = scope.text(name) or ""
    every = index in ("@", "*") or name in ("@", "*")
    if match["hash"]:
        length = len(scope.elements(name)) if every else len(readable(scope.text(name) or ""))
        return [(str(length), quoted)]
    if every and not operator:
        return _elements(scope.elements(name), quoted, joined=(index or name) == "*")
    value = scope.text(name) if index is None or every else _element(name, index, scope)
    if operator and operator[-1] in "-=+?" and not operator.startswith(("%", "#", "/")):
        return _default(value, match, quoted, scope)
    if value is None:
        return [(unset(part.text, name), quoted)]
    return [(_edited(value, operator, match["argument"], scope) if operator else value, quoted)]


def _elements(elements: tuple[str, ...], quoted: bool, *, joined: bool) -> list[Piece]:
    if joined and quoted:
        return [(" ".join(elements), True)]
    found: list[Piece] = []
    for index, element in enumerate(elements):
        found += [(BREAK, True)] * (index > 0)
        found.append((element, quoted))
    return found if elements else [(VANISH, True)]


def _element(name: str, index: str, scope: Scope) -> str | None:
    try:
        place = number(index, scope)
    except NotKnown:
        return unknown(f"{name}[{index}]")
    elements = scope.elements(name)
    return elements[place] if -len(elements) <= place < len(elements) else None


def _default(value: str | None, match: re.Match[str], quoted: bool, scope: Scope) -> list[Piece]:
    name, operator = match["name"], match["operator"]
    known = None if value is None else UNSET_MARK.sub("", value)
    absent = known is None or (value != known and not known)
    missing = absent or (operator.startswith(":") and not known)
    if missing == operator.endswith("+"):
        return [("" if operator.endswith("+") else value or "", quoted)]
    if missing and operator.endswith("?"):
        return [(unset(match.string, name), quoted)]
    if missing and operator.endswith("="):
        scope.assign(name, text(match["argument"], scope))
    pieces = _pieces(match["argument"], scope, split=True)
    return [(piece, protected or quoted) for piece, protected in pieces]


def _edited(value: str, operator: str, argument: str, scope: Scope) -> str:
    """``${X%pattern}``, ``${X/old/new}``, ``${X:start:length}`` and changes of case."""
    if marks(value):
        return value
    given = text(argument, scope)
    if operator[0] in "^,":
        change = str.upper if operator[0] == "^" else str.lower
        return change(value) if len(operator) == 2 else change(value[:1]) + value[1:]
    if operator[0] in "%#":
        scope.budget.spend(characters=len(value) * len(value) // 100)  # each end is compared
        return _cut(value, given, front=operator[0] == "#", longest=len(operator) == 2)
    if operator[0] == "/":
        old, _, new = given.partition("/")
        pattern = re.compile(fnmatch.translate(old).removesuffix(r"\Z").removesuffix(r"\z"))

        def put(_: re.Match[str]) -> str:
            scope.budget.spend(characters=len(new))
            return new

        return pattern.sub(put, value, count=0 if len(operator) == 2 else 1)
    start, _, length = given.partition(":")
    try:
        first = number(start, scope)
        return value[first:] if not length else value[first : first + number(length, scope)]
    except NotKnown as problem:
        return unknown(problem.text, problem.name)


def _cut(value: str, pattern: str, *, front: bool, longest: bool) -> str:
    lengths = range(len(value) + 1)
    for length in reversed(lengths) if longest else lengths:
        part = value[:length] if front else value[len(value) - length :]
        if fnmatch.fnmatchcase(part, pattern):
            return value[length:] if front else value[: len(value) - length]
    return value
