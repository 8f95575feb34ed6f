"""Expansion of the shell's words over known variables; what cannot be known stays marked.

A value that only an execution would give is carried as a marked text, between two private-use
characters, so that it is noticed only where it is needed.
"""

from __future__ import annotations

import ast
import fnmatch
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ringproof.rehearsal.launch.shell.parse import Expansion, Literal, Word, words_of

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


UNKNOWN, UNSET, END, NAMED = "\ue000", "\ue002", "\ue001", "\ue004"
BREAK, VANISH = "\ue003", "\ue005"  # the end of an array's element; an array without elements
MARK = re.compile(f"[{UNKNOWN}{UNSET}]([^{END}{NAMED}]*){NAMED}([^{END}]*){END}")
UNSET_MARK = re.compile(f"{UNSET}[^{END}]*{END}")
FIELD = re.compile(f"(?:[{UNKNOWN}{UNSET}][^{END}]*{END}|[^ \t\n{UNKNOWN}{UNSET}])+|[ \t\n]+")
OWN_FOLDER = re.compile(  # $(dirname "$0"), $(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
    r"(cd)?(\$\()?(realpath|readlink-f|dirname|[$(])*(\$0|\$?\{?BASH_SOURCE(\[0\])?\}?|0)\)*"
    r"(?P<below>(/[\w.]+)*)\)?(&&pwd)?"
)
PARAMETER = re.compile(
    r"(?P<hash>#(?=.))?(?P<bang>!(?=.))?(?P<name>[A-Za-z_]\w*|\d+|[@*#?$!-])"
    r"(?:\[(?P<index>[^]]*)\])?"
    r"(?P<operator>:?[-=+?]|%%?|##?|//?|\^\^?|,,?|:)?(?P<argument>.*)",
    re.DOTALL,
)

Value = str | tuple[str, ...]


@dataclass(frozen=True)
class Mark:
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


def marks(text: str) -> tuple[Mark, ...]:
    """Return the unknown values in a text, in order."""
    return tuple(Mark(*found) for found in MARK.findall(text))


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


@dataclass(frozen=True)
class Scope:
    """What a place in a script knows.

    Attributes:
        positional: Arguments of the script or of the function.
        folder: Folder of the script; empty where it has none.
        assign: Sets a variable, for ``${X:=value}``.
    """

    variables: Mapping[str, Value] = field(default_factory=lambda: MappingProxyType({}))
    positional: tuple[str, ...] = ()
    source: str = ""
    folder: str = ""
    assign: Callable[[str, str], None] | None = None

    def text(self, name: str) -> str | None:
        """Return a variable's value as one string, or ``None`` where it is not set."""
        if name.isdigit():
            place = int(name)
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


def fields(word: Word, scope: Scope) -> list[str]:
    """Expand a word into the arguments that it becomes, none, one or several."""
    found: list[str] = []
    current: str | None = None
    for piece, quoted in _pieces(word, scope):
        parts = [piece] if quoted or piece in (BREAK, VANISH) else FIELD.findall(piece)
        for part in parts:
            if part == BREAK or (not quoted and part.isspace()):
                found += [] if current is None else [current]
                current = None
            elif part == VANISH:
                current = current or None
            else:
                current = (current or "") + part
    return found + ([] if current is None else [current])


def text(word: Word, scope: Scope) -> str:
    """Expand a word into one string, as on the right of an assignment."""
    pieces = (piece for piece, _ in _pieces(word, scope) if piece != VANISH)
    return "".join(" " if piece == BREAK else piece for piece in pieces)


def number(expression: str, scope: Scope) -> int:
    """Evaluate an arithmetic expression.

    Raises:
        NotKnown: A value in it is not known, or an operator is not supported.
    """
    expanded = text(words_of(expression, scope.source, quoted=True), scope)

    def look_up(name: str) -> str:
        value = scope.text(name)
        return "0" if value is None else plain(value) or "0"

    try:
        return calculate(plain(expanded), look_up)
    except NotKnown as problem:
        first = next((mark for mark in marks(expanded) if mark.name), None)
        raise (NotKnown(first.text, first.name) if first else problem) from None


def _pieces(word: Word, scope: Scope) -> list[tuple[str, bool]]:
    """Texts of a word's parts, each with whether it is protected from splitting."""
    found: list[tuple[str, bool]] = []
    for part in word.parts:
        if isinstance(part, Literal):
            found.append((part.text, True))
        elif part.kind == "parameter":
            found += _parameter(part, scope)
        elif part.kind == "arithmetic":
            found.append((_arithmetic(part, scope), part.quoted))
        else:
            found.append((_command(part, scope), part.quoted))
    return found


