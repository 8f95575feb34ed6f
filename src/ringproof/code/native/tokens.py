"""Splits C++ and CUDA source into tokens.

The time is linear in the source, and there is no recursion. A comment or raw string that is not
closed ends with the file, and a string with its line, so that no text takes longer than another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Token(NamedTuple):
    """Kind of a token and its bytes ``[start, end)`` in the source.

    Kinds: ``word``, ``number``, ``string``, ``char``, ``mark`` (one operator or bracket),
    ``comment``, ``directive`` (the ``#`` that opens a preprocessor line), ``close`` (its end).
    """

    kind: str
    start: int
    end: int
    text: str


# Angle brackets are single tokens so that `> >` and `>>` are the same.
_TOKEN = re.compile(
    rb"""
      (?P<space> (?: [ \t\r\f\v]+ | \\\r?\n )+ )
    | (?P<line> \n )
    | (?P<comment> // (?: [^\n\\]+ | \\\r?\n | \\ )* | /\* )
    | (?P<raw> (?:u8|[uUL])?R"[^()\\\s"]{0,16}\( )
    | (?P<string> (?:u8|[uUL])?" (?: [^"\\\n]+ | \\\r?\n | \\. )* "? )
    | (?P<char> (?:u8|[uUL])?' (?: [^'\\\n]+ | \\\r?\n | \\. )* '? )
    | (?P<number> \.?[0-9] (?: '?[\w.] | (?<=[eEpP])[+-] )* )
    | (?P<word> [A-Za-z_$\x80-\xff] [\w$\x80-\xff]* )
    | (?P<mark> :: | ->\*? | \.\.\. | && | \|\| | \+\+ | -- | == | != | \#\# | [-+*/%&|^]= | . )
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(\r?\n|.)", re.DOTALL)
_PREFIX = re.compile(r"(?:u8|[uUL])?R?")


def tokens(source: bytes, start: int = 0, end: int | None = None) -> Iterator[Token]:
    """Yield the tokens of ``source[start:end]``. The start counts as the start of a line."""
    stop = len(source) if end is None else end
    position, fresh, inside = start, True, False
    while position < stop:
        found = _TOKEN.match(source, position, stop)
        if found is None:  # not reached, since the last alternative matches any byte
            break
        kind, first = found.lastgroup or "mark", position
        position = found.end()
        if kind == "space":
            continue
        if kind == "line":
            if inside:
                yield Token("close", first, first, "\n")
            fresh, inside = True, False
            continue
        if kind == "comment" or kind == "raw":
            position = _closed(source, found, stop)
            kind = "string" if kind == "raw" else kind
        text = source[first:position].decode("utf-8", "backslashreplace")
        if kind == "mark" and text == "#" and fresh:
            kind, inside = "directive", True
        if kind != "comment":
            fresh = False
        yield Token(kind, first, position, text)
    if inside:
        yield Token("close", stop, stop, "\n")


def _closed(source: bytes, opening: re.Match[bytes], stop: int) -> int:
    """Return the end of a comment or a raw string."""
    text = opening.group()
    if text.startswith(b"//"):
        return opening.end()
    mark = b"*/"
    if text != b"/*":
        mark = b")" + text[text.index(b'"') + 1 : -1] + b'"'
    at = source.find(mark, opening.end(), stop)
    return stop if at < 0 else at + len(mark)


def code_tokens(source: bytes, start: int, end: int) -> tuple[Token, ...]:
    """Return the tokens of a span without comments, with neighbouring string literals joined.

    A formatter may split a long literal. The parts keep the prefix of the first.
    """
    joined: list[Token] = []
    run: list[Token] = []
    for token in tokens(source, start, end):
        if token.kind == "string":
            run.append(token)
        elif token.kind != "comment":
            joined += [*_joined(run), token]
            run = []
    return (*joined, *_joined(run))


def _joined(run: Sequence[Token]) -> Sequence[Token]:
    if len(run) < 2:
        return run
    prefix = _PREFIX.match(run[0].text)
    opening = prefix.group().removesuffix("R") if prefix else ""
    text = f'{opening}"{"".join(_inner(part.text) for part in run)}"'
    return (Token("string", run[0].start, run[-1].end, text),)


def _inner(literal: str) -> str:
    """Return the text between a literal's quotes, as written."""
    prefix = _PREFIX.match(literal)
    quoted = literal[prefix.end() if prefix else 0 :]
    if prefix is not None and prefix.group().endswith("R"):
        opening, _, rest = quoted.partition("(")
        return rest.removesuffix(f'){opening[1:]}"')
    return quoted[1:-1] if len(quoted) > 1 and quoted.endswith('"') else quoted[1:]


def string_value(literal: str) -> str:
    """Return a string literal's content with white space folded. Unusual escapes are kept."""
    return " ".join(_ESCAPE.sub(_unescaped, _inner(literal)).split())


def _unescaped(escape: re.Match[str]) -> str:
    letter = escape.group(1)
    if letter.endswith("\n"):
        return ""
    if letter in "ntrfv":
        return " "
    return letter if letter in "\"'\\?" else escape.group()


def spelled(parts: Sequence[Token]) -> str:
    """Join tokens to one line of code, which does not depend on their layout."""
    words: list[str] = []
    wordy = False
    for token in parts:
        is_wordy = token.kind not in ("mark", "directive", "close")
        if words and ((wordy and is_wordy) or words[-1] == ","):
            words.append(" ")
        words.append("" if token.kind == "close" else token.text)
        wordy = is_wordy
    return "".join(words)


_OPEN, _CLOSE = frozenset("([{"), frozenset(")]}")


def after_brackets(parts: Sequence[Token], at: int) -> int:
    """Return the index after the bracket that closes the one at an index."""
    depth = 0
    for index in range(at, len(parts)):
        depth += (parts[index].text in _OPEN) - (parts[index].text in _CLOSE)
        if depth <= 0:
            return index + 1
    return len(parts)
