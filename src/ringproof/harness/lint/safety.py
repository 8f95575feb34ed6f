"""RP401 to RP408: characters and text that a reader does not see, unread code, and secrets."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator

from ringproof.harness.lint.markdown import Piece, hidden_pieces
from ringproof.harness.lint.skill import Skill, SourceFile
from ringproof.harness.reports.model import Finding
from ringproof.harness.reports.printable import showable

_INVISIBLE = re.compile(
    "[\xad\u115f\u1160\u180e\u200b-\u200d\u2060-\u2065\u206a-\u206f\u3164\ufeff\uffa0]+"
)
_BIDIRECTIONAL = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]+")
_TAGS = re.compile(
    "[\U000e0000-\U000e007f]+|[\ufe00-\ufe0f\U000e0100-\U000e01ef]{2,}|[\U000e0100-\U000e01ef]"
)
_FLAG_END = "\U000e007f"
_BLACK_FLAG = "\U0001f3f4"
_JOINERS = "\u200c\u200d"

# Cyrillic, Greek, Armenian and full-width letters that look like Latin ones.
_LOOK_ALIKES = (
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455\u0501\u051b\u051d\u04bb"
    "\u0410\u0412\u0415\u041a\u041c\u041d\u041e\u0420\u0421\u0422\u0423\u0425\u0406\u0408\u0405"
    "\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7\u03bf"
    "\u0570\u0578\u057d\u0585\uff21-\uff3a\uff41-\uff5a"
)
_MIXED = re.compile(rf"\b(?=\w*[A-Za-z])\w*[{_LOOK_ALIKES}]\w*\b")


def check_characters(skill: Skill) -> Iterator[Finding]:
    """Every text file, character by character; one finding per rule and line."""
    for source in skill.texts:
        if not source.text.isascii():
            found = list(_of_file(source))
            first = {(item.rule, item.line): item for item in reversed(found)}
            yield from (item for item in found if first[item.rule, item.line] is item)


def _of_file(source: SourceFile) -> Iterator[Finding]:
    text = source.text
    for match in _INVISIBLE.finditer(text):
        # A byte order mark at the start of a file is a matter of its encoding, not hidden text.
        if not (match.start() == 0 and match[0] == "\ufeff") and not _joins(text, match):
            yield _found(source, match, "RP401", "the invisible")
    for match in _BIDIRECTIONAL.finditer(text):
        yield _found(source, match, "RP402", "the direction-changing")
    for match in _TAGS.finditer(text):
        if not _is_flag(text, match):
            yield _found(source, match, "RP403", f"{len(match[0])} times the hidden")
    for match in _MIXED.finditer(text):
        odd = next(letter for letter in match[0] if re.match(f"[{_LOOK_ALIKES}]", letter))
        name = unicodedata.name(odd, "unnamed")
        message = f"a Latin word contains U+{ord(odd):04X} ({name}); type it with Latin letters"
        yield Finding("RP404", source.shown, source.line_of(match.start()), message)


def _joins(text: str, match: re.Match[str]) -> bool:
    """A joiner between emoji, or between letters of a script that needs it."""
    neighbours = text[match.start() - 1 : match.start()] + text[match.end() : match.end() + 1]
    joined = all(unicodedata.category(n) in ("So", "Sk", "Mn", "Mc", "Lo") for n in neighbours)
    return len(match[0]) == 1 and match[0] in _JOINERS and len(neighbours) == 2 and joined


def _is_flag(text: str, match: re.Match[str]) -> bool:
    """England, Scotland, Wales: a black flag, at most six tags, the end tag."""
    tags = match[0]
    return text[match.start() - 1 : match.start()] == _BLACK_FLAG and (
        len(tags) <= 7 and tags.endswith(_FLAG_END)
    )


def _found(source: SourceFile, match: re.Match[str], rule: str, kind: str) -> Finding:
    code = ord(match[0][0])
    name = unicodedata.name(match[0][0], "unnamed")
    message = f"{kind} character U+{code:04X} ({name}); remove it"
    return Finding(rule, source.shown, source.line_of(match.start()), message)


_MARKUP = (".html", ".htm", ".svg", ".xml")
_INSTRUCTION = re.compile(
    r"\b(?:ignore|disregard|forget|override|bypass)\s+(?:\w+\s+){0,4}?"
    r"(?:instructions?|prompts?|rules?|guidelines|guardrails|polic(?:y|ies)|everything)\b"
    r"|\b(?:do\s+not|don'?t|never|without)\s+(?:tell|mention|inform|reveal|show|ask|notify|alert)"
    r"(?:ing)?\s+(?:\w+\s+){0,3}?(?:user|human|developer|operator|anyone)\b"
    r"|\byou\s+are\s+now\s+(?:an?|in|the|free)\b|\bnew\s+instructions?\s*:|\bsystem\s+prompt\b"
    r"|\b(?:exfiltrate|send|post|upload|forward)\s+(?:\w+\s+){0,4}?"
    r"(?:credentials?|secrets?|tokens?|passwords?|api\s+keys?|environment\s+variables|ssh)\b"
    r"|\b(?:assistants?|agents?|claude|codex|gemini|copilot|chatgpt|llms?|models?)\b\s*"
    r"(?:[:,]\s*(?:please|you|run|execute|always|never|do)|must|should|shall)\b"
    r"|\b(?:curl|wget)\s+\S*(?:https?:|-)|\brm\s+-rf\s+[~/]|\bbase64\s+(?:-d|--decode)\b",
    re.IGNORECASE,
)

_SHELL = r"(?:\S*/)?(?:(?:ba|z|da|k|fi)?sh|pwsh|iex|invoke-expression)\b(?![./-]|\w)"
_INTERPRETER = r"(?:\S*/)?(?:python[\d.]*|perl|ruby|node|php)\s*(?:-(?=\s|$)|$|[;&|)\"'`])"
_PREFIX = r"(?:(?:sudo|env|exec|command|nohup)\s+(?:-\S+\s+|\w+=\S*\s+)*|\w+=\S*\s+)*"
_REST = r"(?:\\\n|[^\n]){0,400}?"
_PIPE = rf"(?<!\|)\|(?!\|)&?\s*(?:\\\n\s*)?{_PREFIX}(?:{_SHELL}|{_INTERPRETER})"
_FETCH = r"(?:curl|wget|aria2c|iwr|irm|invoke-webrequest|invoke-restmethod)"
_REMOTE = re.compile(
    rf"(?<![\w./-]){_FETCH}\s{_REST}{_PIPE}"
    rf"|(?<![\w-])(?:eval|source|\.|(?:ba|z|da|k)?sh(?:\s+-\w+)*|(?:python[\d.]*|perl|ruby|node)"
    rf"\s+-[ce])\s+[\"']?(?:\$\(|`|<\()\s*{_FETCH}\s"
    r"|\b(?:exec|eval)\s*\(\s*(?:\w+\.)*(?:requests\.get|httpx\.get|urlopen|urllib\.request)\b"
    r"|\b(?:iex|invoke-expression)\b[^\n]{0,80}(?:downloadstring|iwr|irm|invoke-webrequest)",
    re.IGNORECASE | re.MULTILINE,
)
_DECODER = (
    r"(?:base64\s+(?:-\w*d\w*|-D|--decode)|xxd\s+-r|openssl\s+(?:enc|base64)\s[^\n|]{0,60}-d)"
)
_ENCODED = re.compile(
    rf"\b{_DECODER}{_REST}{_PIPE}"
    rf"|(?<![\w-])(?:eval|(?:ba|z|da)?sh(?:\s+-\w+)*)\s+[\"']?(?:\$\(|`|<\()[^\n]{{0,300}}?{_DECODER}"
    r"|\b(?:exec|eval)\s*\(\s*(?:compile\s*\(\s*)?(?:__import__\([^)\n]{0,20}\)\.|\w+\.)*"
    r"(?:b64decode|b32decode|b85decode|a85decode|decodebytes|fromhex|unhexlify|decompress"
    r"|marshal\.loads|codecs\.decode)\b"
    r"|\b(?:eval|Function)\s*\(\s*(?:window\.)?(?:atob\s*\(|Buffer\.from\s*\([^)\n]{0,4000}base64)"
    r"|\b(?:powershell|pwsh)(?:\.exe)?\s[^\n]{0,100}-e(?:nc|ncodedcommand)?\s+[A-Za-z0-9+/=]{40}",
    re.IGNORECASE | re.MULTILINE,
)


def check_hidden(skill: Skill) -> Iterator[Finding]:
    """Comments and invisible elements of Markdown and HTML; comments in the frontmatter."""
    for source in skill.texts:
        for piece in _hidden(source):
            match = _INSTRUCTION.search(piece.text)
            if match:
                line = piece.line + piece.text.count("\n", 0, match.start())
                message = f"text that is not shown says {showable(match[0], 60)!r}"
                yield Finding("RP405", source.shown, line, f"{message}; show it or remove it")


def _hidden(source: SourceFile) -> Iterator[Piece]:
    if source.markdown is not None:
        yield from source.markdown.hidden
        head = source.text[: len(source.text) - len(source.markdown.body)]
        for number, line in enumerate(head.split("\n"), 1):
            if line.lstrip().startswith("#"):
                yield Piece(line, number)
    elif source.name.lower().endswith(_MARKUP):
        yield from hidden_pieces(source.text, 0)


def check_remote_code(skill: Skill) -> Iterator[Finding]:
    """Every text file: download-and-run and decode-and-run, in commands and in code."""
    for source in skill.texts:
        for pattern, rule, why in (
            (_REMOTE, "RP406", "runs what it downloads; download, check a hash, then run"),
            (_ENCODED, "RP407", "runs what it decodes; write the code out"),
        ):
            for match in pattern.finditer(source.text):
                message = f"{showable(match[0], 80)!r} {why}"
                yield Finding(rule, source.shown, source.line_of(match.start()), message)


_FORMATS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("an AWS access key id", re.compile(r"\b(?:AKIA|ASIA)([0-9A-Z]{16})\b")),
    ("a GitHub token", re.compile(r"\bgh[pousr]_([A-Za-z0-9]{36,251})\b")),
    ("a GitHub token", re.compile(r"\bgithub_pat_([A-Za-z0-9_]{60,251})\b")),
    ("a GitLab token", re.compile(r"\bglpat-([A-Za-z0-9_-]{20,64})\b")),
    ("an Anthropic key", re.compile(r"\bsk-ant-[a-z0-9]+-([A-Za-z0-9_-]{32,200})")),
    ("an OpenAI key", re.compile(r"\bsk-(?!ant-)(?:\w{2,12}-)?([A-Za-z0-9_-]{32,200})")),
    ("a Slack token", re.compile(r"\bxox[abeoprs]-([0-9A-Za-z-]{20,200})")),
    (
        "a Slack webhook",
        re.compile(r"hooks\.slack\.com/services/T\w{6,}/B\w{6,}/(\w{20,40})"),
    ),
    ("a Hugging Face token", re.compile(r"\bhf_([A-Za-z0-9]{34,64})\b")),
    ("a Google API key", re.compile(r"\bAIza([0-9A-Za-z_-]{35})\b")),
    ("an NVIDIA API key", re.compile(r"\bnvapi-([A-Za-z0-9_-]{40,200})")),
    (
        "a private key",
        re.compile(
            r"-----BEGIN [A-Z ]{0,24}PRIVATE KEY(?: BLOCK)?-----[\s\\nr]+([A-Za-z0-9+/=:]{32,})"
        ),
    ),
)
_PLACEHOLDER = re.compile(
    r"example|placeholder|redacted|dummy|sample|fake|your|secret|token|x{4,}|0{5,}|1234|abcd|\.\.\.",
    re.IGNORECASE,
)
MIN_BITS_PER_CHARACTER = 3.0


def check_secrets(skill: Skill) -> Iterator[Finding]:
    """Every text file; placeholders and strings with little entropy are no secrets."""
    for source in skill.texts:
        for kind, match in _secrets(source.text):
            message = f"looks like {kind} (not repeated here); revoke it, then remove it"
            yield Finding("RP408", source.shown, source.line_of(match.start()), message)


def _secrets(text: str) -> Iterator[tuple[str, re.Match[str]]]:
    for kind, pattern in _FORMATS:
        for match in pattern.finditer(text):
            if not _PLACEHOLDER.search(match[1]) and _entropy(match[1]) > _least(match[1]):
                yield kind, match


def _entropy(text: str) -> float:
    """Shannon's, in bits per character."""
    counts = Counter(text).values()
    return -sum(count / len(text) * math.log2(count / len(text)) for count in counts)


def _least(text: str) -> float:
    """The bar is lower for the 16 characters of an AWS id, of which few can be distinct."""
    return min(MIN_BITS_PER_CHARACTER, math.log2(len(text)) * 0.7)
