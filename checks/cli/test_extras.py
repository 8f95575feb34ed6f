"""How a message says to install what is missing."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from ringproof import extras

ROOT = Path(__file__).parents[2]


def test_without_torch_the_one_without_cuda_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    for extra in ("prove", "reference", "rehearsal"):
        said = extras.how_to_install(extra)
        assert said.startswith(f"without a GPU run first: {extras.CPU_TORCH}; then run: ")
    assert extras.how_to_install("plan").startswith("run: pip install '.[plan]'")


def test_one_constant_says_whether_there_is_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "ON_INDEX", True)
    assert extras.how_to_install("plan") == "run: pip install 'ringproof[plan]'"


def test_nothing_else_names_an_extra_of_an_index() -> None:
    files = [*ROOT.glob("src/**/*.py"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("skills/*/*.md")]
    naming = [
        path.relative_to(ROOT).as_posix()
        for path in [*files, ROOT / "README.md"]
        if re.search(r"install\b.*(?<!/)ringproof\[", path.read_text(encoding="utf-8"))
    ]
    assert naming == ["src/ringproof/extras.py"]
