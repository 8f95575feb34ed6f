"""A launch script parsed into commands, and its words into literal text and ``$`` expansions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import MappingProxyType
from typing import NamedTuple

from ringproof.errors import InputError, shown
from ringproof.launch.shell.budget import ReadingBudget

TOKEN = re.compile(
    r"""(?P<skipped>[ \t\r]+|\\\r?\n|\#[^\n]*)
    |(?P<redirection>\d*(?:&>>?|>&|<&|>>|<<<|<<-?|>\||[<>](?!\()))(?:[ \t\r]|\\\r?\n)*
    |(?P<operator>&&|\|\||\|&|;;&?|;&|[;&|()\n])""",
    re.VERBOSE,
)
ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=", re.ASCII)
SPECIAL = re.compile(r"\$([A-Za-z_]\w*|[\d@*#?$!-])", re.ASCII)
"""A parameter without braces."""
CLOSING = MappingProxyType({"$(": ")", "${": "}", "`": "`", "<(": ")", ">(": ")"})
NAMES = MappingProxyType({'"': "double quote", "'": "quote"})
PLAIN = re.compile(r"[^\\$`'\"<>]+")
WHOLE = re.compile("[0-9]{1,9}")
META = " \t\r\n;&|()<>"
SEPARATORS = (";", "&", "\n")
ENDS = (")", ";;", ";&", ";;&")
"""Operators that end a list of commands."""


class WordPart(NamedTuple):
    """A part of a word: literal text, or an expansion with its ``$``."""

    text: str
    quoted: bool
    literal: bool


class Node(NamedTuple):
    """A command.

    Attributes:
        kind: ``simple``, ``((``, ``{``, ``(``, ``|``, ``&&``, ``||``, ``!``, ``if``, ``for``,
            ``while``, ``until``, ``case``, a ``choice`` of it, or ``function``.
        words: Words as they are written: of a simple command, after ``for`` or ``case``, the
            patterns of a choice, or a function's name.
        bodies: Commands inside: of ``if`` each condition before its body, and the body of
            ``else``; of ``while`` the condition and the body.
    """

    kind: str
    line: int
    words: tuple[str, ...] = ()
    bodies: tuple[tuple[Node, ...], ...] = ()


def parse(text: str, source: str, budget: ReadingBudget) -> tuple[Node, ...]:
    """Parse a script, which is paid for from a budget.

    Raises:
        InputError: The text is not a shell script, uses grammar that is not supported, or is too
            large.
    """
    budget.spend(characters=len(text))
    parser = _Parser(text, source, budget)
    body = parser.commands()
    if parser.text:
        raise parser.refuse("this is not understood here", "write the launch without it")
    return body


# -- words --------------------------------------------------------------------------------------


def whole_number(text: str) -> int | None:
    """Return a number of at most nine digits from 0 to 9, or ``None`` for any other text."""
    return int(text) if WHOLE.fullmatch(text) else None


def words_of(text: str) -> list[str]:
    """Return the words of a list, for example between the parentheses of an array."""
    return [token.text for token in _tokens(text, "", ReadingBudget()) if token.kind == "word"]


def parts_of(text: str, *, quoted: bool = False) -> Iterator[WordPart]:
    """Yield the parts of a word, or of the default in ``${X:-default}``.

    Args:
        quoted: Whether it stands in double quotes.
    """
    at = 0
    while at < len(text):
        start, letter, at = at, text[at], _after(text, at, quoted=quoted)
        if letter == "\\":
            kept = "\\" if quoted and text[start + 1 : at] not in (*'$`"\\\n', "") else ""
            yield WordPart(kept + text[start + 1 : at].replace("\n", ""), True, True)
        elif letter == "'" and not quoted:
            yield WordPart(text[start + 1 : at - 1], True, True)
        elif letter == '"' and not quoted:
            yield WordPart("", True, True)
            yield from parts_of(text[start + 1 : at - 1], quoted=True)
        elif at > start + 1:
            yield WordPart(text[start:at], quoted, False)
        elif name := SPECIAL.match(text, start):
            at = name.end()
            yield WordPart(name[0], quoted, False)
        else:
            run = PLAIN.match(text, start)
            at = run.end() if run else at
            yield WordPart(text[start:at], quoted, True)


def _after(text: str, at: int, *, quoted: bool = False) -> int:
    """Return the place after a quoted text, an expansion, an escaped letter or a letter."""
    letter = text[at]
    if letter in "'\"" and not quoted:
        return _end(text, at + 1, letter)
    for opening, closing in CLOSING.items():
        if text.startswith(opening, at) and not (quoted and letter in "<>"):
            return _end(text, at + len(opening), closing)
    return min(at + 2, len(text)) if letter == "\\" else at + 1


def _end(text: str, at: int, closing: str) -> int:
    """Return the place after a closing mark that no quotes or brackets enclose.

    Raises:
        ValueError: There is none.
    """
    while at < len(text):
        if text[at] == closing:
            return at + 1
        if closing == ")" and text[at] == "(":
            at = _end(text, at + 1, ")")
        elif closing == ")" and text[at] == "#" and text[at - 1].isspace():
            at = (text + "\n").index("\n", at)
        else:
            at = at + 1 if closing == "'" else _after(text, at, quoted=closing == '"')
    raise ValueError(f"a {NAMES.get(closing, closing)} is not closed")


def _word_end(text: str, at: int, *, stops: str = META) -> int:
    start = at
    while at < len(text):
        if text[at] == "(" and ASSIGNED.fullmatch(text, start, at):
            at = _end(text, at + 1, ")")
        elif text[at] in stops and not text.startswith(("<(", ">("), at):
            break
        else:
            at = _after(text, at)
    return at


# -- tokens -------------------------------------------------------------------------------------


class _Token(NamedTuple):
    """A word, an operator, or ``((`` with the arithmetic inside."""

    kind: str
    text: str
    line: int


def _tokens(text: str, source: str, budget: ReadingBudget) -> Iterator[_Token]:
    """Yield the tokens of a script; redirections, here-documents and comments are left out."""
    lexer = _Lexer(text, budget)
    while lexer.at < len(text):
        start, line = lexer.at, lexer.line
        try:
            token = lexer.read()
        except ValueError as problem:
            rest = text[start : start + 40].split("\n")[0]
            raise InputError(
                f"{source}:{line}", f"{problem} in {shown(rest)}; close it"
            ) from problem
        if token is not None:
            yield token
        lexer.line += text.count("\n", start, lexer.at)


class _Lexer:
    """A place in a script, and what the tokens before it decide.

    Attributes:
        in_test: Whether it is between ``[[`` and ``]]``, where operators are words.
        in_pattern: Whether a regular expression stands next.
        here: Delimiters of here-documents that begin after this line.
    """

    def __init__(self, text: str, budget: ReadingBudget) -> None:
        self.text, self.at, self.line, self._budget = text, 0, 1, budget
        self.in_test = self.in_pattern = False
        self.here: list[str] = []

    def read(self) -> _Token | None:
        """Go on to the next place; return the token in between, or ``None`` without one.

        Raises:
            ValueError: A quote or a bracket is not closed.
        """
        text, start, found = self.text, self.at, TOKEN.match(self.text, self.at)
        if text.startswith("((", start) and text[(end := self._closed(start)) - 2] == ")":
            self.at = end
            return _Token("((", text[start + 2 : end - 2], self.line)
        if self.in_pattern and not (found and found["skipped"]):
            self.at, self.in_pattern = _word_end(text, start, stops=" \t\n"), False
            return _Token("word", text[start : self.at], self.line)
        if found is None or (self.in_test and found["redirection"]):
            self.at = found.end() if found else _word_end(text, start)
            word = found["redirection"] if found else text[start : self.at]
            self.in_test = word == "[[" or (self.in_test and word != "]]")
            self.in_pattern = self.in_test and word == "=~"
            return _Token("word", word, self.line)
        self.at = found.end()
        if found["redirection"]:
            self.at = _word_end(text, found.end())
            if found["redirection"].lstrip("0123456789") in ("<<", "<<-"):
                target = parts_of(text[found.end() : self.at])
                self.here.append("".join(part.text for part in target))
            return None
        if found[0] == "\n":
            self.at, self.here = _after_documents(text, self.at, self.here), []
        if found["operator"] and not (self.in_test and found[0] == "\n"):
            return _Token("word" if self.in_test else "operator", found[0], self.line)
        return None

    def _closed(self, start: int) -> int:
        """Return the place after parentheses, whose text is read again where they hold commands."""
        end = _end(self.text, start + 1, ")")
        self._budget.spend(characters=4 * (end - start))  # letter by letter, which is slow
        return end


def _after_documents(text: str, at: int, delimiters: list[str]) -> int:
    for delimiter in delimiters:
        closing = re.compile(rf"^\t*{re.escape(delimiter)}\r?(\n|\Z)", re.MULTILINE)
        found = closing.search(text, at)
        at = found.end() if found else len(text)
    return at


# -- commands -----------------------------------------------------------------------------------


class _Parser:
    """A recursive-descent parser over tokens."""

    def __init__(self, text: str, source: str, budget: ReadingBudget) -> None:
        self._source, self._rest = source, list(_tokens(text, source, budget))[::-1]
        self._last = _Token("", "", text.count("\n") + 1)

    @property
    def token(self) -> _Token:
        """The token that stands next; an empty one at the end."""
        return self._rest[-1] if self._rest else self._last

    @property
    def text(self) -> str:
        """The text of the token that stands next."""
        return self.token.text

    def refuse(self, problem: str, remedy: str) -> InputError:
        """Return the error for what stands next."""
        rest = self.text[:40].split("\n")[0]
        return InputError(f"{self._source}:{self.token.line}", f"{shown(rest)} {problem}; {remedy}")

    def _take(self, *texts: str) -> str:
        """Take the next token, which has to be one of these where some are given."""
        if texts:
            self._skip()
        if not self._rest or (texts and self.text not in texts):
            expected = repr(texts[0]) if texts else "a word"
            raise self.refuse(f"{expected} is expected here", "correct the script")
        return self._rest.pop().text

    def _skip(self, *texts: str) -> None:
        while self._rest and self.text in (texts or SEPARATORS):
            self._rest.pop()

    def commands(self, *stops: str) -> tuple[Node, ...]:
        """Parse commands up to one of these reserved words, which is left standing."""
        found: list[Node] = []
        self._skip()
        while self._rest and self.text not in (*ENDS, *stops):
            found.append(self._chain())
            self._skip()
        return tuple(found)

    def _until(self, word: str) -> tuple[Node, ...]:
        body = self.commands(word)
        self._take(word)
        return body

    def _chain(self) -> Node:
        left = self._pipeline()
        while self.text in ("&&", "||"):
            operator, line = self._take(), self.token.line
            self._skip("\n")
            left = Node(operator, line, bodies=((left,), (self._pipeline(),)))
        return left

    def _pipeline(self) -> Node:
        line, negated = self.token.line, False
        while self.text == "!":
            negated = self._take() == "!" and not negated
        parts = [self._command()]
        while self.text in ("|", "|&"):
            self._take()
            self._skip("\n")
            parts.append(self._command())
        piped = parts[0] if len(parts) == 1 else Node("|", line, bodies=(tuple(parts),))
        return Node("!", line, bodies=((piped,),)) if negated else piped

    def _command(self) -> Node:
        kind, first, line = self.token
        if kind == "((":
            return Node("((", line, (self._take(),))
        match first:
            case "{" | "(":
                self._take()
                return Node(first, line, bodies=(self._until("}" if first == "{" else ")"),))
            case "if":
                return self._if(line)
            case "for":
                return self._for(line)
            case "while" | "until":
                self._take()
                return Node(first, line, bodies=(self._until("do"), self._until("done")))
            case "case":
                return self._case(line)
            case "function":
                self._take()
                return self._function(self._take(), line)
        words: list[str] = []
        while self.token.kind == "word":
            words.append(self._take())
        if len(words) == 1 and [token.text for token in self._rest[:-3:-1]] == ["(", ")"]:
            return self._function(words[0], line)
        if not words:
            raise self.refuse("this is not understood here", "write the launch without it")
        return Node("simple", line, tuple(words))

    def _function(self, name: str, line: int) -> Node:
        self._skip("(", ")", "\n")
        return Node("function", line, (name,), ((self._command(),),))

    def _if(self, line: int) -> Node:
        bodies: list[tuple[Node, ...]] = []
        while self.text in ("if", "elif"):
            self._take()
            bodies += [self._until("then"), self.commands("elif", "else", "fi")]
        if self._take("else", "fi") == "else":
            bodies.append(self._until("fi"))
        return Node("if", line, bodies=tuple(bodies))

    def _for(self, line: int) -> Node:
        self._take()
        words = []
        while self.text not in SEPARATORS and self.text != "do":
            words.append(self._take())
        self._take("do")
        return Node("for", line, tuple(words), (self._until("done"),))

    def _case(self, line: int) -> Node:
        self._take()
        word = self._take()
        self._take("in")
        choices: list[Node] = []
        self._skip()
        while self.text != "esac":
            self._skip("(")
            place, patterns = self.token.line, [self._take()]
            while self.text == "|":
                self._take()
                patterns.append(self._take())
            self._take(")")
            choices.append(Node("choice", place, tuple(patterns), (self.commands("esac"),)))
            self._skip(*ENDS[1:], *SEPARATORS)
        self._take("esac")
        return Node("case", line, (word,), (tuple(choices),))
