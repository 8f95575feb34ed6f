"""Paths that lead through submodules, read at the pinned commit of the repository given for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.anchors.gitrepo import commit, make_repository
from checks.running import one_line
from ringproof.anchors import UpstreamError, UpstreamUnavailable
from ringproof.errors import InputError
from ringproof.upstream.git import (
    MAX_LISTED,
    MAX_MODULES_BYTES,
    GitTree,
    Location,
    Submodule,
    SubmoduleSources,
    refuse_unused,
    repository_of,
    submodule_urls,
)
from ringproof.upstream.tree import FolderTree

INNER = {"pkg/a.py": "A = 1\n", "pkg/b.py": "B = 2\n"}
URL = "https://example.org/Owner/Inner.git"


def _modules(**urls: str) -> str:
    return "".join(f'[submodule "{p}"]\n\tpath = {p}\n\turl = {u}\n' for p, u in urls.items())


def _outer(root: Path, pin: str, modules: str, path: str = "third") -> Path:
    files = {"own.py": "O = 0\n", "third.py": "T = 3\n", ".gitmodules": modules}
    links = {"link.py": f"{path}/pkg/a.py"}
    commit(make_repository(root / "outer"), files, links=links, pins={path: pin})
    return root / "outer"


def _inner(root: Path, name: str = "inner") -> tuple[Path, str]:
    repository = make_repository(root / name)
    pin = commit(repository, INNER, ref="refs/heads/old")
    commit(repository, {"pkg/a.py": "A = 'later'\n"})
    return root / name, pin


def _given(**paths: Path) -> SubmoduleSources:
    return SubmoduleSources({f"Owner/{name}": path for name, path in paths.items()})


def test_read_at_the_pin(tmp_path: Path) -> None:
    inner, pin = _inner(tmp_path)
    outer = _outer(tmp_path, pin, _modules(third=URL))
    tree = GitTree(outer, "main", submodules=SubmoduleSources({"owner/INNER": inner}))
    assert tree.read("third/pkg/a.py") == b"A = 1\n", "the pin, not the branch"
    assert tree.read("link.py") == b"A = 1\n", "a link may lead into it"
    assert tree.read("own.py") == b"O = 0\n"
    module = Submodule("third", "Owner/Inner", pin)
    for path in ("third/pkg/a.py", "link.py"):
        assert tree.locate(path) == Location("pkg/a.py", module)
    assert tree.locate("own.py") == Location("own.py")
    assert tree.submodules() == (module,)
    for missing in ("third", "third/none.py", "third/pkg", "third/pkg/a.py/x"):
        with pytest.raises(FileNotFoundError):
            tree.read(missing)
    with pytest.raises(UpstreamError, match="leaves"):
        tree.read("third/../own.py")


def test_listing(tmp_path: Path) -> None:
    inner, pin = _inner(tmp_path)
    outer = _outer(tmp_path, pin, _modules(third=URL))
    own = [".gitmodules", "own.py", "third.py"]
    assert sorted(GitTree(outer, "main").paths()) == own
    tree = GitTree(outer, "main", submodules=_given(Inner=inner))
    assert sorted(tree.paths()) == sorted([*own, "third/pkg/a.py", "third/pkg/b.py"])
    assert sorted(tree.paths("third/pkg/b")) == ["third/pkg/b.py"]
    assert sorted(tree.paths("third/")) == ["third/pkg/a.py", "third/pkg/b.py"]
    assert sorted(tree.paths("thi")) == ["third.py", "third/pkg/a.py", "third/pkg/b.py"]
    assert list(tree.paths("thirdly")) == []


def test_not_given_is_not_here_and_one_line(tmp_path: Path) -> None:
    _, pin = _inner(tmp_path)
    tree = GitTree(_outer(tmp_path, pin, _modules(third=URL)), "main")
    with pytest.raises(UpstreamUnavailable) as refused:
        tree.read("third/pkg/a.py")
    assert str(refused.value) == (
        f"third/pkg/a.py: the file is in the submodule third, pinned at {pin} of Owner/Inner; "
        "give that with --upstream Owner/Inner=git:PATH"
    )
    assert isinstance(refused.value, InputError), "one line wherever nobody expects it"


def test_a_repository_without_the_pin(tmp_path: Path) -> None:
    other = tmp_path / "other"
    commit(make_repository(other), {"x.py": "X = 1\n"})
    tree = GitTree(
        _outer(tmp_path, "a" * 40, _modules(third=URL)), "main", submodules=_given(Inner=other)
    )
    for use in (lambda: tree.read("third/x.py"), lambda: list(tree.paths())):
        with one_line("cannot stand in for the submodule third") as refused:
            use()
        assert f"fetch {'a' * 40}" in str(refused.value)


def test_nested_and_relative(tmp_path: Path) -> None:
    leaf, leaf_pin = _inner(tmp_path, "leaf")
    middle = tmp_path / "middle"
    files = {"m.py": "M = 1\n", ".gitmodules": _modules(deep="../../Owner/Leaf")}
    pin = commit(make_repository(middle), files, pins={"deep": leaf_pin})
    outer = _outer(tmp_path, pin, _modules(third="../Middle.git"))
    given = _given(Middle=middle, Leaf=leaf)
    tree = GitTree(outer, "main", submodules=given, name="Owner/Outer")
    assert tree.read("third/deep/pkg/a.py") == b"A = 1\n"
    module = Submodule("third/deep", "Owner/Leaf", leaf_pin)
    assert tree.locate("third/deep/pkg/a.py") == Location("pkg/a.py", module)
    assert [item.path for item in tree.submodules()] == ["third", "third/deep"]
    assert "third/deep/pkg/b.py" in set(tree.paths("third/deep"))
    with pytest.raises(UpstreamUnavailable, match="of Owner/Leaf"):
        GitTree(outer, "main", submodules=_given(Middle=middle), name="Owner/Outer").read(
            "third/deep/pkg/a.py"
        )
    nameless = GitTree(outer, "main", submodules=given)
    with pytest.raises(UpstreamError, match="without OWNER/NAME"):
        nameless.read("third/m.py")
    make_repository(outer).remotes.create("origin", "git@example.org:Owner/Outer.git")
    assert GitTree(outer, "main", submodules=given).read("third/m.py") == b"M = 1\n"


HOSTILE = [
    ("", "not in .gitmodules"),
    ("#" * (MAX_MODULES_BYTES + 1), "too large for a list of submodules"),
    (_modules(third="https://example.org/alone.git"), "without OWNER/NAME"),
    (_modules(third="https://example.org/../.."), "without OWNER/NAME"),
    (_modules(third="http://[::1"), "without OWNER/NAME"),
    (_modules(**{"../third": URL, "third/../third": URL}), "not in .gitmodules"),
    ('[submodule "x"]\npath = third\n[include]\nurl = ' + URL, "not in .gitmodules"),
    ("\0[\xff" * 1000, "not in .gitmodules"),
]


@pytest.mark.parametrize(("modules", "problem"), HOSTILE)
def test_hostile_lists_of_submodules(tmp_path: Path, modules: str, problem: str) -> None:
    inner, pin = _inner(tmp_path)
    tree = GitTree(_outer(tmp_path, pin, modules), "main", submodules=_given(Inner=inner))
    with pytest.raises(UpstreamError, match=problem):
        tree.read("third/pkg/a.py")
    assert tree.read("own.py") and "third/pkg/a.py" not in set(tree.paths())


def test_a_list_that_is_a_link_is_not_read(tmp_path: Path) -> None:
    inner, pin = _inner(tmp_path)
    repository = make_repository(tmp_path / "outer")
    files, links = {"real": _modules(third=URL)}, {".gitmodules": "real"}
    commit(repository, files, links=links, pins={"third": pin})
    tree = GitTree(tmp_path / "outer", "main", submodules=_given(Inner=inner))
    with pytest.raises(UpstreamError, match=r"not in \.gitmodules"):
        tree.read("third/pkg/a.py")


def test_many_submodules_do_not_explode(tmp_path: Path) -> None:
    """Ten levels of two pins each would be a thousand copies of the last."""
    repository = make_repository(tmp_path / "many")
    pin = commit(repository, INNER)
    for _ in range(10):
        files = {".gitmodules": _modules(a=URL, b=URL)}
        pin = commit(repository, files, pins={"a": pin, "b": pin})
    tree = GitTree(tmp_path / "many", pin, submodules=_given(Inner=tmp_path / "many"))
    for use in (lambda: list(tree.paths()), tree.submodules):
        with pytest.raises(InputError, match=f"more than {MAX_LISTED} submodules"):
            use()
    assert tree.read("a/b/a/.gitmodules")
    with pytest.raises(UpstreamError, match="inside one another"):
        tree.read("a/b/a/b/a/b/a/b/a/b/pkg/a.py")


SPELLINGS = [
    ("https://github.com/O/N.git", None, "O/N"),
    ("https://user:pw@github.com:8443/O/N/", None, "O/N"),
    ("ssh://git@host:22/O/N.git", None, "O/N"),
    ("git@host:O/N.git", None, "O/N"),
    ("host:group/O/N", None, "O/N"),
    ("file:///srv/git/O/N.git", None, "O/N"),
    ("/srv/git/O/N.git", None, "O/N"),
    ("../N.git", "https://host/O/Outer.git", "O/N"),
    ("../N.git", "git@host:O/Outer", "O/N"),
    ("../../P/N", "O/Outer", "P/N"),
    ("./N", "O/Outer", "Outer/N"),
    ("../N.git", None, None),
    ("../../../N.git", "O/Outer", None),
    ("alone", None, None),
    ("", None, None),
]


@pytest.mark.parametrize(("url", "base", "name"), SPELLINGS)
def test_the_repository_a_url_names(url: str, base: str | None, name: str | None) -> None:
    assert repository_of(url, base) == name


def test_git_s_configuration_syntax() -> None:
    text = (
        "\ufeff# comment\n[core]\n\tpath = no\n"
        '[submodule "a \\"quoted\\" name"] path = "with # space" ; comment\n'
        "  URL = https://h/O/\\\nN.git   # comment\n"
        '[SubModule "two"]\n\tpath=two/\n\turl = first\n\turl = second\n'
        '[submodule "three"]\n\tpath = three\n'
    )
    assert dict(submodule_urls(text)) == {"with # space": "https://h/O/N.git", "two": "second"}


def test_a_repository_that_no_submodule_is_of(tmp_path: Path) -> None:
    inner, pin = _inner(tmp_path)
    outer = _outer(tmp_path, pin, _modules(third=URL))
    given = _given(Inner=inner)
    refuse_unused(given, [GitTree(outer, "main", submodules=given)])
    for sources, trees in (
        (_given(Other=inner), [GitTree(outer, "main", submodules=_given(Other=inner))]),
        (given, [FolderTree(tmp_path)]),
    ):
        with one_line("names no ref, and no submodule"):
            refuse_unused(sources, trees)
