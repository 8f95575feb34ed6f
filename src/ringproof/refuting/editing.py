"""Applies the edits of a refutation to files of upstream, and says for which tree each file is."""

from __future__ import annotations

import ast
import importlib.metadata
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ringproof.cards import Card, PackageUpstream
from ringproof.refuting.refutations import SourceEdit
from ringproof.upstream.releases import Release
from ringproof.upstream.sources import UpstreamChoice
from ringproof.upstream.tree import UpstreamTree, UpstreamUnavailable

EDITS_OPTION = "--ringproof-edits"
"""How `refute` hands edits to the plugin `planting`, which alone imports pytest."""


class EditError(Exception):
    """An edit cannot be applied."""


EditedFiles = dict[str, dict[str, str]]
"""Texts of edited files, by `tree_key` and path."""


def tree_key(tree: UpstreamTree) -> str:
    """Return the commit of a tree, or PACKAGE==VERSION of a wheel; empty for another tree."""
    if tree.commit is not None:
        return tree.commit
    kind, _, name = tree.origin.partition("#")[0].partition(":")
    if kind == "wheel":
        name = "==".join(name.split("-")[:2])
    return release_key(name) if kind in ("pip", "wheel") else ""


def release_key(release: str) -> str:
    """Return PACKAGE==VERSION with the package's name in plain form.

    >>> release_key("Megatron_Core==0.16.1")
    'megatron-core==0.16.1'
    """
    package, equals, version = release.partition("==")
    return re.sub(r"[-_.]+", "-", package).lower() + equals + version


def edited_text(text: str, edit: SourceEdit) -> str:
    """Return the text of a file with an edit.

    Raises:
        EditError: The function or class is not there, the text occurs another number of times, or
            what results is not Python.
    """
    start, end = _span(text, edit.inside) if edit.inside else (0, len(text))
    found = text.count(edit.find, start, end)
    if found != edit.count:
        where = edit.inside or "the file"
        raise EditError(f"{edit.find!r} occurs {found} times in {where}, and not {edit.count}")
    result = text[:start] + text[start:end].replace(edit.find, edit.replace) + text[end:]
    if result == text:
        raise EditError(f"{edit.find!r} is replaced by itself")
    if edit.path.endswith(".py"):
        _parse(result, "the edited file")
    return result


def _parse(text: str, what: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise EditError(f"{what} is not Python: {error}") from error


def _span(text: str, name: str) -> tuple[int, int]:
    """Return where the definition of a function or class begins and ends, decorators included."""
    nodes: list[ast.AST] = [_parse(text, "the file")]
    for part in name.split("."):
        nodes = [
            node
            for outer in nodes
            for node in _definitions(outer)
            if getattr(node, "name", "") == part
        ]
    if len(nodes) != 1:
        raise EditError(f"the file has {len(nodes)} definitions of {name}, and not 1")
    (node,) = nodes
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    lines = text.splitlines(keepends=True)
    start = sum(map(len, lines[: first - 1]))
    return start, start + sum(map(len, lines[first - 1 : node.end_lineno]))


def _definitions(outer: ast.AST) -> Iterator[ast.AST]:
    """Yield the functions and classes of a body, also those below conditions and loops."""
    for node in ast.iter_child_nodes(outer):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node
        elif isinstance(node, ast.stmt | ast.ExceptHandler):
            yield from _definitions(node)


@dataclass(frozen=True)
class UpstreamFiles:
    """Finds the trees that an edit is for.

    Attributes:
        releases: Releases that tests use beside those of the card.
    """

    card: Card
    choice: UpstreamChoice
    releases: tuple[Release, ...]

    def edited(self, edits: Sequence[SourceEdit]) -> EditedFiles:
        """Return the files with all edits.

        An edit whose upstream is a name of the card, or one release, has to match in each. One for
        a whole repository or package has to match in one of its trees, and leaves the others.

        Raises:
            EditError: An edit matches nothing, or the card and the tests have no such upstream.
            UpstreamUnavailable: A tree is not on this machine, or is a folder, whose files are not
                edited for the tests.
        """
        files: EditedFiles = {}
        for edit in edits:
            for name in edit.upstream:
                self._apply(edit, name, files)
        return files

    def _apply(self, edit: SourceEdit, name: str, files: EditedFiles) -> None:
        trees, strict = self._trees(name)
        if not all(key for key, _ in trees):
            raise UpstreamUnavailable(f"edits need a commit or a release, and {name} is a folder")
        problems = []
        for key, tree in trees:
            try:
                text = files.get(key, {}).get(edit.path) or tree.read(edit.path).decode("utf-8")
                files.setdefault(key, {})[edit.path] = edited_text(text, edit)
            except FileNotFoundError:
                problems.append(f"{name} has no {edit.path}")
            except EditError as error:
                problems.append(f"{name}: {edit.path}: {error}")
        if problems and (strict or len(problems) == len(trees)):
            raise EditError(problems[0])

    def _trees(self, name: str) -> tuple[list[tuple[str, UpstreamTree]], bool]:
        """Return the trees of an upstream with their keys, and whether an edit must match all."""
        upstreams = self.card.upstreams
        if name in upstreams:
            tree = self.choice.open(name, upstreams[name])
            return [(tree_key(tree), tree)], True
        same = [key for key, one in upstreams.items() if one.repo == name]
        if same:
            found = [self.choice.open(key, upstreams[key]) for key in same]
            return [(tree_key(tree), tree) for tree in found], False
        packages = [one for one in upstreams.values() if isinstance(one, PackageUpstream)]
        pinned = [Release(one.package, one.version, one.file_sha256) for one in packages]
        known = {release_key(str(one)): one for one in (*self.releases, *pinned)}
        wanted = release_key(name)
        chosen = [one for key, one in known.items() if wanted in (key, key.partition("==")[0])]
        if not chosen:
            raise EditError(f"neither the card nor the list of wheels has an upstream {name!r}")
        opened = [one.open(self.choice.cache, offline=True) for one in chosen]
        return [(tree_key(tree), tree) for tree in opened], "==" in wanted


def write_overlay(root: Path, key: str, files: dict[str, str]) -> Path | None:
    """Make a folder with an installed package, in which edited files replace its own.

    Args:
        root: Where the folder is made.
        key: PACKAGE==VERSION.

    Returns:
        The folder, for the import path; ``None`` if this release is not installed here.
    """
    package, _, version = key.partition("==")
    try:
        installed = importlib.metadata.distribution(package)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None
    if installed.version != version or not installed.files:
        return None
    folder = root / key
    for file in installed.files:
        if file.parts[0] == ".." or file.parts[0].endswith(".dist-info"):
            continue
        if "__pycache__" in file.parts:
            continue
        place = folder / file
        place.parent.mkdir(parents=True, exist_ok=True)
        if file.as_posix() in files:
            place.write_text(files[file.as_posix()], "utf-8")
        else:
            place.symlink_to(Path(str(file.locate())).resolve())
    return folder
