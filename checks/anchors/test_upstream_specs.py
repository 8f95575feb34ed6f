"""What ``NAME=SPEC`` may name; how everything else, and what is damaged, is refused."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from checks.anchors.gitrepo import commit, make_repository
from checks.anchors.scene import MODULE
from checks.anchors.wheelhouse import SOURCES, fill_cache, make_wheel
from checks.running import one_line
from ringproof.anchors import UpstreamError, UpstreamTree
from ringproof.errors import InputError
from ringproof.upstream.git import GitTree
from ringproof.upstream.sources import open_tree, parse_overrides
from ringproof.upstream.tree import WheelTree

FILES = {"pkg/a.py": "A = 1\n", "pkg/deep/b.py": "B = 2\n", "top.py": "T = 3\n"}
MANY = {f"pkg/m{number}.py": f"# {number}\n{MODULE}" for number in range(40)}


def _open(spec: str, cache: Path) -> UpstreamTree:
    return open_tree(spec, cache=cache, offline=True)


@pytest.mark.parametrize("bare", [True, False])
def test_a_commit_is_read_without_a_work_tree(tmp_path: Path, bare: bool) -> None:
    repository = make_repository(tmp_path / "r", bare=bare)
    old = commit(repository, {"pkg/a.py": "A = 0\n"}, ref="refs/tags/v1.0")
    new = commit(repository, FILES)
    commit(repository, {"pkg/a.py": "A = 7\n"}, ref="refs/remotes/origin/feature/x")
    expected = {
        "v1.0": b"A = 0\n",
        old: b"A = 0\n",
        "main": b"A = 1\n",
        new[:10]: b"A = 1\n",
        "feature/x": b"A = 7\n",
        "origin/feature/x": b"A = 7\n",
    }
    for ref, content in expected.items():
        assert _open(f"git:{tmp_path / 'r'}@{ref}", tmp_path).read("pkg/a.py") == content
    tree = _open(f"git:{tmp_path / 'r'}@main", tmp_path)
    assert tree.origin == f"git:main#commit={new}"
    assert sorted(tree.paths()) == sorted(FILES)
    assert sorted(tree.paths("pkg/de")) == ["pkg/deep/b.py"]
    assert sorted(tree.paths("pkg/")) == ["pkg/a.py", "pkg/deep/b.py"]


def test_a_path_with_an_at_sign(tmp_path: Path) -> None:
    commit(make_repository(tmp_path / "a@b"), FILES)
    assert _open(f"git:{tmp_path / 'a@b'}@main", tmp_path).read("top.py") == b"T = 3\n"


def _folder(root: Path) -> Path:
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def _git(root: Path, **links: str) -> UpstreamTree:
    commit(make_repository(root / "r"), FILES, links={f"{n}.py": to for n, to in links.items()})
    return _open(f"git:{root / 'r'}@main", root)


def _dir(root: Path, **links: str) -> UpstreamTree:
    folder = _folder(root / "d")
    for name, to in links.items():
        (folder / f"{name}.py").symlink_to(to)
    return _open(f"dir:{folder}", root)


def _wheel(root: Path) -> UpstreamTree:
    return WheelTree(make_wheel(root, {**FILES, "../evil.py": "x = 1"}), "pip:demo==1.0", "0" * 64)


TREES = pytest.mark.parametrize("make", [_git, _dir])
ALL_TREES = pytest.mark.parametrize("make", [_git, _dir, _wheel])


@ALL_TREES
@pytest.mark.parametrize(
    "path",
    ["../evil.py", "top.py\\..", "../d/top.py", "/etc/passwd", "pkg/../top.py", "./top.py", ""],
)
def test_paths_never_leave_the_root(make: object, path: str, tmp_path: Path) -> None:
    tree = make(tmp_path)
    assert tree.read("top.py") == b"T = 3\n"
    with pytest.raises(UpstreamError, match="leaves"):
        tree.read(path)


@TREES
def test_links_stay_inside(make: object, tmp_path: Path) -> None:
    (tmp_path / "secret.py").write_text("S = 4\n")
    links = {"good": "pkg/a.py", "up": "../secret.py", "far": str(tmp_path / "secret.py")}
    tree = make(tmp_path, **links, loop="loop.py", dead="nothing.py")
    assert tree.read("good.py") == b"A = 1\n"
    for name in ("up.py", "far.py", "loop.py"):
        with pytest.raises(UpstreamError):
            tree.read(name)
    with pytest.raises(FileNotFoundError):
        tree.read("dead.py")
    assert sorted(tree.paths()) == sorted(FILES), "links are not listed"


@ALL_TREES
@pytest.mark.parametrize("path", ["no.py", "pkg", "top.py/x", "pkg/deep/b.py/c"])
def test_what_is_no_file_is_not_found(make: object, path: str, tmp_path: Path) -> None:
    with pytest.raises((FileNotFoundError, UpstreamError)):
        make(tmp_path).read(path)


@pytest.mark.parametrize("spec", ["pip:demo-upstream==1.0", "demo-upstream==1.0"])
def test_a_wheel_from_the_cache(spec: str, tmp_path: Path) -> None:
    digest = fill_cache(tmp_path)
    tree = _open(spec, tmp_path)
    assert tree.read("pkg/mod.py").decode() == SOURCES["pkg/mod.py"]
    assert tree.origin == f"pip:demo-upstream==1.0#sha256={digest}"


def test_an_installed_package_has_only_its_own_files(tmp_path: Path) -> None:
    tree = _open("installed:pytest", tmp_path)
    assert tree.read("pytest/__init__.py")
    assert "pytest/__init__.py" in set(tree.paths("pytest/"))
    assert tree.origin == f"installed:pytest=={pytest.__version__}"
    with pytest.raises(FileNotFoundError):
        tree.read("pygit2/__init__.py")


BAD = [
    ("", "is not an upstream"),
    ("megatron-core", "is not an upstream"),
    ("svn:x@y", "is not an upstream"),
    ("dir:", "is not an upstream"),
    ("installed:a b", "is not an upstream"),
    ("installed:no-such-package-here", "not installed"),
    ("dir:{root}/none", "is not a folder"),
    ("pip:demo", "no exact release"),
    ("pip:demo==", "no exact release"),
    ("pip:--index-url=x==1", "no exact release"),
    ("pip:demo==1.0", "not in the cache"),
    ("git:", "names no repository"),
    ("git:{root}", "names no ref"),
    ("git:{root}/none@main", "is not a folder"),
    ("git:{root}@main", "is not a readable git repository"),
    ("git:{root}/r@nope", "no ref 'nope'"),
    ("git:{root}/r@", "is not a branch"),
    ("git:{root}/r@:/text", "is not a branch"),
    ("git:{root}/r@main:pkg", "is not a branch"),
    ("git:{root}/r@@{{1 day ago}}", "is not a branch"),
    ("git:{root}/r@--upload-pack=x", "is not a branch"),
]


@pytest.mark.parametrize(("spec", "problem"), BAD)
def test_one_line_for_every_bad_spec(spec: str, problem: str, tmp_path: Path) -> None:
    commit(make_repository(tmp_path / "r"), FILES)
    with one_line(problem):
        _open(spec.format(root=tmp_path), tmp_path / "cache")


def _objects(root: Path) -> list[Path]:
    return sorted(path for path in (root / "objects").glob("??/*") if path.is_file())


@pytest.mark.parametrize("kept", [1, 5, 20, -1])
def test_a_loose_object_that_is_cut_short_isone_line(tmp_path: Path, kept: int) -> None:
    root = tmp_path / "r"
    commit(make_repository(root), FILES)
    for number, broken in enumerate(_objects(root)):
        copy = tmp_path / f"copy{number}"
        shutil.copytree(root, copy)
        file = copy / broken.relative_to(root)
        file.chmod(0o644)
        file.write_bytes(broken.read_bytes()[:kept])
        with one_line("damaged or incomplete"):
            _read_all(f"git:{copy}@main", tmp_path)


def _read_all(spec: str, cache: Path, files: Iterable[str] = FILES) -> None:
    tree = _open(spec, cache)
    for path in [*files, *tree.paths()]:
        tree.read(path)


def test_name_and_spec() -> None:
    assert dict(parse_overrides(["a=git:x@y=z", "b/c=dir:."])) == {"a": "git:x@y=z", "b/c": "dir:."}
    for entries in (["a"], ["=x"], ["a="], ["a=x", "a=y"]):
        with pytest.raises(InputError):
            parse_overrides(entries)


def _packed(root: Path) -> Path:
    """A repository whose objects lie in one pack; it was never opened where it lies now.

    libgit2 keeps packs mapped: cutting one off under it would end the process.
    """
    made = root.with_name("made")
    repository = make_repository(made)
    commit(repository, MANY)
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
    with one_line("damaged|no readable"):
        _read_all(f"git:{root}@main", tmp_path, MANY)


@pytest.mark.parametrize("head", [b"", b"garbage", b"ref: refs/heads/none\n", b"\xff\0" * 500])
def test_a_head_that_is_garbage(tmp_path: Path, head: bytes) -> None:
    """Only a ref of that name is lost: the commit that was asked for is still there."""
    root = _packed(tmp_path / "r")
    (root / "HEAD").write_bytes(head)
    with one_line():
        GitTree(root, "HEAD")
    (root / "refs" / "heads" / "main").write_bytes(head)
    with one_line():
        GitTree(root, "main")
