"""RP401 to RP405, RP408 to RP410: characters and text that nobody sees, secrets, and orders."""

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
        line, counted = 1, 0
        for match in self.pattern.finditer(source.text):
            line += source.text.count("\n", counted, match.start())
            counted = match.start()
            if not self.allows(match):
                odd = match[match.lastindex or 0][0]
                letter = f"U+{ord(odd):04X} ({unicodedata.name(odd, 'unnamed')})"
                text = showable(match[0], 80)
                message = self.says.format(text=text, count=len(match[0]), letter=letter)
                yield source.finding(self.rule, line, message)


_INVISIBLE = re.compile(
    "[\x00-\x08\x0b\x0e-\x1f\x7f-\x84\x86-\x9f\xad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200d\u2028\u2029\u2060-\u2065\u206a-\u206f\u2800\u3164\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a]+"
)
_BIDIRECTIONAL = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]+")
_TAGS = re.compile(
    "[\U000e0000-\U000e007f]+|[\ufe00-\ufe0f\U000e0100-\U000e01ef]{2,}|[\U000e0100-\U000e01ef]"
    "|(?<=[A-Za-z\\s.,;:])[\ufe00-\ufe0f]"
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
        if not (source.text.isascii() and source.text.replace("\x0c", "").isprintable()):
            found = [item for row in _CHARACTERS for item in row.findings(source)]
            yield from {(item.rule, item.line): item for item in reversed(found)}.values()


_ASSISTANT = (
    r"(?:ai(?:\s+(?:agents?|assistants?|models?))?|assistants?|agents?|claude|codex|gemini|copilot"
    r"|chatgpt|llms?|models?)"
)
_INSTRUCTION = re.compile(
    r"\b(?:ignore|disregard|forget|override|bypass)\s+(?:\w+\s+){0,4}?"
    r"(?:instructions?|prompts?|rules?|guidelines|guardrails|polic(?:y|ies)|everything)\b"
    r"|\b(?:do\s+not|don'?t|never|without)\s+(?:tell|mention|inform|reveal|show|ask|notify|alert)"
    r"(?:ing)?\s+(?:\w+\s+){0,3}?(?:user|human|developer|operator|anyone)\b"
    r"|\byou\s+are\s+now\s+(?:an?|in|the|free)\b|\bnew\s+instructions?\s*:|\bsystem\s+prompt\b"
    r"|\b(?:exfiltrate|send|post|upload|forward)\s+(?:\w+\s+){0,4}?"
    r"(?:credentials?|secrets?|tokens?|passwords?|api\s+keys?|environment\s+variables|ssh)\b"
    rf"|\b{_ASSISTANT}\s*(?:[:,]\s*(?:please|you|run|execute|always|never|do|open|read|print|send"
    r"|copy|delete|write|install|fetch|download|approve|trust|assume|ignore|skip|add)"
    r"|must|should|shall)\b"
    rf"|\b(?:notes?|messages?|hints?|reminders?)\s+(?:to|for)\s+(?:the\s+|any\s+)?{_ASSISTANT}\b"
    rf"|\A\W*for\s+(?:the\s+|any\s+)?{_ASSISTANT}(?:\s+only)?\s*[.:]"
    r"|\b(?:curl|wget)\s+\S*(?:https?:|-)|\brm\s+-rf\s+[~/]|\bbase64\s+(?:-d|--decode)\b",
    re.IGNORECASE,
)


def check_hidden(skill: Skill) -> Iterator[Finding]:
    """Text of Markdown and HTML that is not displayed; comments in the frontmatter."""
    for source in skill.texts:
        for piece in source.of("hidden", "remark"):
            text = unicodedata.normalize("NFKC", piece.text)  # letters in odd styles
            match = _INSTRUCTION.search(text)
            if match:
                line = piece.line + text.count("\n", 0, match.start())
                message = f"text that is not shown says {showable(match[0], 60)!r}"
                yield source.finding("RP405", line, f"{message}; show it or remove it")


_PRIVATE = (
    r"(?:~/\.(?:ssh|aws|netrc|kube|docker|gnupg)|id_rsa|\.env\b|environment\s+variables"
    r"|credentials|api\s+keys?|secrets)"
)
_SEND = r"\b(?:send|post|upload|forward|exfiltrate)"
_ORDER = re.compile(
    r"(?<!never )(?<!not )(?<!n't )\b(?:ignore|disregard|forget)\s+(?:\w+\s+){0,3}?"
    r"(?:previous|prior|earlier|preceding|above|other|system|safety)\s+(?:\w+\s+){0,2}?"
    r"(?:instructions?|prompts?|rules|guidelines|guardrails)\b"
    r"|\b(?:do\s+not|don'?t|never)\s+(?:mention|reveal|disclose)\s+(?:this|that|these|any\s+of)\b"
    r"[^\n.]{0,40}\bto\s+(?:the\s+)?user\b(?!')"
    r"|<\|\w{2,30}\|>|\[/?INST\]|</?system(?:[-_](?:reminder|prompt))?>"
    rf"|{_PRIVATE}[^\n;]{{0,60}}{_SEND}\s+(?:it|them|this|that|those|its|their|the)\b"
    r"[^\n]{0,60}https?://"
    rf"|{_SEND}\s[^\n;]{{0,40}}{_PRIVATE}[^\n;]{{0,40}}\bto\s+https?://",
    re.IGNORECASE,
)
_SCRIPT_URL = r"(?:javascript:|vbscript:|data:(?!image/(?:png|gif|jpe?g|webp|avif)))"
_ACTIVE = re.compile(
    r"<script\b|<(?:iframe|object|embed)(?=[\s/]+\w)|<meta\s[^<>]{0,200}\bhttp-equiv\b"
    r"|<\w+(?:[\s/][^<>]{0,500}?)?[\s/\"']on(?!line|going|set)[a-z]{3,30}\s*="
    rf"|<\w+\s(?:[^<>]{{0,500}}?\s)?(?:href|src|action|xlink:href|data)\s*=\s*[\"']?\s*{_SCRIPT_URL}"
    rf"|\]\(\s*<?{_SCRIPT_URL}|^ {{0,3}}\[[^\]\n]+\]:\s*<?{_SCRIPT_URL}",
    re.IGNORECASE | re.MULTILINE,
)
_PROSE = (
    ("RP409", _ORDER, "{text!r} steers an assistant; say what the skill does instead"),
    ("RP410", _ACTIVE, "{text!r} runs code where the page is shown; remove it"),
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


_TEXTS = tuple(
    _Pattern(
        "RP408",
        re.compile(form),
        f"looks like {kind} (not repeated here); revoke it, then remove it",
        _is_placeholder,
    )
    for kind, form in _SECRETS
)


def check_texts(skill: Skill) -> Iterator[Finding]:
    """Secrets in every text file; orders and active content in the prose of Markdown."""
    for source in skill.texts:
        for row in _TEXTS:
            yield from row.findings(source)
        for rule, pattern, message in _PROSE:
            for match in pattern.finditer(source.prose):
                line = source.prose.count("\n", 0, match.start()) + 1
                yield source.finding(rule, line, message.format(text=showable(match[0], 60)))
