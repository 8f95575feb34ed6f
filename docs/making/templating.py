"""The environment in which the templates of the documentation are filled."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

_CODE = re.compile(r"`([^`]+)`")
_MARKDOWN = re.compile(r"[\\`*_\[\]<>|~&{}#!]")


def prose(text: str) -> Markup:
    """Escape a card's text for HTML; text in backticks becomes code."""
    folded = " ".join(text.split())
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(folded))))


def heading(text: str) -> Markup:
    """Escape a card's text for a heading in Markdown, where it must stay on its line."""
    folded = " ".join(text.replace("`", "").split())
    return Markup(_MARKDOWN.sub(lambda match: f"&#{ord(match[0])};", folded))


def filled(template: str, **values: Any) -> str:
    """Fill a template of `docs/making/templates`; every value is escaped for HTML."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["prose"] = prose
    environment.filters["heading"] = heading
    return environment.get_template(template).render(**values)
