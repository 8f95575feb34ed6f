"""The shell's words: quotes, escapes and ``$`` expansions, parsed and not expanded."""

from __future__ import annotations

import re

from ringproof.errors import InputError
from ringproof.rehearsal.shell_tree import Expansion, Literal, Word

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SPACE = " \t\r"
META = " \t\r\n;&|()<>"


class WordParser:
    """A recursive-descent parser over the characters of a script.

    Args:
        text: The script.
        source: Its name, for messages.
    """

    def __init__(self, text: str, source: str) -> None:
        self.text, self.source, self.at = text, source, 0
        self._here: list[tuple[str, bool]] = []

    # -- characters -------------------------------------------------------------------------

    def line(self) -> int:
        """Return the line of the next character, from 1."""
        return self.text.count("\n", 0, self.at) + 1

    def refuse(self, problem: str, remedy: str) -> InputError:
        """Return the error for what stands next."""
        rest = self.text[self.at : self.at + 40].split("\n")[0]
        return InputError(f"{self.source}:{self.line()}", rest or None, problem, remedy)

    def looking_at(self, text: str) -> bool:
        """Return whether a text stands next."""
        return self.text.startswith(text, self.at)

    def skip_space(self, *, lines: bool = False) -> None:
        """Skip spaces, continued lines and comments; with ``lines`` also line ends and ``;``."""
        while self.at < len(self.text):
            if self.text[self.at] in SPACE:
                self.at += 1
            elif self.looking_at("\\\n") or self.looking_at("\\\r\n"):
                self.at = self.text.index("\n", self.at) + 1
            elif self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif lines and self.text[self.at] == "\n":
                self.at += 1
                self._skip_here_documents()
            elif lines and self.text[self.at] == ";" and not self.looking_at(";;"):
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

    def word(self) -> Word | None:
        """Parse one word, or return ``None`` where none stands."""
        line, parts = self.line(), []
        while self.at < len(self.text) and self.text[self.at] not in META:
            if self.looking_at("\\\n"):
                self.at += 2
                continue
            parts += self.part(quoted=False, stops=META)
        if self.at < len(self.text) and self.text[self.at] in "<>" and self.looking_at_process():
            self.at += 1
            body = self._between("(", ")")
            parts.append(Expansion("command", body, f"<({body})", False))
        return Word(tuple(parts), line) if parts else None

    def looking_at_process(self) -> bool:
        """Return whether a process substitution stands next."""
        return self.looking_at("<(") or self.looking_at(">(")

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
            while not self.looking_at('"'):
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
        if self.looking_at("$((") and (body := self._arithmetic()) is not None:
            return Expansion("arithmetic", body, self.text[start : self.at], quoted)
        for opening, closing, kind in (("$(", ")", "command"), ("${", "}", "parameter")):
            if self.looking_at(opening):
                self.at += 1
                body = self._between(opening[1], closing)
                return Expansion(kind, body, self.text[start : self.at], quoted)
        if self.looking_at("`"):
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

    def _arithmetic(self) -> str | None:
        """Parse ``$(( ))``; put the place back where it is a command in parentheses."""
        start = self.at
        self.at += 1
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

    def here_document(self, delimiter: str, *, tabs: bool) -> None:
        """Note that a here-document starts on the next line."""
        self._here.append((delimiter, tabs))


def words_of(text: str, source: str, *, quoted: bool = False) -> Word:
    """Parse the word inside an expansion, for example the default in ``${X:-default}``.

    Raises:
        InputError: A quote or a bracket is not closed.
    """
    parser = WordParser(text, source)
    parts: list[Literal | Expansion] = []
    while parser.at < len(text):
        parts += parser.part(quoted=quoted, stops="")
    return Word(tuple(parts), 1)
