"""``[tool.ringproof.lint]`` of a ``pyproject.toml``."""

from __future__ import annotations

import fnmatch
import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringproof.errors import InputError
from ringproof.harness.lint.rules import IDS
from ringproof.harness.reports.model import Finding

KEYS = ("select", "ignore", "per-path")


@dataclass(frozen=True)
class LintConfig:
    """Which rules apply where.

    Attributes:
        select: Prefixes of rule ids; all rules when empty.
        ignore: Prefixes of rule ids that never apply.
        per_path: Glob of shown paths, and the prefixes that do not apply there.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    per_path: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def applies(self, finding: Finding) -> bool:
        """Whether a finding is to be reported."""
        if self.select and not finding.rule.startswith(self.select):
            return False
        off = self.ignore + tuple(
            prefix
            for pattern, prefixes in self.per_path
            if fnmatch.fnmatchcase(finding.path, pattern)
            for prefix in prefixes
        )
        return not (off and finding.rule.startswith(off))


def read_config(path: Path) -> LintConfig:
    """Read a ``pyproject.toml``; one without the table means the defaults.

    Raises:
        InputError: The file cannot be read or parsed, or the table has a wrong key or value.
    """
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        data: Any = toml.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
        raise InputError("--config", path, problem, "name a pyproject.toml") from error
    except ValueError as error:  # TOML's and UTF-8's errors
        raise InputError(str(path), None, f"not valid TOML: {error}", "correct it") from error
    for key in ("tool", "ringproof", "lint"):
        data = data.get(key, {}) if isinstance(data, dict) else {}
    if not isinstance(data, dict):
        raise _wrong(path, "", "is not a table", "write [tool.ringproof.lint]")
    for key in data:
        if key not in KEYS:
            raise _wrong(path, f".{key}", "no such key", f"use one of {', '.join(KEYS)}")
    per_path = data.get("per-path", {})
    if not isinstance(per_path, Mapping):
        raise _wrong(path, ".per-path", "is not a table", 'write "GLOB" = ["RPnnn"]')
    return LintConfig(
        select=_prefixes(path, "select", data.get("select", [])),
        ignore=_prefixes(path, "ignore", data.get("ignore", [])),
        per_path=tuple(
            (str(glob), _prefixes(path, f'per-path."{glob}"', value))
            for glob, value in per_path.items()
        ),
    )


def check_prefixes(field: str, prefixes: tuple[str, ...]) -> tuple[str, ...]:
    """The prefixes, each of which names at least one rule.

    Raises:
        InputError: One names none.
    """
    for prefix in prefixes:
        if not prefix or not any(identifier.startswith(prefix) for identifier in IDS):
            raise InputError(field, prefix, "names no rule", "see docs/lint.md for the rules")
    return prefixes


def _prefixes(path: Path, key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _wrong(path, f".{key}", "is not a list of rules", 'write ["RP202"]')
    return check_prefixes(f"{path}: tool.ringproof.lint.{key}", tuple(value))


def _wrong(path: Path, key: str, problem: str, remedy: str) -> InputError:
    return InputError(f"{path}: tool.ringproof.lint{key}", None, problem, remedy)
