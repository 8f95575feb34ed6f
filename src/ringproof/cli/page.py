"""Self-contained HTML pages: their templates, styles, scripts and data."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from ringproof.templates import fill_template


def asset(name: str) -> str:
    """Return a template, style or script of ``cli/pages``."""
    return files("ringproof.cli").joinpath("pages").joinpath(name).read_text(encoding="utf-8")


def embedded(value: Any) -> str:
    """Return JSON that cannot end the script it stands in.

    Raises:
        ValueError: A number that JSON cannot say.
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def rendered(template: str, **values: Any) -> str:
    """Fill a template of ``cli/pages``; every value is escaped unless the template says not to."""
    return fill_template("ringproof.cli", template, values, folder="pages")
