"""RP408: key material by its published formats. A finding never repeats the secret."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator

from ringproof.harness.lint.model import Skill
from ringproof.harness.reports.model import Finding

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
        for kind, match in _found(source.text):
            message = f"looks like {kind} (not repeated here); revoke it, then remove it"
            yield Finding("RP408", source.shown, source.line_of(match.start()), message)


def _found(text: str) -> Iterator[tuple[str, re.Match[str]]]:
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
