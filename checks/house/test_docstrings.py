"""The examples in docstrings of the package give what they say."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path
from types import ModuleType

import pytest

SOURCES = Path(__file__).parents[2] / "src"
MODULES = tuple(
    ".".join(path.relative_to(SOURCES).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(SOURCES.rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
)
"""Importing all others to look for examples would take each test process seconds."""


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_hold(name: str) -> None:
    results = doctest.testmod(importlib.import_module(name))
    assert results.attempted > 0
    assert results.failed == 0


def test_a_wrong_example_is_seen() -> None:
    assert doctest.testmod(ModuleType("wrong", ">>> 1 + 1\n3")).failed == 1
