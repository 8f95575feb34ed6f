"""RP303 and RP304: JSON and YAML fences that do not parse."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from ringproof.harness.lint.markdown import Piece
from ringproof.harness.lint.model import Skill
from ringproof.harness.reports.model import Finding
from ringproof.harness.reports.printable import showable

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
