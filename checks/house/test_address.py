"""The project's address and version are the same wherever they stand."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from checks.house.address import ROOT, move, old_versions, others, repository

SCENE = {
    "pyproject.toml": '[project.urls]\nHomepage = "https://github.com/OWNER/ringproof"\n',
    "a.md": "See https://github.com/OWNER/ringproof/issues, not https://github.com/NVIDIA/apex.\n",
    "action.yml": "# - uses: OWNER/ringproof@main\nOWNER/NAME\n",
}


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    for name, text in SCENE.items():
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    return tmp_path


def test_the_address_is_one() -> None:
    assert others(ROOT) == []


def test_the_version_is_one() -> None:
    assert old_versions(ROOT) == []


def test_another_address_is_seen(scene: Path) -> None:
    assert others(scene) == []
    (scene / "b.yml").write_text("- repo: https://github.com/somebody/ringproof\n")
    assert others(scene) == ["b.yml: somebody/ringproof"]


def test_the_address_moves_everywhere_at_once(scene: Path) -> None:
    assert move(scene, "https://github.com/some-body/ringproof") == [*sorted(
        ("a.md", "action.yml", "pyproject.toml")
    )]  # fmt: skip
    assert repository(scene) == "some-body/ringproof"
    assert others(scene) == []
    assert (scene / "action.yml").read_text() == "# - uses: some-body/ringproof@main\nOWNER/NAME\n"
    assert "NVIDIA/apex" in (scene / "a.md").read_text()
    move(scene, "https://github.com/OWNER/ringproof")
    assert {name: (scene / name).read_text() for name in SCENE} == SCENE
    with pytest.raises(AssertionError, match="is not https"):
        move(scene, "http://example.org")
