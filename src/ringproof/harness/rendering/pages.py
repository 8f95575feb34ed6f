"""Renders a page of the documentation for a skill: all tables of its card, and its verdicts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ringproof.harness.anchors.lock import Lock
from ringproof.harness.cards.model import Card
from ringproof.harness.proofs.verdicts import Verdict
from ringproof.harness.rendering.content import Content, Table
from ringproof.harness.rendering.escaping import Safe, code, inline, opening
from ringproof.harness.rendering.render import lay_out, render_document

_SECTIONS = (
    ("lines", "Lines of upstream", "lines"),
    ("constraints", "Constraints", "constraints style=table"),
    ("pitfalls", "Pitfalls", "pitfalls style=full"),
    ("markers", "Log markers", "markers columns=id,pattern,where,says,proof"),
    ("commands", "Commands", "commands"),
    ("claims", "Claims", "claims style=table"),
    ("version_matrix", "What exists where", "version-matrix"),
    ("anchors", "Code anchors", "anchors style=links"),
    ("upstreams", "Upstreams", "upstreams columns=id,name,source,ref,commit"),
)
_NEED_THE_LOCK = ("version_matrix", "anchors")
_CODE_WITH_DECLARATION = re.compile(r"(`+)((?:(?!\1).)*<[!?](?:(?!\1).)*)\1")
_CODE_WITH_PIPE = re.compile(r"(`+)(?:(?!\1).)*\\\|(?:(?!\1).)*\1")


def skill_page(
    name: str, card: Card, lock: Lock | None, records: Mapping[str, Mapping[str, Any]]
) -> str:
    """Return the page of one skill as Markdown for Python-Markdown.

    Args:
        name: Folder of the skill.
        lock: Lock of its anchors. Without one, the tables that need it are left out.
        records: Evidence records of the skill (see `ringproof.harness.proofs.evidence`), by
            environment class; may be empty.

    Raises:
        InputError: The card has text that cannot be shown, or the lock does not match the card.
    """
    lines = [f"# {inline(name)}", "", opening(card.summary), ""]
    if records:
        lines += ["## Verdicts", "", *_legend(records), "", *lay_out(_verdicts(records)), ""]
    for field, heading, words in _SECTIONS:
        if getattr(card, field) and (lock is not None or field not in _NEED_THE_LOCK):
            marks = (f"<!-- ringproof:begin {words} -->", "<!-- ringproof:end -->")
            lines += [f"## {heading}", "", *marks, ""]
    text = "\n".join(lines)
    filled = render_document(Path(f"{name}.md"), text.encode("utf-8"), card, lock)
    # GitHub needs an escape for a pipe in a table's code, and Python-Markdown would show it.
    page = _CODE_WITH_PIPE.sub(
        lambda match: match[0].replace("\\|", "|"), filled.content.decode("utf-8")
    )
    return _CODE_WITH_DECLARATION.sub(lambda match: _code_element(match[2]), page)


def _code_element(text: str) -> str:
    """Return a code element, since Python-Markdown reads ``<!`` as HTML even in backticks."""
    letters = (f"&#{ord(c)};" if not (c.isalnum() or c == " ") else c for c in text.strip())
    return f"<code>{''.join(letters)}</code>"


def _legend(records: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield what each verdict that occurs means, as items of a list."""
    found = {claim["verdict"] for record in records.values() for claim in record["claims"]}
    found |= {word for record in records.values() for word in record["validation_status"].values()}
    for verdict in Verdict:
        if verdict.value in found:
            yield f"- **{verdict.value}**: {inline(verdict.meaning)}"


def _verdicts(records: Mapping[str, Mapping[str, Any]]) -> Content:
    """Return topics and statements by environment class, with a dash for missing records."""
    topics = _table("topic", {c: record["validation_status"] for c, record in records.items()})
    statements = _table(
        "statement",
        {
            name: {claim["id"]: _verdict(claim) for claim in record["claims"]}
            for name, record in records.items()
        },
    )
    notes = tuple(_ran(name, record) for name, record in records.items())
    return Content("table", tables=tuple(t for t in (topics, statements) if t.rows), notes=notes)


def _verdict(claim: Mapping[str, Any]) -> str:
    """Return a verdict; for a statement about upstream with the kind of evidence behind it."""
    kind = claim.get("evidence") if claim.get("lines") else None
    return f"{claim['verdict']} ({kind})" if kind else str(claim["verdict"])


def _table(what: str, columns: Mapping[str, Mapping[str, str]]) -> Table:
    rows = dict.fromkeys(key for column in columns.values() for key in column)
    return Table(
        (Safe(what), *(inline(name) for name in columns)),
        tuple(
            (code(key), *(inline(column.get(key, "-")) for column in columns.values()))
            for key in rows
        ),
    )


def _ran(name: str, record: Mapping[str, Any]) -> Safe:
    return Safe(" ".join(_facts(name, record)))


def _facts(name: str, record: Mapping[str, Any]) -> Iterator[str]:
    where, totals = record["environment"], record["totals"]
    yield f"{inline(name)}: {inline(str(record['started']))[:10]},"
    yield f"torch {inline(str(where['torch']))}, commit {code(str(where['commit'])[:12])};"
    yield f"{totals['proofs_executed']} of {totals['proofs']} proofs executed."
    about = record.get("about_upstream", {})
    if about:
        told = (f"{n} {'not proven' if kind == 'none' else kind}" for kind, n in about.items())
        yield inline(f"Of {sum(about.values())} statements about upstream: {', '.join(told)}.")
