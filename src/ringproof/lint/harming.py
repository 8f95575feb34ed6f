"""RP412, RP413: commands that send private files away, and those that destroy a machine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import MappingProxyType

from ringproof.findings.finding import Finding
from ringproof.findings.printable import showable
from ringproof.lint.executing import as_shell_reads
from ringproof.lint.skill import Skill

_HOME = r"(?:~|\$HOME|\$\{HOME\}|/root|/home(?:/\w[\w.-]*)?|/Users/\w[\w.-]*)"
_BEGIN = r"(?<![\w./$~{-])"
_END = r"(?=[\s;&|)\"'`,\]]|$)"
_SYSTEM = r"/(?:bin|boot|dev|etc|home|lib|lib64|opt|sbin|srv|usr|var)?"
_ROOT = rf"[\"']?{_BEGIN}(?:{_HOME}|{_SYSTEM})[\"']?/?(?:\.?\*)?{_END}"
"""The root, a folder of the system or a home, as a whole; not what lies below it."""

_NAMES = (
    r"(?:(?:private[_-]?)?key|id_(?:rsa|dsa|ecdsa|ed25519)|secrets?|credentials?|passwords?|shadow"
    r"|passwd|\.?netrc|\.pgpass|\.git-credentials|\.npmrc|\.pypirc|\.(?:ba|z)sh_history|\.env)"
    r"(?:\.(?!pub\b|example\b|md\b)\w+)?|[\w-]+\.(?:pem|key|p12|pfx|kdbx)"
)
_PRIVATE = (
    rf"(?:{_BEGIN}(?:[\w.~${{}}-]*/)*(?:{_NAMES}){_END}"
    rf"|{_HOME}/\.(?:ssh(?!/(?:config|known_hosts|authorized_keys)\b)|aws|gnupg|kube|docker|azure|config/gcloud|cache/huggingface/token)"
    rf"(?![\w/.-]*\.pub\b)\b)"
)
_DUMP = r"(?<![\w./$-])(?:env|printenv|export\s+-p|history)\s*(?=\||\))|\bos\.environ(?![\w.[])"
_SOURCE = rf"(?:{_PRIVATE}|{_DUMP}|(?<![\w-])(?:tar|zip|rsync|cpio)\b[^\n|;]{{0,100}}?{_ROOT})"
_READ = rf"[^\n]{{0,200}}?(?:\b(?:open|Path|expanduser)\([^)\n]{{0,80}}?{_PRIVATE}|{_DUMP})"
# Files that a client reads to show who it is, and headers, which authenticate a request.
_IDENTITY = re.compile(
    r"(?<=\s)(?:-[iEKu]|--?(?:cert|key|cacert|capath|config|identity\w*|netrc-file|user|header)|-H)"
    r"(?:[ =]|(?<=-i))\s*(?:\"(?:[^\"\n\\]|\\.)*\"|'[^'\n]*'|[^\s\"']+)"
)
_BODY = r"\s(?:-[dFT]|--(?:data[\w-]*|form[\w-]*|json|upload-file|post-(?:file|data)|body-file))"
_HTTP = r"(?<![\w./-])(?:[\w.~/-]{0,100}/)?(?:curl|wget|https?)(?=\s)"
_ON = r"(?:(?!curl\s|wget\s)[^\n;|]){0,200}?"
_SOCKETS = r"(?:nc|ncat|netcat|socat|telnet|ssh|sendmail|mailx?|mutt|openssl\s+s_client)"
_INTO = (
    rf"\|\s*(?:sudo\s+)?(?:[\w./]{{0,60}}/)?(?:{_SOCKETS}(?![\w-])"
    rf"|(?:curl|wget)\b[^\n|;]{{0,300}}(?:{_BODY}[ =]?\s*[\"']?(?:[\w.-]+=)?(?:@?-|/dev/stdin)"
    r"|\s(?:POST|PUT)\b)|https?\s+(?:POST|PUT)\b|tee\s+/dev/tcp/)"
)
_SENDS = re.compile(
    rf"{_SOURCE}[^\n;]{{0,300}}?(?:{_INTO}|>\s*/dev/(?:tcp|udp)/)"
    rf"|{_HTTP}{_ON}{_BODY}[ =]?{_ON}[@<=(\s\"'](?:{_PRIVATE}|{_DUMP})"
    rf"|{_HTTP}{_ON}https?://[^\s|;$`]{{0,200}}(?:\$\(|`)[^\n)`$]{{0,100}}?{_PRIVATE}"
    rf"|(?<![\w-]){_SOCKETS}\s[^\n|;]{{0,200}}<\s*{_PRIVATE}"
    rf"|(?<![\w-])(?:scp|rsync|rclone|sftp)\s[^\n;|]{{0,200}}?{_PRIVATE}[^\n;|]{{0,200}}?\s[\w@.-]+:"
    rf"|(?<![\w-])(?:aws\s+s3|gsutil)\s+(?:cp|sync|mv|rsync)\s[^\n;|]{{0,200}}?{_PRIVATE}"
    r"[^\n;|]{0,100}\s(?:s3|gs)://"
    rf"|(?<![\w-])(?:dig|nslookup|host|ping)\s[^\n;`$]{{0,99}}(?:\$\(|`)[^\n`]{{0,99}}?{_PRIVATE}"
    rf"|\b(?:requests|httpx|session|client)\.(?:post|put|get)\({_READ}"
    rf"|\burlopen\({_READ}",
    re.MULTILINE,
)
_DISK = r"/dev/(?:(?:sd|hd|vd|xvd)[a-z]|nvme\d|mmcblk\d|disk\d|dm-|mapper/|md\d)[\w/-]*"
_RECURSIVE = r"(?=[^\n;|&]{0,99}\s(?:-\w{0,9}[rR]|--recursive))"
_FORK = (
    r"(?<![\w:.])(?P<bomb>[\w:.]{1,40})\s*\(\)\s*\{\s*(?P=bomb)\s*\|\s*(?P=bomb)\s*&\s*;?\s*\}"
    r"\s*;?\s*(?P=bomb)"
)
_DESTROYS = re.compile(
    rf"(?<![\w-])(?:rm|shred)\b{_RECURSIVE}[^\n;|&]{{0,200}}?\s{_ROOT}"
    r"|(?<![\w-])rm\s[^\n;|&]{0,100}--no-preserve-root"
    rf"|(?<![\w-])(?:chmod|chown|chgrp)\b{_RECURSIVE}[^\n;|&]{{0,200}}?\s{_SYSTEM}/?\*?{_END}"
    rf"|(?<![\w-])mv\s+(?:-\w+\s+)*{_ROOT}"
    rf"|(?<![\w-])find\s+{_ROOT}(?![^\n;|]{{0,99}}\s-(?:i?name|i?path|i?wholename|i?regex|[amc]time"
    r"|[amc]min|size|empty|newer|user)\b)[^\n;|]{0,100}(?:-delete\b|-exec(?:dir)?\s+(?:rm|shred)\b)"
    rf"|(?<![\w-])dd\s[^\n;|&]{{0,200}}?\bof=[\"']?{_DISK}|>\s*{_DISK}|(?<![\w-])tee\s+{_DISK}"
    rf"|(?<![\w-])(?:mkfs(?:\.\w+)?|mkswap|wipefs|blkdiscard|shred|sgdisk|parted)\s[^\n;|&]{{0,100}}?"
    rf"{_DISK}"
    rf"|{_FORK}|\bwhile\s*\(?(?:True|1|fork)\)?\s*[:{{]?\s*(?:os\.)?fork\b"
    r"|(?<![\w-])kill\s+-(?:9|KILL|SIGKILL)\s+-1\b"
    rf"|\brmtree\(\s*(?:[\"']{_ROOT}|(?:pathlib\.)?Path\.home\(\)\s*[,)]"
    rf"|(?:os\.path\.expanduser|Path)\([\"']{_ROOT})"
    r"|\b(?:Remove-Item|rd|rmdir|del)\s[^\n;|]{0,60}(?:[A-Za-z]:\\|\$HOME|~)\*?(?=[\s\"']|$)"
    r"|\bformat(?:\.com)?\s+[c-z]:(?:\s|$)",
    re.MULTILINE,
)
_WARNS = re.compile(
    r"\b(?:never|not|cannot|avoid|don't|deny|denied|den(?:ies|ying)|refus\w+|block\w*|forbid\w*"
    r"|prevent\w*|reject\w*|danger\w*|destructive|harmful|malicious)\b[^\n]{0,160}$",
    re.IGNORECASE,
)
_PROBLEMS = MappingProxyType(
    {
        "RP412": "sends private files or settings away; remove it",
        "RP413": "destroys a system, a disk or a home; name the one folder that is meant",
    }
)


def check_harm(skill: Skill) -> Iterator[Finding]:
    """Every text file; what a sentence or a comment warns of is not a command."""
    for source in skill.texts:
        text = as_shell_reads(source.text).replace("\\\n", " \x00")
        bare = _IDENTITY.sub(lambda match: " " * len(match[0]), text)
        prose = source.prose.split("\n")
        for rule, match in (*_found("RP412", bare, _SENDS), *_found("RP413", text, _DESTROYS)):
            line = sum(text.count(end, 0, match.start()) for end in "\n\x00") + 1
            if not _is_warning(match, any(prose[line - 1 : line])):
                said = showable(match[0].replace("\x00", ""), 80)
                yield source.finding(rule, line, f"{said!r} {_PROBLEMS[rule]}")


def _found(rule: str, text: str, pattern: re.Pattern[str]) -> list[tuple[str, re.Match[str]]]:
    return [(rule, match) for match in pattern.finditer(text)]


def _is_warning(match: re.Match[str], is_prose: bool) -> bool:
    before = match.string[match.string.rfind("\n", 0, match.start()) + 1 : match.start()]
    is_said = is_prose or before.lstrip().startswith(("#", "//"))
    return is_said and bool(_WARNS.search(before))
