"""Finds the file that a path in a document means, in the checkout or in a named root."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from ringproof.errors import InputError
from ringproof.harness.fences.documents import NOT_ENTERED
from ringproof.harness.fences.source import SourceLines, SourceRefused, read_source
from ringproof.harness.upstreams.submodules import submodule_urls
from ringproof.harness.upstreams.tree import UpstreamError, UpstreamTree

CHECKOUT = "."
"""Name of the root that replaces the checkout."""


class SourceFiles:
    """The files to which mentions can refer. Each is read once.

    Args:
        checkout: Repository of the skills.
        roots: Tree for each path prefix; ``.`` replaces the checkout.
    """

    def __init__(self, checkout: UpstreamTree, roots: Mapping[str, UpstreamTree]) -> None:
        named = {name.strip("/") or CHECKOUT: tree for name, tree in roots.items()}
        named.setdefault(CHECKOUT, checkout)
        self._roots = MappingProxyType(named)
        self._read: dict[tuple[str, str], SourceLines | None] = {}
        self._names: dict[str, tuple[tuple[str, str], ...]] = {}
        self._submodules: tuple[str, ...] | None = None

    def find(self, path: str, folder: str, *, anywhere: bool) -> tuple[SourceLines, ...]:
        """Find the files that a path in a document means; several if it is ambiguous.

        The path is tried below the longest root whose name begins the path, otherwise in the
        checkout, then as a path in a named root, and then relative to the document.

        Args:
            folder: Folder of the document from the checkout's root.
            anywhere: Whether the path may be the end of a longer path. A bare name (``config.py``)
                then means every file of that name, unless there is one beside the document.

        Raises:
            InputError: The path is in a submodule that is empty here and has no root.
            SourceRefused: The file is too large, binary, or the path leaves the root.
        """
        plain = path.removeprefix("./")
        outside = plain.startswith(("/", "../"))
        bare = anywhere and "/" not in plain
        for root, inner in () if outside or bare else self._strict(plain):
            if source := self._source(root, inner):
                return (source,)
        beside = posixpath.normpath(posixpath.join(folder, path))
        if source := self._source(CHECKOUT, beside):
            return (source,)
        self._refuse_empty_submodule(plain)
        if not anywhere or outside:
            return ()
        found = (self._source(root, inner) for root, inner in self._ending_with(plain))
        return tuple(source for source in found if source is not None)

    def _strict(self, path: str) -> Iterator[tuple[str, str]]:
        prefixes = [name for name in self._roots if path.startswith(f"{name}/")]
        if prefixes:
            name = max(prefixes, key=len)
            yield name, path[len(name) + 1 :]
            return
        yield CHECKOUT, path
        yield from ((name, path) for name in self._roots if name != CHECKOUT)

    def _source(self, root: str, path: str) -> SourceLines | None:
        if (root, path) not in self._read:
            try:
                data = self._roots[root].read(path)
            except FileNotFoundError:
                self._read[root, path] = None
            except UpstreamError as error:
                raise SourceRefused(str(error)) from error
            else:
                self._read[root, path] = read_source(path, data)
        return self._read[root, path]

    def _ending_with(self, path: str) -> tuple[tuple[str, str], ...]:
        if not self._names:
            names: dict[str, list[tuple[str, str]]] = {"": []}
            for root, tree in self._roots.items():
                for inner in filter(_is_own, sorted(tree.paths())):
                    names.setdefault(posixpath.basename(inner), []).append((root, inner))
            self._names = {name: tuple(places) for name, places in names.items()}
        places = self._names.get(posixpath.basename(path), ())
        return tuple((root, inner) for root, inner in places if f"/{inner}".endswith(f"/{path}"))

    def _refuse_empty_submodule(self, path: str) -> None:
        if self._submodules is None:
            try:
                text = self._roots[CHECKOUT].read(".gitmodules").decode("utf-8", "replace")
            except (FileNotFoundError, UpstreamError):
                text = ""
            self._submodules = tuple(submodule_urls(text))
        for module in self._submodules:
            if not path.startswith(f"{module}/") or module in self._roots:
                continue
            if next(iter(self._roots[CHECKOUT].paths(f"{module}/")), None) is None:
                problem = f"{module} is a submodule that is empty here"
                raise InputError(
                    "--upstream", None, problem, f"add --upstream {module}=git:PATH@REF"
                )


def _is_own(path: str) -> bool:
    """Return whether a file belongs to the repository and not to a package installed into it."""
    return NOT_ENTERED.isdisjoint(path.split("/"))
