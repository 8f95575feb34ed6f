"""RP401 to RP408: characters and text that a reader does not see, unread code, and secrets."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ringproof.findings.finding import Finding
from ringproof.findings.printable import showable
from ringproof.lint.skill import Skill
from ringproof.lint.source import SourceFile


@dataclass(frozen=True)
class _Pattern:
    """What no text may hold.

    Attributes:
        says: The message, in which ``{text}`` is the match, ``{count}`` its length and ``{letter}``
            the name of its first or captured character.
        allows: Whether a match is an exception.
    """

    rule: str
    pattern: re.Pattern[str]
    says: str
    allows: Callable[[re.Match[str]], bool] = lambda match: False

    def findings(self, source: SourceFile) -> Iterator[Finding]:
        """Yield a finding for each match in a file."""
        for match in self.pattern.finditer(source.text):
            if not self.allows(match):
                odd = match[match.lastindex or 0][0]
                letter = f"U+{ord(odd):04X} ({unicodedata.name(odd, 'unnamed')})"
                text = showable(match[0], 80)
                message = self.says.format(text=text, count=len(match[0]), letter=letter)
                yield source.at(self.rule, match, message)


_INVISIBLE = re.compile(
    "[\xad\u115f\u1160\u180e\u200b-\u200d\u2060-\u2065\u206a-\u206f\u3164\ufeff\uffa0]+"
)
_BIDIRECTIONAL = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]+")
_TAGS = re.compile(
    "[\U000e0000-\U000e007f]+|[\ufe00-\ufe0f\U000e0100-\U000e01ef]{2,}|[\U000e0100-\U000e01ef]"
)
# Cyrillic, Greek, Armenian and full-width letters that look like Latin ones.
_LOOK_ALIKES = (
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455\u0501\u051b\u051d\u04bb"
    "\u0410\u0412\u0415\u041a\u041c\u041d\u041e\u0420\u0421\u0422\u0423\u0425\u0406\u0408\u0405"
    "\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7\u03bf"
    "\u0570\u0578\u057d\u0585\uff21-\uff3a\uff41-\uff5a"
)
_MIXED = re.compile(rf"\b(?=\w*[A-Za-z])\w*?([{_LOOK_ALIKES}])\w*\b")


def _is_visible(match: re.Match[str]) -> bool:
    """A byte order mark, a joiner between emoji, or between letters of a script that needs it."""
    if match.start() == 0 and match[0] == "\ufeff":
        return True
    neighbours = match.string[match.start() - 1 : match.start()] + match.string[match.end() :][:1]
    joined = all(unicodedata.category(n) in ("So", "Sk", "Mn", "Mc", "Lo") for n in neighbours)
    return match[0] in ("\u200c", "\u200d") and len(neighbours) == 2 and joined


def _is_flag(match: re.Match[str]) -> bool:
    """England, Scotland, Wales: a black flag, at most six tags, the end tag."""
    before = match.string[match.start() - 1 : match.start()]
    return before == "\U0001f3f4" and len(match[0]) <= 7 and match[0].endswith("\U000e007f")


_CHARACTERS = (
    _Pattern("RP401", _INVISIBLE, "the invisible character {letter}; remove it", _is_visible),
    _Pattern("RP402", _BIDIRECTIONAL, "the direction-changing character {letter}; remove it"),
    _Pattern("RP403", _TAGS, "{count} times the hidden character {letter}; remove it", _is_flag),
    _Pattern("RP404", _MIXED, "a Latin word contains {letter}; type it with Latin letters"),
)


def check_characters(skill: Skill) -> Iterator[Finding]:
    """Every text file, character by character; one finding per rule and line."""
    for source in skill.texts:
        if not source.text.isascii():
            found = [item for row in _CHARACTERS for item in row.findings(source)]
            yield from {(item.rule, item.line): item for item in reversed(found)}.values()


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


def check_hidden(skill: Skill) -> Iterator[Finding]:
    """Comments and invisible elements of Markdown and HTML; comments in the frontmatter."""
    for source in skill.texts:
        for piece in source.of("hidden", "remark"):
            match = _INSTRUCTION.search(piece.text)
            if match:
                line = piece.line + piece.text.count("\n", 0, match.start())
                message = f"text that is not shown says {showable(match[0], 60)!r}"
                yield source.finding("RP405", line, f"{message}; show it or remove it")


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
_KEY = r"-----BEGIN [A-Z ]{0,24}PRIVATE KEY(?: BLOCK)?-----[\s\\nr]+([A-Za-z0-9+/=:]{32,})"
_SECRETS = (
    ("an AWS access key id", r"\b(?:AKIA|ASIA)([0-9A-Z]{16})\b"),
    ("a GitHub token", r"\bgh[pousr]_([A-Za-z0-9]{36,251})\b"),
    ("a GitHub token", r"\bgithub_pat_([A-Za-z0-9_]{60,251})\b"),
    ("a GitLab token", r"\bglpat-([A-Za-z0-9_-]{20,64})\b"),
    ("an Anthropic key", r"\bsk-ant-[a-z0-9]+-([A-Za-z0-9_-]{32,200})"),
    ("an OpenAI key", r"\bsk-(?!ant-)(?:\w{2,12}-)?([A-Za-z0-9_-]{32,200})"),
    ("a Slack token", r"\bxox[abeoprs]-([0-9A-Za-z-]{20,200})"),
    ("a Slack webhook", r"hooks\.slack\.com/services/T\w{6,}/B\w{6,}/(\w{20,40})"),
    ("a Hugging Face token", r"\bhf_([A-Za-z0-9]{34,64})\b"),
    ("a Google API key", r"\bAIza([0-9A-Za-z_-]{35})\b"),
    ("an NVIDIA API key", r"\bnvapi-([A-Za-z0-9_-]{40,200})"),
    ("a private key", _KEY),
)
_PLACEHOLDER = re.compile(
    r"example|placeholder|redacted|dummy|sample|fake|your|secret|token|x{4,}|0{5,}|1234|abcd|\.\.\.",
    re.IGNORECASE,
)
MIN_BITS_PER_CHARACTER = 3.0


def _is_placeholder(match: re.Match[str]) -> bool:
    """Whether a secret says that it is none, or has little entropy (Shannon's, in bits).

    The bar is lower for the 16 characters of an AWS id, of which few can be distinct.
    """
    text = match[1]
    shares = [count / len(text) for count in Counter(text).values()]
    entropy = -sum(share * math.log2(share) for share in shares)
    least = min(MIN_BITS_PER_CHARACTER, math.log2(len(text)) * 0.7)
    return entropy <= least or bool(_PLACEHOLDER.search(text))


_TEXTS = (
    _Pattern("RP406", _REMOTE, "{text!r} runs what it downloads; download, check a hash, then run"),
    _Pattern("RP407", _ENCODED, "{text!r} runs what it decodes; write the code out"),
    *(
        _Pattern(
            "RP408",
            re.compile(form),
            f"looks like {kind} (not repeated here); revoke it, then remove it",
            _is_placeholder,
        )
        for kind, form in _SECRETS
    ),
)


def check_texts(skill: Skill) -> Iterator[Finding]:
    """Every text file: download-and-run and decode-and-run, in commands and in code; secrets."""
    for source in skill.texts:
        for row in _TEXTS:
            yield from row.findings(source)
