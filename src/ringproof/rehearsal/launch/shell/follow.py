"""A launch script followed without an execution: which commands it would run, with which words."""

from __future__ import annotations

import contextlib
import fnmatch
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from ringproof.errors import InputError
from ringproof.rehearsal.launch.shell.expand import (
    NotKnown,
    Scope,
    Value,
    fields,
    marks,
    named,
    number,
    plain,
    readable,
    text,
    unknown,
    without_marks,
)
from ringproof.rehearsal.launch.shell.parse import (
    Arithmetic,
    Assignment,
    Case,
    Chain,
    Function,
    Group,
    If,
    Loop,
    Node,
    Simple,
    Word,
    parse,
)

MOST_ROUNDS = 1000
MOST_CALLS = 50
CHANGED = re.compile(r"\s*([A-Za-z_]\w*)\s*([-+*/%]?)(=(?!=)|\+\+|--)(.*)", re.DOTALL)

LEAVING = ("exit", "return", "break", "continue")
READING = ("read", "mapfile", "readarray", "getopts")
BUILTINS = frozenset(
    (*LEAVING, *READING, "source", ".", "eval", "shift", "set", "unset", "true", "false", ":")
)

Status = bool | None | str
RAN = "ran"  # a command that was not executed, and that is taken to succeed

