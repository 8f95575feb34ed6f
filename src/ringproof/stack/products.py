"""Finds which of the three upstream products a path, a wheel or an environment holds."""

from __future__ import annotations

import ast
import importlib.metadata
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from ringproof.errors import InputError, shown
from ringproof.parsing import parsed_python
from ringproof.upstream.gitprogram import Git, first_line
from ringproof.upstream.sources import FORMS, RELEASE, open_tree
from ringproof.upstream.tree import (
    FolderTree,
    InstalledTree,
    UpstreamError,
    UpstreamTree,
    WheelTree,
)

MEGATRON = "NVIDIA/Megatron-LM"
ENGINE = "NVIDIA/TransformerEngine"
BRIDGE = "NVIDIA-NeMo/Megatron-Bridge"


class _Traits(NamedTuple):
    """By what a product is recognised, and where it says its version.

    Attributes:
        signs: Files that only this product has.
        versions: Files with its version.
        package: Its name on the package index.
    """

    signs: tuple[str, ...]
    versions: tuple[str, ...]
    package: str


_TRAITS: Mapping[str, _Traits] = MappingProxyType(
    {
        MEGATRON: _Traits(
            ("megatron/core/parallel_state.py",),
            ("megatron/core/package_info.py",),
            "megatron-core",
        ),
        ENGINE: _Traits(
            ("transformer_engine/pytorch/__init__.py",),
            ("build_tools/VERSION.txt",),
            "transformer-engine",
        ),
        BRIDGE: _Traits(
            ("src/megatron/bridge/__init__.py", "megatron/bridge/__init__.py"),
            ("src/megatron/bridge/package_info.py", "megatron/bridge/package_info.py"),
            "megatron-bridge",
        ),
    }
)
_SPEC = re.compile(r"(git|fetched|pip|dir|installed):")


@dataclass(frozen=True)
class Product:
    """One upstream product in a tree.

    Attributes:
        repo: Repository of its sources, by which cards name it.
        version: What the tree says of itself; empty if it does not.
        commit: Commit of a checkout; ``None`` if it is not known.
    """

    repo: str
    tree: UpstreamTree
    version: str = ""
    commit: str | None = None


def find_products(
    given: Sequence[str], *, cache: Path, offline: bool
) -> tuple[tuple[str, Product], ...]:
    """Open what was given and return its products, each with the argument that named it.

    Args:
        given: Folders, wheels or specs; without any, the packages that are installed in this
            Python's environment. Nothing is imported.
        cache: Folder of downloads.
        offline: Whether to use the cache only.

    Raises:
        InputError: Something given cannot be opened or holds no product, or nothing is installed.
    """
    if not given:
        return tuple(_installed())
    return tuple(
        (name, product)
        for name in given
        for product in _products(name, _opened(name, cache, offline))
    )


def _opened(name: str, cache: Path, offline: bool) -> UpstreamTree:
    if _SPEC.match(name) or RELEASE.fullmatch(name):
        return open_tree(name, cache=cache, offline=offline)
    path = Path(name)
    if path.is_dir():
        return FolderTree(path)
    if path.suffix == ".whl" and path.is_file():
        try:
            return WheelTree(path, path.name, "not computed")
        except UpstreamError as error:
            raise InputError(
                "--upstream", f"{shown(name)} cannot be used ({error}); download it again"
            ) from error
    problem = "is not a folder, a wheel or a spec"
    raise InputError(
        "--upstream", f"{shown(name)} {problem}; name a checkout, a .whl file, or {FORMS}"
    )


def _products(name: str, tree: UpstreamTree) -> list[Product]:
    found = [
        Product(repo, tree, _version(traits.versions, tree), _commit(name, tree))
        for repo, traits in _TRAITS.items()
        if any(_text(tree, sign) is not None for sign in traits.signs)
    ]
    if not found:
        problem = "holds none of " + ", ".join(_TRAITS)
        raise InputError(
            "--upstream", f"{shown(name)} {problem}; name the root of a checkout or a site-packages"
        )
    return found


def _text(tree: UpstreamTree, path: str) -> str | None:
    try:
        return tree.read(path).decode("utf-8", "replace")
    except (FileNotFoundError, UpstreamError):
        return None


def _installed() -> Iterator[tuple[str, Product]]:
    known = [traits.package for traits in _TRAITS.values()]
    packages = [name for name in known if any(importlib.metadata.distributions(name=name))]
    if not packages:
        problem = f"none of {', '.join(known)} is installed in this environment"
        raise InputError("--upstream", f"{problem}; name a checkout or a wheel")
    for package in packages:
        for product in _products(package, InstalledTree(package)):
            yield f"installed:{package}", product


def _version(files: Sequence[str], tree: UpstreamTree) -> str:
    """The version that a tree's own files, or the name of its wheel, say; empty if none does."""
    for path in files:
        text = _text(tree, path)
        if text is not None:
            return text.strip() if path.endswith(".txt") else _from_package_info(text)
    match = re.search(r"(==|-)(\d+(\.\w+)+)", tree.origin)
    return match[2] if match else ""


def _from_package_info(text: str) -> str:
    """The version in a file that assigns ``MAJOR``, ``MINOR``, ``PATCH`` and ``PRE_RELEASE``."""
    try:
        body = parsed_python(text).body
    except ValueError:
        return ""
    values = {
        node.targets[0].id: node.value.value
        for node in body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }
    numbers = [values.get(name) for name in ("MAJOR", "MINOR", "PATCH")]
    if not all(isinstance(number, int) for number in numbers):
        return ""
    return ".".join(map(str, numbers)) + str(values.get("PRE_RELEASE") or "")


def _commit(name: str, tree: UpstreamTree) -> str | None:
    """The commit of a git spec, or that a folder has checked out; its files may differ from it."""
    return tree.commit or checked_out(Path(name.removeprefix("dir:")))


def checked_out(folder: Path) -> str | None:
    """Return the commit that a folder has checked out; ``None`` where it is no git checkout."""
    if not (folder / ".git").exists():
        return None
    return first_line(Git(folder), "rev-parse", "--verify", "HEAD") or None