def _arithmetic(part: Expansion, scope: Scope) -> str:
    try:
        return str(number(part.body, scope))
    except NotKnown as problem:
        return unknown(problem.text or part.source, problem.name)


def _command(part: Expansion, scope: Scope) -> str:
    """Echoing a known text and naming the script's own folder need no execution."""
    words = part.body.split(None, 1)
    if words[:1] == ["echo"] and not re.search(r"[|;&<>`]", part.body):
        inside = words_of(words[1] if len(words) > 1 else "", scope.source)
        return " ".join(fields(inside, scope))
    body = re.sub(r"[\s\"']", "", part.body)
    own = OWN_FOLDER.fullmatch(re.sub(r"-P|--|&>/dev/null|2?>/dev/null|2>&1", "", body))
    if own and scope.folder:
        return scope.folder + (own["below"] or "")
    return unknown(part.source)


def _parameter(part: Expansion, scope: Scope) -> list[tuple[str, bool]]:
    match = PARAMETER.fullmatch(part.body)
    if match is None:
        return [(unknown(part.source), part.quoted)]
    name: str = match["name"]
    index: str | None = match["index"]
    operator: str = match["operator"] or ""
    if match["bang"]:
        name = scope.text(name) or ""
    every = index in ("@", "*") or name in ("@", "*")
    if match["hash"]:
        length = len(scope.elements(name)) if every else len(readable(scope.text(name) or ""))
        return [(str(length), part.quoted)]
    if every and not operator:
        return _elements(scope.elements(name), part, joined=(index or name) == "*")
    value = scope.text(name) if index is None or every else _element(name, index, scope)
    if operator and operator[-1] in "-=+?" and not operator.startswith(("%", "#", "/")):
        return _default(value, operator, match["argument"], part, scope)
    if value is None:
        return [(unset(part.source, name), part.quoted)]
    return [(_edited(value, operator, match["argument"], scope) if operator else value,
             part.quoted)]  # fmt: skip


def _elements(
    elements: tuple[str, ...], part: Expansion, *, joined: bool
) -> list[tuple[str, bool]]:
    if joined and part.quoted:
        return [(" ".join(elements), True)]
    found: list[tuple[str, bool]] = []
    for index, element in enumerate(elements):
        found += [(BREAK, True)] * (index > 0)
        found.append((element, part.quoted))
    return found if elements else [(VANISH, True)]


def _element(name: str, index: str, scope: Scope) -> str | None:
    try:
        place = number(index, scope)
    except NotKnown:
        return unknown(f"{name}[{index}]")
    elements = scope.elements(name)
    return elements[place] if -len(elements) <= place < len(elements) else None


def _default(
    value: str | None, operator: str, argument: str, part: Expansion, scope: Scope
) -> list[tuple[str, bool]]:
    known = None if value is None else UNSET_MARK.sub("", value)
    absent = known is None or (value != known and not known)
    missing = absent or (operator.startswith(":") and not known)
    if missing != operator.endswith("+"):
        if missing and operator.endswith("?"):
            return [(unset(part.source, part.body.split(":")[0]), part.quoted)]
        if missing and operator.endswith("=") and scope.assign is not None:
            name = part.body.split(operator)[0]
            scope.assign(name, text(words_of(argument, scope.source), scope))
        inside = words_of(argument, scope.source)
        return [(piece, quoted or part.quoted) for piece, quoted in _unprotected(inside, scope)]
    return [("" if operator.endswith("+") else value or "", part.quoted)]


def _unprotected(word: Word, scope: Scope) -> list[tuple[str, bool]]:
    """Pieces of a default; its unquoted text is split like an expansion's."""
    found: list[tuple[str, bool]] = []
    for part in word.parts:
        if isinstance(part, Literal) and not part.quoted:
            found.append((part.text, False))
        else:
            found += _pieces(Word((part,), word.line), scope)
    return found


def _edited(value: str, operator: str, argument: str, scope: Scope) -> str:
    """``${X%pattern}``, ``${X/old/new}``, ``${X:start:length}`` and changes of case."""
    if marks(value):
        return value
    given = text(words_of(argument, scope.source), scope)
    if operator[0] in "^,":
        change = str.upper if operator[0] == "^" else str.lower
        return change(value) if len(operator) == 2 else change(value[:1]) + value[1:]
    if operator[0] in "%#":
        return _cut(value, given, front=operator[0] == "#", longest=len(operator) == 2)
    if operator[0] == "/":
        old, _, new = given.partition("/")
        pattern = re.compile(fnmatch.translate(old).removesuffix(r"\Z").removesuffix(r"\z"))
        return pattern.sub(lambda _: new, value, count=0 if len(operator) == 2 else 1)
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
