"""A launch script followed without an execution: which commands it would run, with which words."""

from __future__ import annotations

import contextlib
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from ringproof.errors import InputError
from ringproof.files import looks_binary, read_bounded
from ringproof.launch.shell.budget import MOST_CHARACTERS, ReadingBudget
from ringproof.launch.shell.expand import (
    PRIVATE,
    NotKnown,
    Scope,
    Value,
    fields,
    marks,
    number,
    plain,
    readable,
    text,
    unknown,
    without_marks,
)
from ringproof.launch.shell.parse import ASSIGNED, Node, parse, whole_number, words_of

MOST_ROUNDS = 1000
MOST_CALLS = 50
MOST_ARGUMENTS = 1000
CHANGED = re.compile(r"\s*([A-Za-z_]\w*)\s*([-+*/%]?)(=(?!=)|\+\+|--)(.*)", re.DOTALL)

BUILTINS = (
    "exit", "return", "break", "continue", "read", "mapfile", "readarray", "getopts", "source", ".",
    "eval", "shift", "set", "unset", "true", "false", ":",
)  # fmt: skip

DECLARING = ("declare", "typeset", "local", "export", "readonly")

Status = bool | None | str
RAN = "ran"  # a command that was not executed, and that is taken to succeed

NUMBERS: Mapping[str, Callable[[int, int], bool]] = MappingProxyType(
    {f"-{name}": getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
)
TEXTS: Mapping[str, Callable[[str, str], bool]] = MappingProxyType(
    {"=": operator.eq, "==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt}
)


class Test:
    """A test.

    Args:
        words: The words of ``[ ]``, ``[[ ]]`` or ``test`` as they are written.
    """

    def __init__(self, words: Sequence[str], scope: Scope) -> None:
        self._scope, self._patterns = scope, words[0] == "[["
        self._tokens: list[tuple[str, bool]] = []
        for word in words[1:] if words[0] == "test" else words[1:-1]:
            bare = re.search(r"[\\'\"$`]", word) is None
            values = (text(word, scope),) if self._patterns else fields((word,), scope)
            self._tokens += [(value, bare) for value in values]

    def answer(self) -> bool | None:
        """Return the test's answer, or ``None`` where only an execution would give it."""
        return self._judge(self._tokens)

    def _judge(self, tokens: Sequence[tuple[str, bool]]) -> bool | None:
        for joiners, decided in ((("-o", "||"), True), (("-a", "&&"), False)):
            at = _outside(tokens, joiners)
            if at is not None:
                answers = self._judge(tokens[:at]), self._judge(tokens[at + 1 :])
                if decided in answers:
                    return decided
                return None if None in answers else not decided
        if tokens[:1] == [("!", True)]:
            answer = self._judge(tokens[1:])
            return None if answer is None else not answer
        if tokens[:1] == [("(", True)]:
            return self._judge(tokens[1:-1])
        try:
            return self._compared(*(token for token, _ in tokens))
        except (NotKnown, re.error):
            return None

    def _compared(self, *words: str) -> bool | None:
        match words:
            case (word,):
                return plain(word) != ""
            case ("-z" | "-n" as name, word):
                return (plain(word) == "") == (name == "-z")
            case ("-v", word):
                return self._scope.text(plain(word)) is not None
            case (left, "=~", right):
                return _matches(plain(right), plain(left))
            case (left, name, right) if name in NUMBERS:
                return NUMBERS[name](number(left, self._scope), number(right, self._scope))
            case (left, "=" | "==" | "!=" as name, right) if self._patterns:
                return fnmatchcase(plain(left), plain(right)) == (name != "!=")
            case (left, name, right) if name in TEXTS:
                return TEXTS[name](plain(left), plain(right))
        return None if words else False


REPEATED = re.compile(r"[*+{]")
COSTLY_GROUP = re.compile(r"[*+{|?][^()]*\)[*+{]|\)\)+[*+{]")
"""A repeated group in which something is repeated or chosen: the time may double by letter."""
NOT_OF_PYTHON = re.compile(r"\[\[[:.=]|\\[^\W\d_]|\(\?|[*+?}][+?]|\d{4}")
"""What bash's regular expressions and Python's do not have in common, and huge counts."""
MOST_TRIES = 10**9
LONGEST_FOR_COSTLY = 12


def _matches(pattern: str, value: str) -> bool | None:
    """Return whether a regular expression matches, or ``None`` where telling may take too long."""
    tries = (len(value) + 1) ** (len(REPEATED.findall(pattern)) + 1) * (len(pattern) + 1)
    longest = LONGEST_FOR_COSTLY if COSTLY_GROUP.search(pattern) else len(value)
    if NOT_OF_PYTHON.search(pattern) or tries > MOST_TRIES or len(value) > longest:
        return None
    return re.search(pattern, value) is not None


def _outside(tokens: Sequence[tuple[str, bool]], joiners: Sequence[str]) -> int | None:
    """Return the place of the first of these operators outside of parentheses."""
    depth = 0
    for at, (token, is_operator) in enumerate(tokens):
        if is_operator:
            depth += (token == "(") - (token == ")")
            if depth == 0 and token in joiners:
                return at
    return None


@dataclass(frozen=True)
class ScriptCommand:
    """One command that a script would run.

    Attributes:
        words: Expanded words; unknown values are marked (see `expand`).
        condition: The condition under which it runs, where that is not known; otherwise empty.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str]
    line: int
    condition: str


@dataclass(frozen=True)
class FollowedScript:
    """What a script would do.

    Attributes:
        notes: Sentences about what was not read.
        exit_line: Line of the ``exit`` that ended it; 0 where it ran to its end.
    """

    commands: tuple[ScriptCommand, ...]
    notes: tuple[str, ...]
    exit_line: int


class _Leave(Exception):
    """The script, a function or a loop is left."""

    def __init__(self, kind: str, line: int) -> None:
        self.kind, self.line = kind, line


def follow(
    script: str,
    source: str,
    sets: Mapping[str, str],
    folder: Path | None = None,
    budget: ReadingBudget | None = None,
) -> FollowedScript:
    """Follow a script from its first line to its last.

    Nothing is executed: commands are collected, files are not looked at, except for scripts
    beside this one that it sources.

    Args:
        sets: Variables, which win over the script's own assignments; positional parameters are
            named ``1``, ``2`` and so on.
        folder: Folder in which sourced scripts are looked for.
        budget: What the reading that this is a part of may still take; a new one by default.

    Raises:
        InputError: The script cannot be followed, or following it takes too much.
    """
    budget = budget or ReadingBudget()
    budget.place = source
    script, held = without_marks(script)
    exit_line = 0
    try:
        follower = _Follower(source, {**sets, **held}, folder, budget)
        follower.run(parse(script, source, budget))
    except _Leave as leave:
        exit_line = leave.line
    except RecursionError as why:
        raise InputError(source, "it is too deep, or functions call themselves; unroll it") from why
    return FollowedScript(tuple(follower.found), tuple(follower.notes), exit_line)


class _Follower(Scope):
    """The variables and functions of a script while it is followed."""

    def __init__(
        self,
        source: str,
        sets: Mapping[str, str],
        folder: Path | None,
        budget: ReadingBudget,
        depth: int = 0,
    ) -> None:
        places = [place for place in map(whole_number, sets) if place is not None]
        last = max(places, default=0)
        if last > MOST_ARGUMENTS:
            raise InputError(f"--set {last}", f"a script has at most {MOST_ARGUMENTS} arguments "
                             "here; give a lower number")  # fmt: skip
        positional = tuple(sets.get(str(number), "") for number in range(1, last + 1))
        super().__init__(source, folder, positional, budget=budget)
        self._sets = {k: value for k, value in sets.items() if whole_number(k) is None}
        self.variables |= self._sets
        self._exported = set(self._sets)
        self._functions: dict[str, tuple[Node, ...]] = {}
        self._locals: list[dict[str, Value | None]] = []
        self._condition, self._depth = "", depth
        self._file = source  # which a script that this one sources replaces for a while
        self.found: list[ScriptCommand] = []
        self.notes: list[str] = []

    def assign(self, name: str, value: Value) -> None:
        """Set a variable, unless its value was given from outside."""
        if name not in self._sets:
            super().assign(name, value)

    def run(self, nodes: Iterable[Node]) -> Status:
        """Follow commands in order; return the last one's status."""
        status: Status = True
        for node in nodes:
            self.budget.place = f"{self._file}:{node.line}"
            self.budget.spend(steps=1)
            status = self._node(node)
        return status

    def _node(self, node: Node) -> Status:
        match node.kind:
            case "simple":
                return self._simple(node)
            case "&&" | "||":
                return self._joined(node)
            case "!":
                status = self.run(node.bodies[0])
                return None if status in (None, RAN) else not status
            case "|":
                self.run(node.bodies[0])
                return RAN
            case "{":
                return self.run(node.bodies[0])
            case "(":
                return self._subshell(node)
            case "((":
                return self._arithmetic(node.words[0])
            case "if":
                return self._if(node)
            case "for":
                return self._for(node)
            case "while" | "until":
                return self._while(node)
            case "case":
                return self._case(node)
        self._functions[node.words[0]] = node.bodies[0]
        return True

    # -- lists and conditions ---------------------------------------------------------------

    def _joined(self, node: Node) -> Status:
        left, right = node.bodies
        status = self.run(left)
        if status is None:
            self._alternatives([right, ()], f"{self.source}: a test before {node.kind}")
        elif (status is False) == (node.kind == "||"):
            return self.run(right)
        return status

    def _if(self, node: Node) -> Status:
        pairs = list(zip(node.bodies[::2], node.bodies[1::2], strict=False))
        otherwise = node.bodies[-1] if len(node.bodies) % 2 else ()
        for index, (condition, body) in enumerate(pairs):
            status = self.run(condition)
            if status is True:
                return self.run(body)
            if status is not False:
                rest = [body for _, body in pairs[index:]]
                self._alternatives([*rest, otherwise], f"the condition in line {node.line}")
                return None
        return self.run(otherwise)

    def _alternatives(self, bodies: Sequence[tuple[Node, ...]], why: str) -> None:
        """Follow bodies of which only an execution would say which one runs."""
        self.budget.spend(steps=len(bodies) * len(self.variables) // 10)
        before, condition = dict(self.variables), self._condition
        self._condition = condition or why
        ends: list[dict[str, Value]] = []
        for body in bodies:
            self.variables = dict(before)
            try:
                self.run(body)
            except _Leave:
                continue
            ends.append(self.variables)
        self._condition = condition
        self.variables = _merged(ends or [before], why)

    def _for(self, node: Node) -> Status:
        if node.words[1:2] != ("in",):
            return self._perhaps(node)
        for value in fields(node.words[2:], self):
            self.assign(node.words[0], value)
            if not self._round(node.bodies[0]):
                break
        return True

    def _while(self, node: Node) -> Status:
        for _ in range(MOST_ROUNDS):
            status = self.run(node.bodies[0])
            if status in (None, RAN):
                return self._perhaps(node)
            if status == (node.kind == "until") or not self._round(node.bodies[1]):
                return True
        raise InputError(f"{self.source}:{node.line}", "this loop does not end; write it out")

    def _perhaps(self, loop: Node) -> Status:
        self._alternatives([loop.bodies[-1], ()], f"the loop in line {loop.line}")
        return None

    def _round(self, body: tuple[Node, ...]) -> bool:
        try:
            self.run(body)
        except _Leave as leave:
            if leave.kind not in ("break", "continue"):
                raise
            return leave.kind == "continue"
        return True

    def _case(self, node: Node) -> Status:
        choices = node.bodies[0]
        try:
            value = plain(text(node.words[0], self))
            for choice in choices:
                patterns = (plain(text(pattern, self)) for pattern in choice.words)
                if any(fnmatchcase(value, pattern) for pattern in patterns):
                    return self.run(choice.bodies[0])
        except NotKnown:
            bodies = [choice.bodies[0] for choice in choices]
            self._alternatives([*bodies, ()], f"the choice in line {node.line}")
            return None
        return True

    def _subshell(self, node: Node) -> Status:
        self.budget.spend(steps=len(self.variables) // 10)
        before = dict(self.variables), set(self._exported)
        try:
            return self.run(node.bodies[0])
        except _Leave:
            return RAN
        finally:
            self.variables, self._exported = before

    def _arithmetic(self, expression: str) -> Status:
        changed = CHANGED.fullmatch(expression)
        try:
            if changed is None:
                return number(expression, self) != 0
            name, sign, kind, rest = changed.groups()
            change = f"{name} {kind[0]} 1" if kind != "=" else rest
            change = f"{name} {sign} ({rest})" if sign and kind == "=" else change
            self.assign(name, str(number(change, self)))
        except NotKnown as problem:
            if changed:
                self.assign(changed.group(1), unknown(problem.text))
            return None
        return True

    # -- commands ---------------------------------------------------------------------------

    def _simple(self, node: Node) -> Status:
        given = list(takewhile(ASSIGNED.match, node.words))
        written = node.words[len(given) :]
        if not written:
            for assignment in given:
                self._assignment(assignment)
            return True
        if written[0] in ("[[", "[", "test"):
            return Test(written, self).answer()
        if written[0] in DECLARING:
            return self._declare(written[0], written[1:])
        words = fields(written, self)
        if words[:1] == ("exec",):
            words = words[1:]
        if words and words[0] in BUILTINS:
            return self._builtin(words, node.line)
        if words and words[0] in self._functions:
            return self._call(words[0], words[1:])
        script = self._script(words)
        if script is not None:
            return self._run_script(script, words, node.line)
        self._record(words, given, node.line)
        return RAN

    def _record(self, words: Sequence[str], given: Iterable[str], line: int) -> None:
        self.budget.spend(steps=len(self._exported) // 10)
        exported = ((name, self.text(name)) for name in sorted(self._exported))
        environment = {name: value for name, value in exported if value is not None}
        for name, _, value in map(self._assigned, given):
            if isinstance(value, str):
                environment[name] = value
        frozen = MappingProxyType(environment)
        self.found.append(ScriptCommand(tuple(words), frozen, line, self._condition))

    def _declare(self, kind: str, written: Sequence[str]) -> Status:
        assignments = [word for word in written if ASSIGNED.match(word)]
        words = [text(word, self) for word in written if word not in assignments]
        options = "".join(word for word in words if word.startswith("-"))
        names = [word for word in words if not word.startswith("-")]
        for name in [*names, *(word.partition("=")[0].rstrip("+") for word in assignments)]:
            if kind == "local" and self._locals:
                self._locals[-1].setdefault(name, self.variables.get(name))
                if name in names:
                    self.variables.pop(name, None)
            if kind == "export" or "x" in options:
                self._exported.add(name)
        for assignment in assignments:
            self._assignment(assignment)
        return True

    def _assignment(self, word: str) -> None:
        name, append, value = self._assigned(word)
        before = self.variables.get(name)
        self.assign(name, _appended(before, value) if append and before is not None else value)

    def _assigned(self, word: str) -> tuple[str, str, Value]:
        """Return the name, whether the value is appended, and the value of an assignment."""
        target, _, value = word.partition("=")
        append = "+" if target.endswith("+") else ""
        if value.startswith("("):
            return target.rstrip("+"), append, fields(words_of(value[1:-1]), self)
        return target.rstrip("+"), append, text(value, self)

    def _call(self, name: str, words: tuple[str, ...]) -> Status:
        if len(self._locals) >= MOST_CALLS:
            raise RecursionError
        before, self.positional = self.positional, words
        self._locals.append({})
        try:
            return self.run(self._functions[name])
        except _Leave as leave:
            if leave.kind != "return":
                raise
            return RAN
        finally:
            self.positional = before
            for local, value in self._locals.pop().items():
                self.variables.pop(local, None)
                if value is not None:
                    self.variables[local] = value

    # -- builtins ---------------------------------------------------------------------------

    def _builtin(self, words: Sequence[str], line: int) -> Status:
        name, rest = words[0], words[1:]
        match name:
            case "exit" | "return" | "break" | "continue":
                raise _Leave(name, line)
            case "eval":
                return self._eval(rest, line)
            case "source" | ".":
                return self._source_file(rest, line)
            case "shift":
                count = whole_number(rest[0]) if rest else None
                self.positional = self.positional[1 if count is None else count :]
            case "set" if "--" in rest:
                self.positional = tuple(rest[rest.index("--") + 1 :])
            case "read" | "mapfile" | "readarray" | "getopts":
                for word in rest:
                    if re.fullmatch(r"[A-Za-z_]\w*", word):
                        self.assign(word, unknown(f"what is read into {word}"))
                return RAN
            case "unset":
                for word in rest:
                    if word not in self._sets:
                        self.variables.pop(word, None)
                        self._exported.discard(word)
        return name != "false"

    def _eval(self, words: Sequence[str], line: int) -> Status:
        script, held = without_marks(" ".join(words))
        self.variables.update(held)
        return self.run(parse(script, f"{self.source}:{line}", self.budget))

    def _script(self, words: Sequence[str]) -> Path | None:
        """Return the script beside this one that a command runs, or ``None``."""
        name = next((w for w in words if PurePosixPath(w).name not in ("bash", "sh")), "")
        if self.folder is None or marks(name) or not name.endswith(".sh"):
            return None
        return self._beside(name)

    def _beside(self, name: str) -> Path | None:
        """Return a file in the script's folder, or ``None`` where there is none of this name."""
        try:
            path = (self.folder or Path()) / name
            return path if self.folder is not None and path.is_file() else None
        except (OSError, ValueError):  # a name that is too long, or has a zero in it
            return None

    def _read(self, path: Path) -> str | None:
        """Return another script's text, or ``None`` where it is too large or is not text."""
        self.budget.spend(files=1)
        try:
            data = read_bounded(path, MOST_CHARACTERS)
            return None if looks_binary(data) else PRIVATE.sub("?", data.decode("utf-8"))
        except (OSError, UnicodeDecodeError):
            return None

    def _run_script(self, path: Path, words: Sequence[str], line: int) -> Status:
        """Follow another script with its own variables."""
        if self._depth >= MOST_CALLS:
            raise RecursionError
        inner = _Follower(path.name, self._sets, path.parent, self.budget, self._depth + 1)
        first = next(index for index, word in enumerate(words) if word.endswith(path.name))
        inner.positional = tuple(words[first + 1 :])
        for name in self._exported:
            inner.variables.setdefault(name, self.variables.get(name, ""))
        inner._exported |= self._exported
        inner._condition = self._condition
        script = self._read(path)
        if script is None:
            self.notes.append(f"line {line}: the script {path.name} was not read")
            return RAN
        with contextlib.suppress(_Leave):
            inner.run(parse(script, path.name, self.budget))
        self.found += inner.found
        self.notes += inner.notes
        return RAN

    def _source_file(self, words: Sequence[str], line: int) -> Status:
        name = words[0] if words else ""
        path = None if marks(name) or not name.endswith(".sh") else self._beside(name)
        script = None if path is None else self._read(path)
        if path is not None and script is not None:
            before, self._file = self._file, path.name
            try:
                return self.run(parse(script, path.name, self.budget))
            finally:
                self._file = before
        self.notes.append(f"line {line}: the sourced file {readable(name)} was not read")
        return RAN


def _merged(ends: Sequence[Mapping[str, Value]], why: str) -> dict[str, Value]:
    """Variables after several possible ways; those that differ are unknown."""
    merged: dict[str, Value] = {}
    for name in dict.fromkeys(name for end in ends for name in end):
        values = [end.get(name) for end in ends]
        same = all(value == values[0] for value in values)
        value = values[0] if same else unknown(f"{name}, which depends on {why}", name)
        if value is not None:
            merged[name] = value
    return merged


def _appended(before: Value, value: Value) -> Value:
    if isinstance(value, tuple):
        return (before if isinstance(before, tuple) else (before,)) + value
    if isinstance(before, tuple):
        return (before[0] + value, *before[1:]) if before else (value,)
    return before + value
