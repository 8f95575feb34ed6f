"""RP405 to RP407: instructions that nobody sees and code that nobody has read."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ringproof.harness.lint.markdown import Piece, hidden_pieces
from ringproof.harness.lint.model import Skill, SourceFile
from ringproof.harness.reports.model import Finding
from ringproof.harness.reports.printable import showable

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
