"""RP301 to RP304: shell, ringproof commands, JSON and YAML in fences. Nothing is executed.

The shell scanner is conservative: it knows quotes, ``$(…)``, ``${…}``, heredocs and continuation
lines. Questions of grammar (keywords, redirections, placeholders such as <name>) are left alone.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from ringproof.harness.lint.markdown import Piece
from ringproof.harness.lint.skill import Skill
from ringproof.harness.reports.model import Finding
from ringproof.harness.reports.printable import showable

LANGUAGES = frozenset(("bash", "sh", "shell", "zsh"))
_PROMPT = re.compile(r"^\s*\$ ")
_HEREDOC = re.compile(r"<<(-?)\s*(?:(['\"])([^'\"\n]+)\2|\\?([A-Za-z_][\w.]*))")
_BROKEN_CONTINUATION = re.compile(r"(?<!\\)\\[ \t]+$")
_OPENERS = (("$((", "))"), ("$(", ")"), ("${", "}"))


def check_shell(skill: Skill) -> Iterator[Finding]:
    """Every shell fence of every Markdown file."""
    for source, fence in skill.fences(LANGUAGES):
        lines = fence.text.split("\n")
        if any(_PROMPT.match(line) for line in lines):
            lines = [_PROMPT.sub("", line) if _PROMPT.match(line) else "" for line in lines]
        scanner = _Scanner("\n".join(lines), fence.line)
        scanner.run()
        for line, problem in scanner.problems:
            yield Finding("RP301", source.shown, line, f"this does not parse: {problem}")


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
            end = self.text.find("'", self.at)
            if end >= 0:
                self.stack.pop()
            self.at = end + 1 if end >= 0 else len(self.text)
        elif character == "\\":
            self._backslash(quoted=closer == '"')
        elif closer and self.text.startswith(closer, self.at):
            self.stack.pop()
            self.at += len(closer)
        elif character == "\n" and self.heredocs and closer != '"':
            self._skip_heredocs()
        elif closer == '"':
            self._expansion_or_skip()
        elif character == "#" and (self.at == 0 or self.text[self.at - 1] in " \t\n;&|()"):
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end
        elif character in "'\"":
            self._push(character, 1)
        elif character == "(" and closer:
            self._push(")", 1)
        elif character == "<" and all(inner != "))" for inner, _ in self.stack):
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

    def _backslash(self, *, quoted: bool) -> None:
        end = self.text.find("\n", self.at)
        rest = self.text[self.at : end if end >= 0 else len(self.text)]
        follows = end >= 0 and self.text[end + 1 :].lstrip(" \t")[:1] not in ("", "\n", "#")
        if not quoted and follows and _BROKEN_CONTINUATION.fullmatch(rest):
            self.problems.append((self._line(self.at), "spaces after the \\ end the command here"))
        self.at += 2

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


_CONTINUATION = re.compile(r"\\\n[ \t]*")
_SEPARATOR = re.compile(r"[;&|()]+")
_WRAPPERS = frozenset(
    ("do", "then", "else", "{", "!", "if", "while", "until", "time", "exec", "env", "uv", "run")
)
_LITERAL = re.compile(r"--?[a-z][a-z0-9-]*")
_WORD = re.compile(r"[a-z][a-z0-9-]*")


def check_commands(skill: Skill, program: Any) -> Iterator[Finding]:
    """Every ringproof command in the shell fences.

    Args:
        program: ringproof as a click command, with its options and subcommands.
    """
    for source, fence in skill.fences(LANGUAGES):
        for line, words in _numbered_commands(fence):
            problem = _problem(words, program)
            if problem:
                yield Finding("RP302", source.shown, line, problem)


def _numbered_commands(fence: Piece) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line and the words of each ringproof command."""
    joined = _CONTINUATION.sub(lambda match: " \x00", fence.text)  # \x00 keeps count of lines
    line = fence.line
    for row in joined.split("\n"):
        yield from ((line, words) for words in _commands(row.replace("\x00", "")))
        line += 1 + row.count("\x00")


