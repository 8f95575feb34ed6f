"""The head of a ``SKILL.md``, read by the rules of YAML without building any object."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from ringproof.harness.lint.markdown import FRONTMATTER
from ringproof.harness.lint.model import Frontmatter
from ringproof.harness.reports.printable import showable

MAX_CHARACTERS = 64_000
MAX_NESTING = 8


def parse_frontmatter(text: str) -> Frontmatter:
    """Read the head; what is wrong with it is kept in ``problem``."""
    if text.startswith("\ufeff"):
        return Frontmatter(problem="a byte order mark stands before ---; save without it")
    if not text.startswith("---"):
        return Frontmatter(problem="the file does not start with ---")
    head = FRONTMATTER.match(text)
    if head is None:
        return Frontmatter(problem="the frontmatter is not closed by a line of ---")
    source = head["yaml"]
    if len(source) > MAX_CHARACTERS:
        return Frontmatter(problem=f"longer than {MAX_CHARACTERS:,} characters")
    try:
        return _compose(source)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = 2 if mark is None else mark.line + 2
        why = showable(str(error.problem or error.context))
        return Frontmatter(problem=f"not valid YAML: {why}", problem_line=line)
    except (YAMLError, ValueError) as error:
        return Frontmatter(problem=f"not valid YAML: {showable(str(error))}", problem_line=2)


def _compose(source: str) -> Frontmatter:
    parser = YAML(typ="safe", pure=True)
    refused = _refused(parser.parse(source))
    if refused is not None:
        return refused
    root = parser.compose(source)
    if not isinstance(root, MappingNode):
        return Frontmatter(problem="is not a mapping; write `key: value` lines", problem_line=2)
    data: dict[str, object] = {}
    lines: dict[str, int] = {}
    for key_node, value_node in root.value:
        key = str(key_node.value) if isinstance(key_node, ScalarNode) else "?"
        line = key_node.start_mark.line + 2
        if key in data:
            why = f"the key {showable(key, 60)!r} stands here a second time"
            return Frontmatter(problem=why, problem_line=line)
        data[key], lines[key] = _plain(value_node), line
    return Frontmatter(MappingProxyType(data), MappingProxyType(lines))


def _plain(node: Node) -> object:
    if isinstance(node, MappingNode):
        return {str(key.value): _plain(value) for key, value in node.value}
    if isinstance(node, SequenceNode):
        return [_plain(item) for item in node.value]
    if not isinstance(node, ScalarNode) or node.tag is None:
        return None
    kind = str(node.tag).rsplit(":", 1)[-1]
    text = str(node.value)
    if kind in ("int", "float"):
        return 0.0
    if kind == "bool":
        return False
    return None if kind == "null" else text


def _refused(events: Iterable[Event]) -> Frontmatter | None:
    """What may not be composed: aliases multiply, and the composer calls itself per level."""
    depth = 0
    for event in events:
        line = event.start_mark.line + 2
        if isinstance(event, AliasEvent):
            return Frontmatter(problem="YAML aliases are refused; write it out", problem_line=line)
        depth += isinstance(event, (MappingStartEvent, SequenceStartEvent))
        depth -= isinstance(event, (MappingEndEvent, SequenceEndEvent))
        if depth > MAX_NESTING:
            problem = f"nested deeper than {MAX_NESTING} levels; flatten it"
            return Frontmatter(problem=problem, problem_line=line)
    return None
