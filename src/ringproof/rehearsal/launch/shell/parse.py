"""A launch script parsed into words, with quotes and ``$`` expansions, and commands."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from ringproof.errors import InputError

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SPACE = " \t\r"
META = " \t\r\n;&|()<>"
ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
DEFINED = re.compile(r"([A-Za-z_][A-Za-z0-9_.:-]*)[ \t]*\([ \t]*\)")
REDIRECTION = re.compile(r"\d*(?:&>>?|>&|<&|>>|<<<|<<-?|>\||[<>])")
DECLARING = ("declare", "typeset", "local", "export", "readonly")


@dataclass(frozen=True)
class Literal:
    """Text that stands for itself."""

    text: str
    quoted: bool


@dataclass(frozen=True)
class Expansion:
    """A ``$`` expansion.

    Attributes:
        kind: ``parameter``, ``arithmetic`` or ``command``.
        source: Text as written, for messages.
    """

    kind: str
    body: str
    source: str
    quoted: bool


@dataclass(frozen=True)
class Word:
    """One word, before expansion."""

    parts: tuple[Literal | Expansion, ...]
    line: int

    @property
    def plain(self) -> str | None:
        """The text of a word without quotes and expansions, otherwise ``None``."""
        if all(isinstance(part, Literal) and not part.quoted for part in self.parts):
            return "".join(part.text for part in self.parts if isinstance(part, Literal))
        return None


@dataclass(frozen=True)
class Assignment:
    """``NAME=value``, ``NAME+=value`` or ``NAME=( words )``."""

    name: str
    append: bool
    value: Word | tuple[Word, ...]


@dataclass(frozen=True)
class Simple:
    """A command with its arguments; redirections are left out."""

    assignments: tuple[Assignment, ...]
    words: tuple[Word, ...]
    line: int


@dataclass(frozen=True)
class If:
    """Conditions with their bodies; the last condition is empty for ``else``."""

    branches: tuple[tuple[tuple[Node, ...], tuple[Node, ...]], ...]
    line: int


@dataclass(frozen=True)
class Loop:
    """A ``for`` loop (with ``name`` and ``words``), or a ``while`` or ``until`` loop."""

    name: str
    words: tuple[Word, ...] | None
    condition: tuple[Node, ...]
    until: bool
    body: tuple[Node, ...]
    line: int


@dataclass(frozen=True)
class Case:
    """``case WORD in``, with the patterns and the body of each branch."""

    word: Word
    branches: tuple[tuple[tuple[Word, ...], tuple[Node, ...]], ...]
    line: int


@dataclass(frozen=True)
class Function:
    """A function's definition."""

    name: str
    body: tuple[Node, ...]


@dataclass(frozen=True)
class Group:
    """A list in braces, or in parentheses (``own`` variables)."""

    body: tuple[Node, ...]
    own: bool


@dataclass(frozen=True)
class Arithmetic:
    """``(( expression ))``."""

    text: str
    line: int


@dataclass(frozen=True)
class Chain:
    """Pipelines joined by ``&&`` and ``||``; the first operator is empty.

    Attributes:
        parts: Operator, whether the status is negated, and the commands of each pipeline.
    """

    parts: tuple[tuple[str, bool, tuple[Node, ...]], ...]


Node = Simple | If | Loop | Case | Function | Group | Arithmetic | Chain


def parse(text: str, source: str) -> tuple[Node, ...]:
    """Parse a script.

    Raises:
        InputError: The text is not a shell script, or uses grammar that is not supported.
    """
    parser = Parser(text, source)
    body = parser.commands()
    if parser.at < len(text):
        raise parser.refuse("this is not understood here", "write the launch without it")
    return body


def words_of(text: str, source: str, *, quoted: bool = False) -> Word:
    """Parse the word inside an expansion, for example the default in ``${X:-default}``.

    Raises:
        InputError: A quote or a bracket is not closed.
    """
    parser = Parser(text, source)
    parts: list[Literal | Expansion] = []
    while parser.at < len(text):
        parts += parser.part(quoted=quoted, stops="")
    return Word(tuple(parts), 1)


