"""Identifiers, strings, fingerprint and documentation of a C++ or CUDA definition."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from ringproof.harness.anchors.contents import contains
from ringproof.harness.anchors.native.found import NativeFound
from ringproof.harness.anchors.native.tokens import Token, string_value, tokens

_JOINTS = frozenset(("::", ".", "->"))
_BEHIND = re.compile(
    rb"[ \t,;]*(//[/!]<[^\n]*(?:\n[ \t]*//[/!]<[^\n]*)*|/\*[*!]<.*?\*/)", re.DOTALL
)
_ORNAMENT = re.compile(r"^[ \t]*(?:/\*[*!]*<?|\*+/|\*+|//[/!]*<?)|\*+/[ \t]*$", re.MULTILINE)
_MAX_REMARK_BYTES = 100_000


def missing_expectations(found: NativeFound, expects: Sequence[str]) -> tuple[str, ...]:
    """Return the expectations that do not occur inside a definition.

    An item occurs as an identifier, as a chain of them joined as in the code (``a::b``, ``a.b``,
    ``a->b``), or as a part of a string literal, with white space folded. Comments do not count.
    """
    if not expects:
        return ()
    parts = found.code()
    names = {token.text for token in parts if token.kind == "word"}
    texts = [string_value(token.text) for token in parts if token.kind == "string"]
    chains = _chains(parts)
    return tuple(item for item in expects if not _occurs(item, names, chains, texts))


def fingerprint(found: NativeFound) -> str:
    """Return the SHA-256 of the tokens without comments.

    The parser's tree is not used because a new version of the grammar must not look like a change.
    """
    digest = hashlib.sha256()
    for token in found.code():
        data = token.text.encode("utf-8", "backslashreplace")
        digest.update(b"%d:%s" % (len(data), data))
    return digest.hexdigest()


def documentation_fingerprint(found: NativeFound) -> str:
    """Return the SHA-256 of the words of `remark`."""
    return hashlib.sha256(f"{remark(found)}\n".encode("utf-8", "backslashreplace")).hexdigest()


def remark(found: NativeFound) -> str:
    """Return the comment directly above a definition, or after it as ``//!<``, on one line."""
    source = found.text.source
    raw = _above(source, found.begin) + b"\n" + _behind(source, found.end_byte)
    return " ".join(_ORNAMENT.sub(" ", raw.decode("utf-8", "backslashreplace")).split())


def _chains(parts: Sequence[Token]) -> list[tuple[str, ...]]:
    """Return chains of identifiers with the operators that join them."""
    found: list[tuple[str, ...]] = []
    chain: list[str] = []
    for token in parts:
        joint = token.kind == "mark" and token.text in _JOINTS
        goes_on = bool(chain) and (chain[-1] in _JOINTS) != joint
        if goes_on and (joint or token.kind == "word"):
            chain.append(token.text)
        else:
            found.append(tuple(chain))
            chain = [token.text] if token.kind == "word" else []
    return [chain for chain in (*found, tuple(chain)) if len(chain) > 1]


def _occurs(
    item: str, names: set[str], chains: Sequence[tuple[str, ...]], texts: Sequence[str]
) -> bool:
    folded = " ".join(item.split())
    data = item.encode()
    wanted = tuple(token.text for token in tokens(data))
    if len(wanted) == 1 and wanted[0] in names:
        return True
    if len(wanted) > 1 and any(contains(chain, wanted) for chain in chains):
        return True
    return any(folded in text for text in texts)


def _above(source: bytes, begin: int) -> bytes:
    """Return the comment whose last line is directly above a position, or nothing."""
    floor = max(0, begin - _MAX_REMARK_BYTES)
    before = source[floor:begin]
    code = before.rstrip(b" \t\r\n")
    if before[len(code) :].count(b"\n") > 1:
        return b""
    if code.endswith(b"*/"):
        start = code.rfind(b"/*")
        alone = not code[code.rfind(b"\n", 0, max(start, 0)) + 1 : start].strip()
        is_behind = code[start + 3 : start + 4] == b"<"
        return code[start:] if start >= 0 and alone and not is_behind else b""
    lines: list[bytes] = []
    for line in reversed(code.split(b"\n")):
        stripped = line.strip()
        if not stripped.startswith(b"//") or stripped[3:4] == b"<":
            break
        lines.append(line)
    return b"\n".join(reversed(lines))


def _behind(source: bytes, end: int) -> bytes:
    found = _BEHIND.match(source, end, min(len(source), end + _MAX_REMARK_BYTES))
    return found.group(1) if found else b""
