"""Packs and heads that are damaged: one line, and exit code 2 through `InputError`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from checks.anchors.gitrepo import commit, make_repository
from checks.anchors.scene import MODULE
from ringproof.errors import InputError
from ringproof.harness.upstreams.git import GitTree

FILES = {f"pkg/m{number}.py": f"# {number}\n{MODULE}" for number in range(40)}


def _packed(root: Path) -> Path:
    """A repository whose objects lie in one pack; it was never opened where it lies now.

    libgit2 keeps packs mapped: cutting one off under it would end the process.
    """
    made = root.with_name("made")
    repository = make_repository(made)
    commit(repository, FILES)
    repository.pack()
    for folder in (made / "objects").glob("??"):
        shutil.rmtree(folder)
    shutil.copytree(made, root)
    assert GitTree(made, "main").read("pkg/m7.py")
    return root


def _pack(root: Path, suffix: str) -> Path:
    (pack,) = (root / "objects" / "pack").glob(f"*.{suffix}")
    pack.chmod(0o644)
    return pack


@pytest.mark.parametrize("suffix", ["pack", "idx"])
@pytest.mark.parametrize("kept", [0, 100, 0.5, 0.97])
def test_a_pack_that_is_cut_off(tmp_path: Path, suffix: str, kept: float) -> None:
    root = _packed(tmp_path / "r")
    file = _pack(root, suffix)
    whole = file.read_bytes()
    file.write_bytes(whole[: int(kept * len(whole) if kept < 1 else kept)])
    with pytest.raises(InputError) as refused:
        tree = GitTree(root, "main")
        for path in FILES:
            tree.read(path)
    assert "\n" not in str(refused.value)
    assert "damaged" in str(refused.value) or "no readable" in str(refused.value)


def test_a_pack_with_other_bytes(tmp_path: Path) -> None:
    root = _packed(tmp_path / "r")
    file = _pack(root, "pack")
    whole = bytearray(file.read_bytes())
    whole[len(whole) // 3 : -100] = bytes(len(whole) - 100 - len(whole) // 3)
    file.write_bytes(whole)
    with pytest.raises(InputError, match=r"damaged|invalid pack file"):
        tree = GitTree(root, "main")
        for path in FILES:
            tree.read(path)


@pytest.mark.parametrize("head", [b"", b"garbage", b"ref: refs/heads/none\n", b"\xff\0" * 500])
def test_a_head_that_is_garbage(tmp_path: Path, head: bytes) -> None:
    """Only a ref of that name is lost: the commit that was asked for is still there."""
    root = _packed(tmp_path / "r")
    (root / "HEAD").write_bytes(head)
    with pytest.raises(InputError) as refused:
        GitTree(root, "HEAD")
    assert "\n" not in str(refused.value)
    (root / "refs" / "heads" / "main").write_bytes(head)
    with pytest.raises(InputError) as refused:
        GitTree(root, "main")
    assert "\n" not in str(refused.value)