class Parser:
    """A recursive-descent parser over the characters of a script."""

    def __init__(self, text: str, source: str) -> None:
        self.text, self.source, self.at = text, source, 0
        self._here: list[tuple[str, bool]] = []

    # -- characters -------------------------------------------------------------------------

    def _line(self) -> int:
        return self.text.count("\n", 0, self.at) + 1

    def refuse(self, problem: str, remedy: str) -> InputError:
        """Return the error for what stands next."""
        rest = self.text[self.at : self.at + 40].split("\n")[0]
        return InputError(f"{self.source}:{self._line()}", rest or None, problem, remedy)

    def _looking_at(self, text: str) -> bool:
        return self.text.startswith(text, self.at)

    def _skip_space(self, *, lines: bool = False) -> None:
        """Skip spaces, continued lines and comments; with ``lines`` also line ends and ``;``."""
        while self.at < len(self.text):
            if self.text[self.at] in SPACE:
                self.at += 1
            elif self._looking_at("\\\n") or self._looking_at("\\\r\n"):
                self.at = self.text.index("\n", self.at) + 1
            elif self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif lines and self.text[self.at] == "\n":
                self.at += 1
                self._skip_here_documents()
            elif lines and self.text[self.at] == ";" and not self._looking_at(";;"):
                self.at += 1
            else:
                return

    def _skip_here_documents(self) -> None:
        for delimiter, tabs in self._here:
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                line = self.text[self.at : end]
                self.at = min(end + 1, len(self.text))
                if (line.lstrip("\t") if tabs else line).rstrip("\r") == delimiter:
                    break
        self._here = []

    # -- words ------------------------------------------------------------------------------

    def _word(self) -> Word | None:
        """Parse one word, or return ``None`` where none stands."""
        line, parts = self._line(), []
        while self.at < len(self.text) and self.text[self.at] not in META:
            if self._looking_at("\\\n"):
                self.at += 2
                continue
            parts += self.part(quoted=False, stops=META)
        if self.at < len(self.text) and self.text[self.at] in "<>" and self._looking_at_process():
            self.at += 1
            body = self._between("(", ")")
            parts.append(Expansion("command", body, f"<({body})", False))
        return Word(tuple(parts), line) if parts else None

    def _looking_at_process(self) -> bool:
        return self._looking_at("<(") or self._looking_at(">(")

    def part(self, *, quoted: bool, stops: str) -> list[Literal | Expansion]:
        """Parse the next piece of a word: quoted text, an expansion, or plain text."""
        text, letter = self.text, self.text[self.at]
        if letter == "\\":
            return [self._escape(quoted=quoted)]
        if letter == "'" and not quoted:
            end = self._find("'", self.at + 1)
            start, self.at = self.at + 1, end + 1
            return [Literal(text[start:end], True)]
        if letter == '"' and not quoted:
            self.at += 1
            parts: list[Literal | Expansion] = [Literal("", True)]
            while not self._looking_at('"'):
                if self.at >= len(text):
                    raise self.refuse("a double quote is not closed", "close it")
                parts += self.part(quoted=True, stops='"')
            self.at += 1
            return parts
        if letter in "$`":
            return [self._expansion(quoted=quoted)]
        start = self.at
        ends = stops + '\\$`"' + ("" if quoted else "'")
        self.at += 1
        while self.at < len(text) and text[self.at] not in ends:
            self.at += 1
        return [Literal(text[start : self.at], quoted)]

    def _escape(self, *, quoted: bool) -> Literal:
        following = self.text[self.at + 1 : self.at + 2]
        self.at += 2
        if following == "\n":
            return Literal("", quoted)
        if quoted and following not in '$`"\\':
            return Literal("\\" + following, True)
        return Literal(following, True)

    def _expansion(self, *, quoted: bool) -> Expansion | Literal:
        start = self.at
        if self._looking_at("$(("):
            self.at += 1
            if (body := self._arithmetic(start)) is not None:
                return Expansion("arithmetic", body, self.text[start : self.at], quoted)
        for opening, closing, kind in (("$(", ")", "command"), ("${", "}", "parameter")):
            if self._looking_at(opening):
                self.at += 1
                body = self._between(opening[1], closing)
                return Expansion(kind, body, self.text[start : self.at], quoted)
        if self._looking_at("`"):
            end = self._find("`", self.at + 1)
            self.at = end + 1
            return Expansion("command", self.text[start + 1 : end], self.text[start : end + 1],
                             quoted)  # fmt: skip
        name = NAME.match(self.text, start + 1)
        end = name.end() if name else start + 2
        body = self.text[start + 1 : end]
        if not name and (not body or body not in "0123456789@*#?$!-"):
            self.at += 1
            return Literal("$", quoted)
        self.at = end
        return Expansion("parameter", body, self.text[start:end], quoted)

    def _arithmetic(self, start: int) -> str | None:
        """Parse ``(( ))``, or go back to ``start`` where it is a command in parentheses."""
        body = self._between("(", ")")
        if body.startswith("(") and body.endswith(")"):
            return body[1:-1]
        self.at = start
        return None

    def _between(self, opening: str, closing: str) -> str:
        """Return what stands between a bracket that stands next and the one that closes it."""
        start, depth = self.at + 1, 0
        while self.at < len(self.text):
            letter = self.text[self.at]
            if letter == "\\":
                self.at += 1
            elif letter in "'\"":
                self.at = self._end_of_quote(letter)
            elif letter == opening and (opening == "(" or self.text[self.at - 1] == "$"):
                depth += 1
            elif letter == closing:
                depth -= 1
            self.at += 1
            if depth == 0:
                return self.text[start : self.at - 1]
        self.at = start - 1
        raise self.refuse(f"{opening!r} is not closed", "close it")

    def _end_of_quote(self, quote: str) -> int:
        at = self.at + 1
        while at < len(self.text) and self.text[at] != quote:
            at += 2 if quote == '"' and self.text[at] == "\\" else 1
        return at

    def _find(self, text: str, start: int) -> int:
        end = self.text.find(text, start)
        if end < 0:
            raise self.refuse(f"{text} is not closed", "close it")
        return end

    # -- commands ---------------------------------------------------------------------------

    def commands(self, *stops: str) -> tuple[Node, ...]:
        """Parse commands up to one of these reserved words, which is left standing."""
        found: list[Node] = []
        while True:
            self._skip_space(lines=True)
            if self.at >= len(self.text) or self._looking_at(")") or self._looking_at(";;"):
                return tuple(found)
            if stops and self._peek() in stops:
                return tuple(found)
            before = self.at
            found.append(self._chain())
            if self.at == before:
                raise self.refuse("this is not understood here", "write the launch without it")

    def _peek(self) -> str:
        """Return the plain word that stands next, without taking it."""
        start = self.at
        while self.at < len(self.text) and self.text[self.at] not in META + "'\"$`\\":
            self.at += 1
        found, self.at = self.text[start : self.at], start
        return found

    def _chain(self) -> Node:
        parts: list[tuple[str, bool, tuple[Node, ...]]] = []
        operator = ""
        while True:
            negated = False
            self._skip_space(lines=bool(operator))
            while self._peek() == "!":
                self.at, negated = self.at + 1, not negated
                self._skip_space()
            pipeline = [self._command()]
            while self._pipe():
                self._skip_space(lines=True)
                pipeline.append(self._command())
            parts.append((operator, negated, tuple(pipeline)))
            operator = next((text for text in ("&&", "||") if self._looking_at(text)), "")
            if not operator:
                break
            self.at += 2
        if self._looking_at("&"):
            self.at += 1
        only = parts[0]
        return only[2][0] if len(parts) == 1 and not only[1] and len(only[2]) == 1 else Chain(
            tuple(parts)
        )  # fmt: skip

    def _pipe(self) -> bool:
        self._skip_space()
        if not self._looking_at("|") or self._looking_at("||"):
            return False
        self.at += 2 if self._looking_at("|&") else 1
        return True

    def _command(self) -> Node:
        self._skip_space()
        line = self._line()
        if self._looking_at("((") and (body := self._arithmetic(self.at)) is not None:
            return self._redirected(Arithmetic(body, line))
        word = self._peek()
        if word == "{" or self._looking_at("("):
            self.at += 1
            return self._redirected(Group(self._until("}" if word else ")"), own=not word))
        compound: dict[str, Callable[[int], Node]] = {
            "if": self._if, "for": self._for, "while": self._while, "until": self._while,
            "case": self._case,
        }  # fmt: skip
        if word in compound:
            return self._redirected(compound[word](line))
        if word == "function":
            self._take("function")
            self._skip_space()
        defined = DEFINED.match(self.text, self.at)
        if defined or word == "function":
            name = defined.group(1) if defined else self._peek()
            self.at = defined.end() if defined else self.at + len(name)
            self._skip_space(lines=True)
            return Function(name, (self._command(),))
        return self._simple(line)

    def _take(self, text: str) -> None:
        """Take a reserved word, or a closing bracket."""
        self._skip_space(lines=True)
        if not (self._looking_at(text) if text == ")" else self._peek() == text):
            raise self.refuse(f"{text!r} is expected here", "correct the script")
        self.at += len(text)

    def _until(self, word: str) -> tuple[Node, ...]:
        """Parse commands up to a reserved word, and take that word."""
        body = self.commands(word)
        self._take(word)
        return body

    def _if(self, line: int) -> Node:
        branches: list[tuple[tuple[Node, ...], tuple[Node, ...]]] = []
        keyword = "if"
        while keyword in ("if", "elif"):
            self._take(keyword)
            branches.append((self._until("then"), self.commands("elif", "else", "fi")))
            keyword = self._peek()
        if keyword == "else":
            self._take("else")
            branches.append(((), self.commands("fi")))
        self._take("fi")
        return If(tuple(branches), line)

    def _for(self, line: int) -> Node:
        self._take("for")
        self._skip_space()
        if self._looking_at("(("):
            self._between("(", ")")
            name, words = "", None
        else:
            name, words = self._peek(), None
            self.at += len(name)
            self._skip_space()
            if self._peek() == "in":
                self._take("in")
                words = tuple(self._words())
        self._take("do")
        return Loop(name, words, (), False, self._until("done"), line)

    def _while(self, line: int) -> Node:
        keyword = self._peek()
        self._take(keyword)
        return Loop("", None, self._until("do"), keyword == "until", self._until("done"), line)

    def _case(self, line: int) -> Node:
        self._take("case")
        self._skip_space()
        word = self._word() or Word((), line)
        self._take("in")
        branches: list[tuple[tuple[Word, ...], tuple[Node, ...]]] = []
        while True:
            self._skip_space(lines=True)
            if self._peek() == "esac":
                self._take("esac")
                return Case(word, tuple(branches), line)
            if self._looking_at("("):
                self.at += 1
            patterns = [self._pattern()]
            while self._pipe():
                patterns.append(self._pattern())
            self._take(")")
            branches.append((tuple(patterns), self.commands("esac")))
            if self._looking_at(";;"):
                self.at += 2

    def _pattern(self) -> Word:
        self._skip_space()
        found = self._word()
        if found is None:
            raise self.refuse("a pattern is expected here", "correct the script")
        return found

    def _words(self, *, lines: bool = False) -> list[Word]:
        found: list[Word] = []
        while True:
            self._skip_space(lines=lines)
            word = self._word()
            if word is None:
                return found
            found.append(word)

    def _simple(self, line: int) -> Simple:
        assignments: list[Assignment] = []
        words: list[Word] = []
        while True:
            self._skip_space()
            declares = not words or words[0].plain in DECLARING
            assigned = ASSIGNED.match(self.text, self.at) if declares else None
            if assigned:
                assignments.append(self._assignment(assigned))
            elif self._redirection():
                continue
            elif words and words[0].plain == "[[" and self.text[self.at : self.at + 1] in "()<>|&":
                words.append(self._symbol())
            elif (word := self._word()) is not None:
                words.append(word)
                if len(words) > 1 and words[0].plain == "[[" and word.plain == "]]":
                    return Simple(tuple(assignments), tuple(words), line)
            elif words and words[0].plain == "[[" and self._looking_at("\n"):
                self.at += 1
            else:
                return Simple(tuple(assignments), tuple(words), line)

    def _symbol(self) -> Word:
        """Take an operator of ``[[ ]]`` that would otherwise end the command."""
        start, line = self.at, self._line()
        self.at += 2 if self.text[start : start + 2] in ("&&", "||") else 1
        return Word((Literal(self.text[start : self.at], False),), line)

    def _assignment(self, found: re.Match[str]) -> Assignment:
        self.at = found.end()
        name, append = found.group(1), bool(found.group(2))
        if not self._looking_at("("):
            return Assignment(name, append, self._word() or Word((), self._line()))
        self.at += 1
        words = self._words(lines=True)
        self._take(")")
        return Assignment(name, append, tuple(words))

    def _redirected(self, node: Node) -> Node:
        self._skip_space()
        while self._redirection():
            self._skip_space()
        return node

    def _redirection(self) -> bool:
        """Skip a redirection, its target and, later, its here-document."""
        found = REDIRECTION.match(self.text, self.at)
        if found is None or self._looking_at_process():
            return False
        self.at = found.end()
        self._skip_space()
        word = self._word()
        if word is not None and found.group().lstrip("0123456789") in ("<<", "<<-"):
            delimiter = "".join(part.text for part in word.parts if isinstance(part, Literal))
            self._here.append((delimiter, found.group().endswith("-")))
        return True
