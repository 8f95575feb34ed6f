"""Git repositories made on the spot, from dictionaries of files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pygit2
from pygit2.enums import FileMode

AUTHOR = pygit2.Signature("Nobody", "nobody@example.org", 1_700_000_000, 0)


def make_repository(path: Path, *, bare: bool = True) -> pygit2.Repository:
    return pygit2.init_repository(str(path), bare=bare, initial_head="main")


def commit(
    repository: pygit2.Repository,
    files: Mapping[str, str | bytes],
    *,
    ref: str | None = "refs/heads/main",
    links: Mapping[str, str] | None = None,
    pins: Mapping[str, str] | None = None,
) -> str:
    """A commit of exactly these files, links by target and submodules by commit; its id."""
    entries = {
        name: (text.encode() if isinstance(text, str) else text, FileMode.BLOB)
        for name, text in files.items()
    }
    entries |= {name: (to.encode(), FileMode.LINK) for name, to in (links or {}).items()}
    index = pygit2.Index()
    for name, (data, mode) in entries.items():
        index.add(pygit2.IndexEntry(name, repository.create_blob(data), mode))
    for name, pin in (pins or {}).items():
        index.add(pygit2.IndexEntry(name, pygit2.Oid(hex=pin), FileMode.COMMIT))
    tree = index.write_tree(repository)
    made = repository.create_commit(None, AUTHOR, AUTHOR, "files", tree, [])
    if ref is not None:
        repository.references.create(ref, made, force=True)
    return str(made)