def _commands(row: str) -> Iterator[list[str]]:
    """The words after each ``ringproof`` (or ``python -m ringproof``) in command position."""
    lexer = shlex.shlex(row.removeprefix("$ "), posix=True, punctuation_chars=";&|()")
    lexer.whitespace_split = True
    try:
        tokens = list(lexer)
    except ValueError:  # not our question: RP301
        return
    commands: list[list[str]] = [[]]
    for token in tokens:
        if _SEPARATOR.fullmatch(token):
            commands.append([])
        else:
            commands[-1].append(token)
    for words in commands:
        for index, word in enumerate(words[:12]):
            before = words[:index]
            if word.rsplit("/", 1)[-1] == "ringproof" and (
                before[-1:] == ["-m"] or all("=" in item or item in _WRAPPERS for item in before)
            ):
                yield words[index + 1 :]
                break


def _problem(words: list[str], command: Any) -> str:
    """Return what is wrong with the words after ``ringproof``; empty if nothing is."""
    name = "ringproof"
    for word in words:
        option = word.split("=", 1)[0]
        if word == "--":
            break
        spellings = [text for item in command.params for text in (*item.opts, *item.secondary_opts)]
        if _LITERAL.fullmatch(option) and option not in (*spellings, "--help"):
            return f"`{name}` has no option {showable(option, 60)}"
        subcommands = getattr(command, "commands", {})
        if option.startswith("-") or not subcommands:
            continue
        if word in subcommands:
            command, name = subcommands[word], f"{name} {word}"
        elif _WORD.fullmatch(word):
            return f"`{name}` has no command {showable(word, 60)!r}"
        else:
            break
    return ""


_LANGUAGES = frozenset(("json", "yaml", "yml"))
# Not a document: an excerpt, an example with something left out or to be filled in, a template.
_ABRIDGED_JSON = re.compile(r"\.\.\.|…|<[A-Za-z_][^\n\"]*>|\{\{|\{%|\$\{|\A\s*\"[^\"\n]*\"\s*:")
_ABRIDGED_YAML = re.compile(r"\{\{|\{%|^\s*(?:\.\.\.|…)", re.M)
# What is never closed ends with the line or the text: sought from each quote anew, it would take
# the square of the length.
_COMMENT = re.compile(r'("(?:[^"\\\n]|\\.)*"?)|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)


def check_data(skill: Skill) -> Iterator[Finding]:
    """Every JSON and YAML fence of every Markdown file."""
    for source, fence in skill.fences(_LANGUAGES):
        is_json = fence.language == "json"
        if (_ABRIDGED_JSON if is_json else _ABRIDGED_YAML).search(fence.text):
            continue
        found = json_problem(fence) if is_json else yaml_problem(fence)
        if found is not None:
            yield Finding("RP303" if is_json else "RP304", source.shown, *found)


def json_problem(fence: Piece) -> tuple[int, str] | None:
    """Line and problem; several values after each other (JSON lines) are fine, so are comments."""
    text = _COMMENT.sub(lambda match: match[1] or re.sub(r"[^\n]", " ", match[0]), fence.text)
    decoder = json.JSONDecoder()
    at = len(text) - len(text.lstrip())
    try:
        while at < len(text):
            _, end = decoder.raw_decode(text, at)
            at = end + len(text[end:]) - len(text[end:].lstrip())
    except json.JSONDecodeError as error:
        return fence.line + error.lineno - 1, f"not valid JSON: {showable(error.msg)}"
    except RecursionError:
        return fence.line, "not valid JSON: nested too deeply"
    return None


def yaml_problem(fence: Piece) -> tuple[int, str] | None:
    """Line and problem; only parsed, nothing is constructed."""
    try:
        for _event in YAML(typ="safe", pure=True).parse(fence.text):
            pass
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = fence.line if mark is None else fence.line + mark.line
        return line, f"not valid YAML: {showable(str(error.problem or error.context))}"
    except (YAMLError, ValueError) as error:
        return fence.line, f"not valid YAML: {showable(str(error))}"
    return None
