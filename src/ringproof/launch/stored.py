"""Options of Megatron-LM's parsers on the lines that the skills know, stored as data.

``checks/doctor/store_options.py`` writes the table from the source of each line.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping

from ringproof.tables import read_table

FILE = "options.toml"
WIDTH = 100


def stored_options(line: str) -> frozenset[str]:
    """Return the options of a line by its name, with their dashes; empty if none are stored."""
    groups = read_table("ringproof.launch", FILE)["options"]
    return frozenset(
        f"--{name}" for group in groups if line in group["lines"] for name in group["names"].split()
    )


def table(known: Mapping[str, Iterable[str]]) -> str:
    """Return the options of lines as the text of the table.

    Args:
        known: Options with their dashes, by the name of a line.
    """
    lines_of: dict[str, list[str]] = {}
    for line, options in known.items():
        for option in options:
            if re.fullmatch(r"--[\w.-]+", option):
                lines_of.setdefault(option[2:], []).append(line)
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in sorted(lines_of):
        groups.setdefault(tuple(lines_of[name]), []).append(name)
    text = ["# Written by checks/doctor/store_options.py."]
    for lines, names in groups.items():
        quoted = ", ".join(f'"{line}"' for line in lines)
        wrapped = textwrap.wrap(" ".join(names), WIDTH, break_on_hyphens=False)
        text += ["", "[[options]]", f"lines = [{quoted}]", 'names = """', *wrapped, '"""']
    return "\n".join(text) + "\n"
