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

from ruamel.yaml.error import YAMLError

from ringproof.cards.document import syntax_error
from ringproof.findings.finding import Finding
from ringproof.findings.printable import showable
from ringproof.lint.skill import Skill
from ringproof.lint.source import DocumentPiece
from ringproof.parsing import yaml_events

_SHELLS = frozenset(("bash", "sh", "shell", "zsh"))
_PROMPT = re.compile(r"^\s*\$ ")
_HEREDOC = re.compile(r"<<(?!<)(-?)\s*(?:(['\"])([^'\"\n]+)\2|\\?([A-Za-z_][\w.]*))")
_BROKEN_CONTINUATION = re.compile(r"\\[ \t]+\n(?![ \t]*(?:[\n#]|\Z))")
_OPENERS = (("$((", "))"), ("$(", ")"), ("${", "}"), ("`", "`"))


def check_shell(skill: Skill) -> Iterator[Finding]:
    """Every shell fence of every Markdown file."""
    for source, fence in skill.fences(_SHELLS):
        lines = fence.text.split("\n")
        if any(_PROMPT.match(line) for line in lines):
            lines = [_PROMPT.sub("", line) if _PROMPT.match(line) else "" for line in lines]
        for line, problem in _Scanner("\n".join(lines)).problems():
            yield source.finding("RP301", fence.line + line, f"this does not parse: {problem}")


@dataclass
class _Scanner:
    """Walks through one script; thrown away afterwards.

    Attributes:
        open: Closing characters that are awaited, and where each began.
        heredocs: Words that end the heredocs of the line, and whether tabs may stand before them.
    """

    text: str
    at: int = 0
    open: list[tuple[str, int]] = field(default_factory=list)
    heredocs: list[tuple[str, bool]] = field(default_factory=list)
    found: list[tuple[int, str]] = field(default_factory=list)

    def problems(self) -> list[tuple[int, str]]:
        """Return the line, from 0, and a sentence for each problem."""
        while self.at < len(self.text):
            self._step()
        found = [*self.found, *((at, f"no closing {end} for this") for end, at in self.open[:1])]
        return [(self.text.count("\n", 0, at), problem) for at, problem in found]

    def _step(self) -> None:
        character = self.text[self.at]
        closer = self.open[-1][0] if self.open else ""
        if closer == "'":
            self.at = self._find("'") + 1
            if self.at <= len(self.text):
                self.open.pop()
        elif character == "\\":
            self._backslash(quoted=closer == '"')
        elif closer and self.text.startswith(closer, self.at):
            self.open.pop()
            self.at += len(closer)
        elif character == "\n" and self.heredocs and closer != '"':
            self._skip_heredocs()
        elif closer == '"':
            self._expansion_or_skip()
        elif character == "#" and self._begins_a_word():
            self.at = self._find("\n")
        elif character in "'\"":
            self._push(character, 1)
        elif character == "(" and closer:
            self._push(")", 1)
        elif character == "<" and all(end != "))" for end, _ in self.open):
            self._heredoc()
        else:
            self._expansion_or_skip()

    def _begins_a_word(self) -> bool:
        return self.at == 0 or self.text[self.at - 1] in " \t\n;&|()"

    def _find(self, end: str) -> int:
        place = self.text.find(end, self.at)
        return len(self.text) if place < 0 else place

    def _push(self, closer: str, width: int) -> None:
        self.open.append((closer, self.at))
        self.at += width

    def _expansion_or_skip(self) -> None:
        for opener, closer in _OPENERS:
            if self.text.startswith(opener, self.at):
                self._push(closer, len(opener))
                return
        self.at += 1

    def _backslash(self, *, quoted: bool) -> None:
        if not quoted and _BROKEN_CONTINUATION.match(self.text, self.at):
            self.found.append((self.at, "spaces after the \\ end the command here"))
        self.at += 2

    def _heredoc(self) -> None:
        match = _HEREDOC.match(self.text, self.at)
        if match is None:
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
                self.found.append((start, f"no line {word!r} ends the heredoc"))
                self.at = len(self.text)
                break
            self.at = end.end()
        self.heredocs.clear()


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
    for source, fence in skill.fences(_SHELLS):
        for line, words in _numbered_commands(fence):
            problem = _problem(words, program)
            if problem:
                yield source.finding("RP302", line, problem)


def _numbered_commands(fence: DocumentPiece) -> Iterator[tuple[int, list[str]]]:
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


_DATA = frozenset(("json", "yaml", "yml"))
MAX_WITH_YAML = 300_000
"""Characters of a document whose YAML is parsed; brackets take 50 microseconds each."""
# Not a document: an excerpt, an example with something left out or to be filled in, a template.
_ABRIDGED_JSON = re.compile(r"\.\.\.|…|<[A-Za-z_][^\n\"]*>|\{\{|\{%|\$\{|\A\s*\"[^\"\n]*\"\s*:")
_ABRIDGED_YAML = re.compile(r"\{\{|\{%|^\s*(?:\.\.\.|…)", re.M)
# What is never closed ends with the line or the text: sought from each quote anew, it would take
# the square of the length.
_COMMENT = re.compile(r'("(?:[^"\\\n]|\\.)*"?)|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)


def check_data(skill: Skill) -> Iterator[Finding]:
    """Every JSON and YAML fence of every Markdown file."""
    for source, fence in skill.fences(_DATA):
        is_json = fence.language == "json"
        if (_ABRIDGED_JSON if is_json else _ABRIDGED_YAML).search(fence.text):
            continue
        if not is_json and len(source.text) > MAX_WITH_YAML:
            why = f"larger than {MAX_WITH_YAML:,} characters: its YAML is not checked"
            yield source.finding("RP208", 1, why)
            continue
        found = _json_problem(fence.text) if is_json else _yaml_problem(fence.text)
        if found is not None:
            rule, name = ("RP303", "JSON") if is_json else ("RP304", "YAML")
            message = f"not valid {name}: {showable(found[1])}"
            yield source.finding(rule, fence.line + found[0] - 1, message)


def _json_problem(written: str) -> tuple[int, str] | None:
    """Line and problem; several values after each other (JSON lines) are fine, so are comments."""
    text = _COMMENT.sub(lambda match: match[1] or re.sub(r"[^\n]", " ", match[0]), written).rstrip()
    decoder = json.JSONDecoder()
    at = 0
    try:
        while at < len(text):
            at += len(text[at:]) - len(text[at:].lstrip())
            _, at = decoder.raw_decode(text, at)
    except json.JSONDecodeError as error:
        return error.lineno, error.msg
    except RecursionError:
        return 1, "nested too deeply"
    return None


def _yaml_problem(text: str) -> tuple[int, str] | None:
    """Line and problem; only parsed, nothing is constructed."""
    try:
        for _event in yaml_events(text):
            pass
    except (YAMLError, ValueError) as error:
        return syntax_error(error)
    return None