COMPARED: Mapping[str, Callable[[int, int], bool]] = MappingProxyType(
    {
        "-eq": operator.eq,
        "-ne": operator.ne,
        "-lt": operator.lt,
        "-le": operator.le,
        "-gt": operator.gt,
        "-ge": operator.ge,
    }
)
ORDERED: Mapping[str, Callable[[str, str], bool]] = MappingProxyType(
    {"=": operator.eq, "==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt}
)


@dataclass(frozen=True)
class Token:
    """One word of a test.

    Attributes:
        text: Expanded, with its marks.
        bare: Whether it was written without quotes and expansions.
    """

    text: str
    bare: bool


class Test:
    """One test, read from left to right.

    Args:
        patterns: Whether the right side of ``==`` is a pattern, as in ``[[ ]]``.
    """

    def __init__(self, tokens: Sequence[Token], scope: Scope, *, patterns: bool) -> None:
        self._tokens, self._scope, self._patterns, self._at = tokens, scope, patterns, 0

    def answer(self) -> bool | None:
        """Return the test's answer, or ``None`` where only an execution would give it."""
        return self._or() if self._tokens else False

    def _next(self, *texts: str) -> bool:
        if self._at < len(self._tokens):
            token = self._tokens[self._at]
            if token.bare and token.text in texts:
                self._at += 1
                return True
        return False

    def _or(self) -> bool | None:
        found = self._and()
        while self._next("-o", "||"):
            other = self._and()
            found = True if found or other else None if None in (found, other) else False
        return found

    def _and(self) -> bool | None:
        found = self._not()
        while self._next("-a", "&&"):
            other = self._not()
            known = None not in (found, other)
            found = False if found is False or other is False else True if known else None
        return found

    def _not(self) -> bool | None:
        if self._next("!"):
            found = self._not()
            return None if found is None else not found
        if self._next("("):
            found = self._or()
            self._next(")")
            return found
        return self._primary()

    def _take(self) -> Token:
        token = self._tokens[self._at] if self._at < len(self._tokens) else Token("", True)
        self._at += 1
        return token

    def _primary(self) -> bool | None:
        left = self._take()
        if left.bare and re.fullmatch(r"-[a-zA-Z]", left.text) and self._at < len(self._tokens):
            following = self._tokens[self._at]
            if not (following.bare and following.text in (*ORDERED, *COMPARED, "=~")):
                return self._unary(left.text, self._take())
        if self._next("=~"):
            return self._matches(left, self._take())
        for name in (*ORDERED, *COMPARED):
            if self._next(name):
                return self._binary(left, name, self._take())
        return self._known(left, lambda text: text != "")

    def _known(self, token: Token, judge: Callable[[str], bool]) -> bool | None:
        try:
            return judge(plain(token.text))
        except NotKnown:
            return None

    def _unary(self, name: str, token: Token) -> bool | None:
        if name in ("-z", "-n"):
            return self._known(token, lambda text: (text == "") == (name == "-z"))
        if name == "-v":
            return self._known(token, lambda text: self._scope.text(text) is not None)
        return None

    def _binary(self, left: Token, name: str, right: Token) -> bool | None:
        try:
            if name in COMPARED:
                first, second = (number(token.text, self._scope) for token in (left, right))
                return COMPARED[name](first, second)
            first_text, second_text = plain(left.text), plain(right.text)
        except NotKnown:
            return None
        if self._patterns and name in ("=", "==", "!="):
            return fnmatch.fnmatchcase(first_text, second_text) == (name != "!=")
        return ORDERED[name](first_text, second_text)

    def _matches(self, left: Token, right: Token) -> bool | None:
        try:
            return re.search(plain(right.text), plain(left.text)) is not None
        except (NotKnown, re.error):
            return None


@dataclass(frozen=True)
class Command:
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
class Followed:
    """What a script would do.

    Attributes:
        notes: Sentences about what was not read.
        exit_line: Line of the ``exit`` that ended it; 0 where it ran to its end.
    """

    commands: tuple[Command, ...]
    notes: tuple[str, ...]
    scope: Scope
    exit_line: int


class _Leave(Exception):
    """The script, a function or a loop is left."""

    def __init__(self, kind: str, line: int) -> None:
        self.kind, self.line = kind, line


def follow(
    script: str, source: str, sets: Mapping[str, str], folder: Path | None = None
) -> Followed:
    """Follow a script from its first line to its last.

    Nothing is executed: commands are collected, files are not looked at, except for scripts
    beside this one that it sources.

    Args:
        sets: Variables, which win over the script's own assignments; positional parameters are
            named ``1``, ``2`` and so on.
        folder: Folder in which sourced scripts are looked for.

    Raises:
        InputError: The script cannot be followed.
    """
    script, held = without_marks(script)
    follower = _Follower(source, {**sets, **held}, folder)
    exit_line = 0
    try:
        follower.run(parse(script, source))
    except _Leave as leave:
        exit_line = leave.line
    except RecursionError as problem:
        raise InputError(source, None, "its functions call themselves", "unroll it") from problem
    return Followed(tuple(follower.found), tuple(follower.notes), follower.scope(), exit_line)


class _Follower:
    """The variables and functions of a script while it is followed."""

    def __init__(
        self, source: str, sets: Mapping[str, str], folder: Path | None, depth: int = 0
    ) -> None:
        self._source, self._folder, self._depth = source, folder, depth
        self._sets = {name: value for name, value in sets.items() if not name.isdigit()}
        last = max((int(name) for name in sets if name.isdigit()), default=0)
        self._positional = tuple(sets.get(str(number), "") for number in range(1, last + 1))
        self._variables: dict[str, Value] = dict(self._sets)
        self._exported = set(self._sets)
        self._functions: dict[str, tuple[Node, ...]] = {}
        self._locals: list[dict[str, Value | None]] = []
        self._condition = ""
        self.found: list[Command] = []
        self.notes: list[str] = []

    def scope(self) -> Scope:
        """Return what is known at this place."""
        folder = "" if self._folder is None else str(self._folder)
        return Scope(self._variables, self._positional, self._source, folder, self._assign)

    def run(self, nodes: Iterable[Node]) -> Status:
        """Follow commands in order; return the last one's status."""
        status: Status = True
        for node in nodes:
            status = self._node(node)
        return status

    def _node(self, node: Node) -> Status:
        handler: Callable[[Node], Status] = getattr(self, f"_{type(node).__name__.lower()}")
        return handler(node)

    # -- lists and conditions ---------------------------------------------------------------

    def _chain(self, node: Chain) -> Status:
        status: Status = True
        for joined, negated, pipeline in node.parts:
            if joined and status is not None and (status is False) == (joined == "&&"):
                continue
            if joined and status is None:
                self._alternatives([pipeline, ()], f"{self._source}: a test before {joined}")
                continue
            status = self.run(pipeline)
            if len(pipeline) > 1:
                status = RAN
            if negated:
                status = None if status in (None, RAN) else not status
        return status

    def _if(self, node: If) -> Status:
        for index, (condition, body) in enumerate(node.branches):
            status = self.run(condition) if condition else True
            if status is True:
                return self.run(body)
            if status is not False:
                rest = [body for _, body in node.branches[index:]]
                closed = not node.branches[-1][0]
                self._alternatives(
                    rest if closed else [*rest, ()], f"the condition in line {node.line}"
                )
                return None
        return True

    def _alternatives(self, bodies: Sequence[tuple[Node, ...]], why: str) -> None:
        """Follow bodies of which only an execution would say which one runs."""
        before, condition = dict(self._variables), self._condition
        self._condition = condition or why
        ends: list[dict[str, Value]] = []
        for body in bodies:
            self._variables = dict(before)
            try:
                self.run(body)
            except _Leave:
                continue
            ends.append(self._variables)
        self._condition = condition
        self._variables = _merged(ends or [before], why)

    def _loop(self, node: Loop) -> Status:
        if node.words is not None:
            words = [part for word in node.words for part in fields(word, self.scope())]
            for value in words[:MOST_ROUNDS]:
                self._assign(node.name, value)
                if not self._round(node.body):
                    break
            return True
        for _ in range(MOST_ROUNDS):
            status = self.run(node.condition) if node.condition else None
            if status is None or status == RAN:
                self._alternatives([node.body, ()], f"the loop in line {node.line}")
                return None
            if status == node.until or not self._round(node.body):
                return True
        raise InputError(
            f"{self._source}:{node.line}", None, "this loop does not end", "write it out"
        )

    def _round(self, body: tuple[Node, ...]) -> bool:
        try:
            self.run(body)
        except _Leave as leave:
            if leave.kind not in ("break", "continue"):
                raise
            return leave.kind == "continue"
        return True

    def _case(self, node: Case) -> Status:
        bodies = [body for _, body in node.branches]
        try:
            value = plain(text(node.word, self.scope()))
            for patterns, body in node.branches:
                if any(fnmatchcase(value, plain(text(p, self.scope()))) for p in patterns):
                    return self.run(body)
        except NotKnown:
            self._alternatives([*bodies, ()], f"the choice in line {node.line}")
            return None
        return True

    def _function(self, node: Function) -> Status:
        self._functions[node.name] = node.body
        return True

    def _group(self, node: Group) -> Status:
        before = dict(self._variables), set(self._exported)
        try:
            return self.run(node.body)
        except _Leave:
            if not node.own:
                raise
            return RAN
        finally:
            if node.own:
                self._variables, self._exported = before

    def _arithmetic(self, node: Arithmetic) -> Status:
        changed = CHANGED.fullmatch(node.text)
        try:
            if changed is None:
                return number(node.text, self.scope()) != 0
            name, sign, kind, rest = changed.groups()
            change = f"{name} {kind[0]} 1" if kind != "=" else rest
            change = f"{name} {sign} ({rest})" if sign and kind == "=" else change
            self._assign(name, str(number(change, self.scope())))
        except NotKnown as problem:
            if changed:
                self._assign(changed.group(1), unknown(problem.text))
            return None
        return True

    # -- commands ---------------------------------------------------------------------------

    def _simple(self, node: Simple) -> Status:
        name = node.words[0].plain if node.words else None
        if name in ("[[", "[", "test"):
            return self._test(node, patterns=name == "[[")
        if name in ("export", "declare", "typeset", "local", "readonly"):
            return self._declare(node, name)
        if not node.words:
            for assignment in node.assignments:
                self._assignment(assignment)
            return True
        words = [part for word in node.words for part in fields(word, self.scope())]
        if words[:1] == ["exec"]:
            words = words[1:]
        if words and words[0] in BUILTINS:
            return self._builtin(words, node.line)
        if words and words[0] in self._functions:
            return self._call(words[0], tuple(words[1:]))
        script = self._script(words)
        if script is not None:
            return self._run_script(script, words)
        self._record(words, node)
        return RAN

    def _record(self, words: Sequence[str], node: Simple) -> None:
        environment: dict[str, str] = {}
        for name in sorted(self._exported):
            value = self.scope().text(name)
            if value is not None:
                environment[name] = value
        for assignment in node.assignments:
            if isinstance(assignment.value, Word):
                environment[assignment.name] = text(assignment.value, self.scope())
        frozen = MappingProxyType(environment)
        self.found.append(Command(tuple(words), frozen, node.line, self._condition))

    def _test(self, node: Simple, *, patterns: bool) -> Status:
        tokens: list[Token] = []
        for word in node.words[1:]:
            bare = word.plain is not None
            values = [text(word, self.scope())] if patterns else fields(word, self.scope())
            tokens += [Token(value, bare) for value in values]
        if tokens and node.words[0].plain != "test":
            tokens.pop()  # the closing bracket
        return Test(tokens, self.scope(), patterns=patterns).answer()

    def _declare(self, node: Simple, kind: str) -> Status:
        plain_names = [text(word, self.scope()) for word in node.words[1:]]
        options = "".join(name for name in plain_names if name.startswith("-"))
        names = [name for name in plain_names if not name.startswith("-")]
        for name in [*names, *(assignment.name for assignment in node.assignments)]:
            if kind == "local" and self._locals:
                self._locals[-1].setdefault(name, self._variables.get(name))
                if name in names:
                    self._variables.pop(name, None)
            if kind == "export" or "x" in options:
                self._exported.add(name)
        for assignment in node.assignments:
            self._assignment(assignment)
        return True

    def _assignment(self, node: Assignment) -> None:
        if isinstance(node.value, tuple):
            value: Value = tuple(part for word in node.value for part in fields(word, self.scope()))
        else:
            value = text(node.value, self.scope())
        before = self._variables.get(node.name)
        if node.append and before is not None:
            value = _appended(before, value)
        self._assign(node.name, value)

    def _assign(self, name: str, value: Value) -> None:
        if name in self._sets:
            return
        if isinstance(value, tuple):
            self._variables[name] = tuple(named(part, name) for part in value)
        else:
            self._variables[name] = named(value, name)

    def _call(self, name: str, words: tuple[str, ...]) -> Status:
        if len(self._locals) >= MOST_CALLS:
            raise RecursionError
        before, self._positional = self._positional, words
        self._locals.append({})
        try:
            return self.run(self._functions[name])
        except _Leave as leave:
            if leave.kind != "return":
                raise
            return RAN
        finally:
            self._positional = before
            for local, value in self._locals.pop().items():
                self._variables.pop(local, None)
                if value is not None:
                    self._variables[local] = value

    # -- builtins ---------------------------------------------------------------------------

    def _builtin(self, words: Sequence[str], line: int) -> Status:
        name, rest = words[0], words[1:]
        if name in LEAVING:
            raise _Leave(name, line)
        if name in ("source", ".", "eval"):
            return (self._eval if name == "eval" else self._source_file)(rest, line)
        changes = {"shift": self._shift, "set": self._set, "unset": self._unset}
        if name in changes:
            return changes[name](rest)
        return self._forget(rest) if name in READING else name != "false"

    def _shift(self, words: Sequence[str]) -> Status:
        count = int(words[0]) if words and words[0].isdigit() else 1
        self._positional = self._positional[count:]
        return True

    def _set(self, words: Sequence[str]) -> Status:
        if "--" in words:
            self._positional = tuple(words[words.index("--") + 1 :])
        return True

    def _unset(self, words: Sequence[str]) -> Status:
        for name in words:
            if name not in self._sets:
                self._variables.pop(name, None)
                self._exported.discard(name)
        return True

    def _forget(self, words: Sequence[str]) -> Status:
        for name in words:
            if re.fullmatch(r"[A-Za-z_]\w*", name):
                self._assign(name, unknown(f"what is read into {name}"))
        return RAN

    def _eval(self, words: Sequence[str], line: int) -> Status:
        script, held = without_marks(" ".join(words))
        self._variables.update(held)
        return self.run(parse(script, f"{self._source}:{line}"))

    def _script(self, words: Sequence[str]) -> Path | None:
        """Return the script beside this one that a command runs, or ``None``."""
        name = next((w for w in words if PurePosixPath(w).name not in ("bash", "sh")), "")
        if self._folder is None or marks(name) or not name.endswith(".sh"):
            return None
        path = self._folder / name
        return path if path.is_file() else None

    def _run_script(self, path: Path, words: Sequence[str]) -> Status:
        """Follow another script with its own variables."""
        if self._depth >= MOST_CALLS:
            raise RecursionError
        inner = _Follower(path.name, self._sets, path.parent, self._depth + 1)
        first = next(index for index, word in enumerate(words) if word.endswith(path.name))
        inner._positional = tuple(words[first + 1 :])
        for name in self._exported:
            inner._variables.setdefault(name, self._variables.get(name, ""))
        inner._exported |= self._exported
        inner._condition = self._condition
        with contextlib.suppress(_Leave):
            inner.run(parse(path.read_text(encoding="utf-8"), path.name))
        self.found += inner.found
        self.notes += inner.notes
        return RAN

    def _source_file(self, words: Sequence[str], line: int) -> Status:
        name = words[0] if words else ""
        if self._folder is not None and not marks(name):
            path = self._folder / name
            if path.suffix == ".sh" and path.is_file():
                return self.run(parse(path.read_text(encoding="utf-8"), path.name))
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
