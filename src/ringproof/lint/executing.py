"""RP406, RP407: commands and code that execute what was downloaded or decoded.

A shell reads ``c''url``, ``c\\url`` and ``"curl"`` as ``curl``, so texts are searched as they are
written and as a shell reads their words.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from ringproof.findings.finding import Finding
from ringproof.findings.printable import showable
from ringproof.lint.skill import Skill
from ringproof.lint.source import SourceFile

_FOLDERS = r"(?:[\w.~/-]{0,100}/)?"
_SHELLS = r"(?:ba|z|da|k|fi|a|c|tc|mk)?sh"
_SHELL = (
    rf"{_FOLDERS}(?:(?:busybox\s+)?{_SHELLS}|pwsh|iex|invoke-expression|(?:source|\.)\s+/dev/stdin)"
    r"\b(?![./-]|\w)"
)
_PROGRAMS = r"(?:python[\d.]*|perl|ruby|node|php)"
_INTERPRETER = rf"{_FOLDERS}{_PROGRAMS}\s*(?:-(?=\s|$)|$|[;&|)\"'`])"
_PREFIX = (
    rf"(?:{_FOLDERS}(?:sudo|doas|env|exec|command|nohup)\s+(?:-\S+\s+){{0,20}}"
    r"|\w+=\S*\s+){0,20}"
)
"""Assignments stand in one place only: in two, a text can be read in 2^n ways."""
_REST = r"(?:\\\n|[^\n]){0,400}?"
_PIPE = (
    rf"(?<!\|)\|(?!\|)&?\s*(?:\\\n\s*)?{_PREFIX}(?:{_SHELL}|{_INTERPRETER}"
    rf"|xargs\s+(?:-\S+\s+)*{_SHELLS}\s+-c\s+[\"']?[@{{%])"
)
_FETCH = (
    r"(?:curl|wget|aria2c|lynx|iwr|irm|invoke-webrequest|invoke-restmethod"
    r"|(?:fetch|axel|[\"']?(?:\$\w+|\$\{\w+\})[\"']?)(?=\s[^\n|]{0,200}https?://))"
)
_PYTHON = r"(?:__import__\([^)\n]{0,40}\)\.|\w+\.)*"
_RUN = rf"(?:(?:eval|source|\.|{_SHELLS}(?:\s+-\w+)*|{_PROGRAMS}(?:\s+-[ce])?)\s+(?:<<<\s*)?[\"']?)"
_REMOTE = re.compile(
    rf"(?<![\w./-]){_FOLDERS}{_FETCH}\s{_REST}{_PIPE}"
    rf"|(?<![\w-]){_RUN}(?:\$\(|`|<\()\s*{_FETCH}\s"
    rf"|\b(?:exec|eval)\s*\(\s*{_PYTHON}(?:requests\.get|httpx\.get|urlopen|urllib\.request)\b"
    rf"|[\"']{_SHELLS}[\"'],\s*[\"']-c[\"'],\s*(?:requests|httpx|urllib)\."
    r"|\b(?:iex|invoke-expression)\b[^\n]{0,80}(?:downloadstring|iwr|irm|invoke-webrequest)",
    re.IGNORECASE | re.MULTILINE,
)
_SOCKET = r"/dev/(?:tcp|udp)/"
_REVERSE = re.compile(
    rf"(?<![\w-]){_SHELLS}\s+-i\s[^\n]{{0,40}}{_SOCKET}"
    r"|(?<![\w-])(?:nc|ncat|netcat)\s[^\n|;&]{0,80}(?<=\s)"
    rf"(?:-\w{{0,8}}[ec]\s*[\"']?(?:/|\$|(?:{_SHELLS}|cmd|powershell)(?![\w-]|\.(?!exe)))"
    r"|--(?:sh-|lua-)?exec\b)"
    rf"|<>?\s*{_SOCKET}(?:[^\n|]{{0,200}}{_PIPE}|[^|]{{0,400}}<&\s*\d[^\n|]{{0,80}}{_PIPE}"
    rf"|[^|]{{0,400}}?(?<![\w.-]){_SHELLS}\s[^\n|;]{{0,40}}<&)",
    re.IGNORECASE | re.MULTILINE,
)
_DECODER = (
    r"(?:base(?:64|32)\s+(?:-\w*d\w*|-D|--decode)|basenc\s[^\n|]{0,60}-d|xxd\s+-r"
    r"|openssl\s+(?:enc|base64)\s[^\n|]{0,60}-d|uudecode)"
)
_CODE = r"\\(?:x[0-9a-f]{2}|[0-7]{3})"
_DECODED = (
    r"(?:b64decode|b32decode|b85decode|a85decode|decodebytes|fromhex|unhexlify|decompress"
    r"|marshal\.loads|codecs\.decode)\b"
)
_LETTERS = r"[\"']?[\[\]a-z0-9-]{3,80}[\"']?"
_ENCODED = re.compile(
    rf"\b{_DECODER}{_REST}{_PIPE}"
    rf"|\|\s*(?:rev|tr\s+{_LETTERS}\s+{_LETTERS})\s*{_PIPE}"
    rf"|\b(?:printf|echo\s+-\w*e\w*)\s[^\n|]{{0,80}}?{_CODE}[^\n|]{{0,2000}}{_PIPE}"
    rf"|(?<![\w-])(?:eval|{_SHELLS}\s+-c)\s+\$'[^'\n]{{0,80}}?{_CODE}"
    rf"|(?<![\w-]){_RUN}(?:\$\(|`|<\()[^\n]{{0,300}}?{_DECODER}"
    rf"|\b(?:exec|eval)\s*\(\s*(?:compile\s*\(\s*)?{_PYTHON}{_DECODED}"
    r"|\b(?:exec|eval)\s*\(\s*(?:\"\"|'')\.join\s*\(\s*(?:map\s*\(\s*)?chr\b"
    rf"|\b(?:pickle|dill|cloudpickle|marshal)\.loads\s*\(\s*{_PYTHON}{_DECODED}"
    r"|\bgetattr\s*\(\s*(?:__builtins__|builtins)\s*,\s*[\"'][^\n]{0,40}\+"
    r"|\beval\s*\(?\s*(?:un)?pack\b"
    r"|\b(?:eval|Function)\s*\(\s*(?:window\.)?(?:atob\s*\(|String\.fromCharCode"
    r"|Buffer\.from\s*\([^)\n]{0,4000}(?:base64|hex))"
    r"|\b(?:iex|invoke-expression)\b[^\n]{0,80}frombase64string"
    r"|\b(?:powershell|pwsh)(?:\.exe)?\s[^\n]{0,100}-e(?:nc|ncodedcommand)?\s+[A-Za-z0-9+/=]{40}",
    re.IGNORECASE | re.MULTILINE,
)
_RULES = (
    ("RP406", _REMOTE, "runs what it downloads; download, check a hash, then run"),
    ("RP406", _REVERSE, "lets another machine run commands on this one; remove it"),
    ("RP407", _ENCODED, "runs what it decodes; write the code out"),
)
# Quotes and backslashes inside a word, the separator of words, and a quoted name of a command.
_QUOTING = re.compile(
    r"(?<=\w)(?:''|\"\"|\\)(?=\w)|(?P<blank>\$\{?IFS\}?)"
    rf"|(?<![\w=])([\"'])(?P<name>{_FETCH}|{_SHELLS}|base64|rm|dd|nc)\2(?!\w)",
    re.IGNORECASE,
)


def as_shell_reads(text: str) -> str:
    """Return a text with the quotes taken out that a shell takes out of words."""
    return _QUOTING.sub(lambda match: match["name"] or " " * bool(match["blank"]), text)


def check_execution(skill: Skill) -> Iterator[Finding]:
    """Every text file: download-and-run and decode-and-run, in commands and in code."""
    for source in skill.texts:
        read = as_shell_reads(source.text)
        found = {
            (rule, text.count("\n", 0, match.start()) + 1): f"{showable(match[0], 80)!r} {problem}"
            for text in dict.fromkeys((read, source.text))
            for rule, pattern, problem in _RULES
            for match in pattern.finditer(text)
        }
        for (rule, line), message in found.items():
            yield source.finding(rule, line, message)
        yield from _run_later(source, read)


_COMMAND = re.compile(rf"(?<![\w./-])({_FETCH})\s((?:\\\n|[^\n;|&]){{1,400}})", re.IGNORECASE)
_SAVED = re.compile(
    r"(?:\s--?o\w*[ =]\s*|\s-\w*[oO]\s+|\s-outfile\s+|>\s*)[\"']?([\w./:~-]{1,100})", re.IGNORECASE
)
_ADDRESS = re.compile(r"://[^\s\"'?#]{0,300}/([\w.-]{1,100})")
_CHECKED = re.compile(
    r"\b(?:(?:sha|md)\d+sum|shasum|b2sum|gpg|cosign|minisign|checksum|get-filehash|openssl\s+dgst)",
    re.IGNORECASE,
)
_NEAR = 1_000
"""Characters after a download in which the file that it saved is executed."""


def _run_later(source: SourceFile, text: str) -> Iterator[Finding]:
    """Yield downloads to a file that the next lines execute without a check of its hash."""
    for command in _COMMAND.finditer(text):
        saved = _SAVED.search(f" {command[2]}")
        if saved is None and command[1].lower() != "wget":
            continue
        address = _ADDRESS.search(command[2])
        name = saved[1] if saved and "://" not in saved[1] else ""
        name = name if name not in ("", "-") else address[1] if address else ""
        base = re.escape(posixpath.basename(name))
        if not base:
            continue
        start = rf"(?:^|[;&|(`])[ \t]*(?:sudo[ \t]+)?(?:{_SHELLS}|source|\.|{_PROGRAMS})"
        run = re.compile(
            rf"{start}[ \t]+(?:-\w+[ \t]+)*[\"']?{_FOLDERS}{base}(?![\w.-])"
            rf"|(?:^|[;&|(`])[ \t]*(?:sudo[ \t]+)?[\w.~-]{{0,60}}/[\w./-]{{0,60}}?{base}(?![\w.-])"
            rf"|(?:^|[;&|(`])[ \t]*{base}(?=[ \t;&|]*$)",
            re.MULTILINE,
        )
        near = text[command.end() : command.end() + _NEAR]
        match = run.search(near)
        if match and not _CHECKED.search(near[: match.start()]):
            said = f"{showable(command[0], 60)!r} is executed by {showable(match[0].strip(), 60)!r}"
            line = text.count("\n", 0, command.start()) + 1
            yield source.finding("RP406", line, f"what {said}; check a hash before")
