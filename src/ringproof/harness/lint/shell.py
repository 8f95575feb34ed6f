"""RP301: shell fences that no shell would parse. Text is scanned here and never executed.

Conservative: quotes, ``$(…)``, ``${…}``, heredocs and continuation lines only; what is a grammar
question (keywords, redirections, placeholders such as <name>) is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ringproof.harness.lint.markdown import Piece
from ringproof.harness.lint.model import Skill
from ringproof.harness.reports.model import Finding

LANGUAGES = frozenset(("bash", "sh", "shell", "zsh"))
_PROMPT = re.compile(r"^\s*\$ ")
_HEREDOC = re.compile(r"<<(-?)\s*(?:(['\"])([^'\"\n]+)\2|\\?([A-Za-z_][\w.]*))")
_BROKEN_CONTINUATION = re.compile(r"(?<!\\)\\[ \t]+$")
_OPENERS = (("$((", "))"), ("$(", ")"), ("${", "}"))


def check_shell(skill: Skill) -> Iterator[Finding]:
    """Every shell fence of every Markdown file."""
    for source, fence in skill.fences(LANGUAGES):
        for line, problem in shell_problems(fence):
            yield Finding("RP301", source.shown, line, f"this does not parse: {problem}")


def shell_problems(fence: Piece) -> Iterator[tuple[int, str]]:
    """Line and problem of what cannot be parsed in a fence."""
    lines = fence.text.split("\n")
    if any(_PROMPT.match(line) for line in lines):
        lines = [_PROMPT.sub("", line) if _PROMPT.match(line) else "" for line in lines]
    scanner = _Scanner("\n".join(lines), fence.line)
    scanner.run()
    yield from scanner.problems


@dataclass
class _Scanner:
    """Walks through one script; thrown away afterwards."""

    text: str
    first: int
    at: int = 0
    stack: list[tuple[str, int]] = field(default_factory=list)
    heredocs: list[tuple[str, bool]] = field(default_factory=list)
    problems: list[tuple[int, str]] = field(default_factory=list)

    def run(self) -> None:
        """Fill ``problems``."""
        while self.at < len(self.text):
            self._step()
        for closer, opened in self.stack[:1]:
            self.problems.append((self._line(opened), f"no closing {closer} for this"))

    def _step(self) -> None:
        character = self.text[self.at]
        closer = self.stack[-1][0] if self.stack else ""
        if closer == "'":
            self._close_or_skip("'")
        elif character == "\\":
            self._backslash(quoted=closer == '"')
        elif closer and self.text.startswith(closer, self.at):
            self.stack.pop()
            self.at += len(closer)
        elif character == "\n" and self.heredocs and closer != '"':
            self._skip_heredocs()
        elif closer == '"':
            self._expansion_or_skip()
        elif character == "#" and self._starts_word():
            self._skip_line()
        elif character in "'\"":
            self._push(character, 1)
        elif character == "(" and closer:
            self._push(")", 1)
        elif character == "<" and not self._arithmetic():
            self._heredoc()
        else:
            self._expansion_or_skip()

    def _expansion_or_skip(self) -> None:
        for opener, closer in _OPENERS:
            if self.text.startswith(opener, self.at):
                self._push(closer, len(opener))
                return
        if self.text[self.at] == "`":
            self._push("`", 1)
        else:
            self.at += 1

    def _push(self, closer: str, width: int) -> None:
        self.stack.append((closer, self.at))
        self.at += width

    def _close_or_skip(self, closer: str) -> None:
        end = self.text.find(closer, self.at)
        if end < 0:
            self.at = len(self.text)
            return
        self.stack.pop()
        self.at = end + 1

    def _backslash(self, *, quoted: bool) -> None:
        end = self.text.find("\n", self.at)
        rest = self.text[self.at : end if end >= 0 else len(self.text)]
        follows = end >= 0 and self.text[end + 1 :].lstrip(" \t")[:1] not in ("", "\n", "#")
        if not quoted and follows and _BROKEN_CONTINUATION.fullmatch(rest):
            self.problems.append((self._line(self.at), "spaces after the \\ end the command here"))
        self.at += 2

    def _starts_word(self) -> bool:
        return self.at == 0 or self.text[self.at - 1] in " \t\n;&|()"

    def _skip_line(self) -> None:
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end

    def _arithmetic(self) -> bool:
        return any(closer == "))" for closer, _ in self.stack)

    def _heredoc(self) -> None:
        match = _HEREDOC.match(self.text, self.at)
        if match is None or self.text.startswith("<<<", self.at):
            self.at += 3 if self.text.startswith("<<<", self.at) else 1
            return
        self.heredocs.append((match[3] or match[4], bool(match[1])))
        self.at = match.end()

    def _skip_heredocs(self) -> None:
        start = self.at
        self.at += 1
        for word, dash in self.heredocs:
            indent = r"\t*" if dash else r"[ \t]*"  # an example may be indented as a whole
            end = re.compile(rf"^{indent}{re.escape(word)}[ \t]*$", re.M).search(self.text, self.at)
            if end is None:
                self.problems.append((self._line(start), f"no line {word!r} ends the heredoc"))
                self.at = len(self.text)
                break
            self.at = end.end()
        self.heredocs.clear()

    def _line(self, offset: int) -> int:
        return self.first + self.text.count("\n", 0, offset)
