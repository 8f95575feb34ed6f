"""RP101 to RP108: the specification; RP203 to RP207: sizes, and skills too alike; RP210: the card.

Our own checks are complete, so that Python 3.10 and installations without skills-ref (it needs
3.11) say the same. They also say at which line, which skills-ref does not, and judge fields that it
does not look at. Where skills-ref is installed, its parser and validator are asked as well, and a
refusal that our checks did not foresee is a finding of its own.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping

from ringproof.cards.document import read_document
from ringproof.cards.loading import find_card, load_card, refuse_link_outside
from ringproof.errors import InputError, printable
from ringproof.findings.finding import Finding
from ringproof.findings.printable import showable
from ringproof.lint.skill import MAIN, Skill, shown_path

MAX_NAME = 64
MAX_DESCRIPTION = 1024
MAX_COMPATIBILITY = 500
AGENT_KEYS = (
    "agent", "argument-hint", "context", "disable-model-invocation", "hooks", "model",
    "user-invocable", "when_to_use",
)  # fmt: skip
"""Keys outside the specification that Claude Code reads, and that others leave alone."""
SAID_TO_MODELS = ("argument-hint", "when_to_use")
"""Keys of these whose text the description can hold as well."""
KEYS = ("name", "description", "license", "compatibility", "metadata", "allowed-tools")


def check_spec(skill: Skill) -> Iterator[Finding]:
    """Every disagreement with the specification."""
    if skill.main.name != MAIN:
        message = f"spelled {skill.main.name}; many clients see only {MAIN}"
        yield skill.main.finding("RP107", 1, message)
    own = tuple(_own(skill))
    yield from own
    description = str(skill.frontmatter.data.get("description", ""))
    if not own and len(description) <= MAX_DESCRIPTION:
        for problem in _skills_ref(skill):
            yield skill.main.finding("RP106", 1, f"skills-ref: {showable(problem)}")


def _own(skill: Skill) -> Iterator[Finding]:
    head = skill.frontmatter
    if head.problem:
        yield skill.main.finding("RP101", head.problem_line, f"frontmatter: {head.problem}")
        return
    for key in head.data:
        if key in AGENT_KEYS:
            hint = "; say it in the description, too" if key in SAID_TO_MODELS else ""
            message = f"key {key!r} is read by some agents only{hint}"
            yield skill.of_key("RP108", key, message)
        elif key not in KEYS:
            message = f"unknown key {showable(key, 60)!r}; put it under metadata, or into the body"
            yield skill.of_key("RP102", key, message)
    for problem in _name_problems(skill):
        yield skill.of_key("RP103", "name", problem)
    description = head.data.get("description")
    if not isinstance(description, str) or not description.strip():
        problem = "is empty or not text" if "description" in head.data else "is missing"
        yield skill.of_key("RP104", "description", f"description {problem}")
    for key, problem in _field_problems(head.data):
        yield skill.of_key("RP105", key, f"{key} {problem}")


def _name_problems(skill: Skill) -> Iterator[str]:
    raw = skill.frontmatter.data.get("name")
    if not isinstance(raw, str) or not raw.strip():
        yield "name is missing, empty or not text"
        return
    name = unicodedata.normalize("NFKC", raw.strip())
    shown = showable(name, 80)
    if len(name) > MAX_NAME:
        yield f"name has {len(name)} characters, at most {MAX_NAME} are allowed"
    allowed = all(letter.isalnum() or letter == "-" for letter in name)
    if name != name.lower() or not allowed:
        yield f"name {shown!r} may hold only lower-case letters, digits and hyphens"
    if name.startswith("-") or name.endswith("-") or "--" in name:
        yield f"name {shown!r} has a hyphen at an end or two in a row"
    folder = unicodedata.normalize("NFKC", skill.folder.name)
    if name != folder:
        yield f"name {shown!r} is not the folder's name {showable(folder, 80)!r}"


def _field_problems(data: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for key in ("license", "compatibility", "allowed-tools"):
        if key in data and not isinstance(data[key], str):
            yield key, "is not text; write one string"
    compatibility = data.get("compatibility")
    if isinstance(compatibility, str) and not 1 <= len(compatibility) <= MAX_COMPATIBILITY:
        yield "compatibility", f"must have 1 to {MAX_COMPATIBILITY} characters"
    metadata = data.get("metadata")
    if "metadata" in data and not isinstance(metadata, dict):
        yield "metadata", 'is not a mapping; write `key: "value"` lines'
    elif isinstance(metadata, dict):
        odd = [key for key, value in metadata.items() if not isinstance(value, str)]
        if odd:
            yield "metadata", f"has a value that is not text: {showable(odd[0], 60)}; quote it"


def has_skills_ref() -> bool:
    """Whether the reference validator is installed."""
    return importlib.util.find_spec("skills_ref") is not None


def _skills_ref(skill: Skill) -> list[str]:
    """Ask the reference validator about the text that we read; it opens no file itself."""
    if not has_skills_ref():
        return []
    parser = importlib.import_module("skills_ref.parser")
    validator = importlib.import_module("skills_ref.validator")
    try:
        data, _ = parser.parse_frontmatter(skill.main.text)
        return list(validator.validate_metadata(data, skill.folder))
    except Exception as error:  # whatever a third party's parser raises is its refusal
        return [str(error)]


_REST = re.compile(r"(?::(?P<line>\d+))?:? *(?P<said>.*)")


def check_card(skill: Skill) -> Iterator[Finding]:
    """The card of a skill that the loader refuses, with the loader's own message.

    A card in the skill's folder that names no upstreams may be of another form, such as NVIDIA's;
    of such a card only the YAML is checked.
    """
    card = find_card(skill.folder)
    if card is None or not card.is_relative_to(skill.repository):
        return
    try:
        refuse_link_outside(card)
        data = read_document(card).data if card.parent == skill.folder else None
        if not (isinstance(data, dict) and "upstreams" not in data):
            load_card(card)
    except InputError as error:
        rest = _REST.fullmatch(str(error).removeprefix(printable(str(card))))
        line, said = (rest["line"], rest["said"]) if rest else (None, str(error))
        yield Finding("RP210", shown_path(card), int(line or 1), said)


MAX_LINES = 500
MAX_TOKENS = 5000
BYTES_PER_TOKEN = 4
"""Near the truth for English with code, for any tokenizer."""
NEARLY_THE_SAME = 0.8
FEWEST_WORDS = 6
_WORD = re.compile(r"[\w+-]+")


def check_sizes(skill: Skill) -> Iterator[Finding]:
    """The description's length; the body's lines and tokens."""
    description = skill.frontmatter.data.get("description")
    if isinstance(description, str) and len(description) > MAX_DESCRIPTION:
        message = f"the description has {len(description):,} characters, over {MAX_DESCRIPTION:,}"
        yield skill.of_key("RP203", "description", message)
    body = skill.main.body or ""
    lines = len(body.splitlines())
    tokens = math.ceil(len(body.encode("utf-8", "replace")) / BYTES_PER_TOKEN)
    if lines >= MAX_LINES:
        message = f"the body has {lines:,} lines, not under {MAX_LINES}; move parts to references/"
        yield skill.main.finding("RP204", 1, message)
    if tokens >= MAX_TOKENS:
        message = f"the body has about {tokens:,} tokens, not under {MAX_TOKENS:,}"
        yield skill.main.finding("RP205", 1, f"{message}; move parts to references/")


def check_duplicates(skills: Iterable[Skill]) -> Iterator[Finding]:
    """Skills with the name of an earlier one, or a description that agents hardly tell from it."""
    named: dict[str, Skill] = {}
    seen: list[tuple[Skill, frozenset[str]]] = []
    for skill in skills:
        name = str(skill.frontmatter.data.get("name", "")).strip()
        same = named.setdefault(name, skill) if name else skill
        if same is not skill:
            message = f"the name {showable(name, 80)!r} is also that of {same.main.shown}"
            yield skill.of_key("RP206", "name", message)
        words = frozenset(_WORD.findall(str(skill.frontmatter.data.get("description", "")).lower()))
        alike = next((other for other, theirs in seen if _is_alike(words, theirs)), same)
        if alike is not same:
            message = f"the description is nearly that of {alike.main.shown}; say which is when"
            yield skill.of_key("RP207", "description", message)
        seen.append((skill, words))


def _is_alike(one: frozenset[str], other: frozenset[str]) -> bool:
    if min(len(one), len(other)) < FEWEST_WORDS:
        return False
    return len(one & other) >= NEARLY_THE_SAME * len(one | other)
