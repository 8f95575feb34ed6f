"""Fixtures of the reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.anchors.scene import Scene, make_scene


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    made = make_scene(tmp_path)
    monkeypatch.chdir(made.skill.root)
    return made
