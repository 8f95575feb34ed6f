"""Reads tables of data that are shipped with the package: TOML beside the module that uses it."""

from __future__ import annotations

import importlib
import sys
from importlib import resources
from typing import Any


def read_table(package: str, name: str) -> dict[str, Any]:
    """Return the content of a TOML file of a package of ours."""
    return parsed(resources.files(package).joinpath(name).read_text(encoding="utf-8"))


def parsed(text: str) -> dict[str, Any]:
    """Return the content of a text of TOML.

    Raises:
        ValueError: It is not TOML, or is nested too deeply.
    """
    module = "tomllib" if sys.version_info >= (3, 11) else "tomli"
    try:
        return dict(importlib.import_module(module).loads(text))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
