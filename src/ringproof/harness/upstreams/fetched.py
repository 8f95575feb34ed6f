"""The repositories in the cache: where they are, which commits are whole, and opening one.

The cache holds one bare repository per upstream, ``git/OWNER/NAME.git``, with commits of depth 1.
A commit has a ref below `COMMITS` once all of its files are there, and not before, so a fetch that
was killed leaves nothing that looks complete.
"""

from __future__ import annotations

import re
from pathlib import Path

from ringproof.errors import InputError

COMMITS, BRANCHES, NAMES = (f"refs/ringproof/{kind}" for kind in ("commits", "branches", "names"))
"""Prefixes of refs: of complete commits, of the newest commits of branches that were fetched, and
of the commits that cards name for a branch, tag or pull request."""

NEWEST = "newest/"
"""Before the name of a branch: its newest commit, and not the one that a card names."""

FETCHED = re.compile(
    r"(?P<repo>[A-Za-z0-9][A-Za-z0-9-]*/[A-Za-z0-9._-]+)@(?P<ref>[A-Za-z0-9][A-Za-z0-9._/-]*)"
)


def repository_folder(cache: Path, repo: str) -> Path:
    """Return where the cache keeps a repository.

    Args:
        repo: ``OWNER/NAME``.
    """
    return cache / "git" / f"{repo}.git"


def named_ref(name: str) -> str:
    """Return the ref of a name that a card has, or of `NEWEST` and a branch."""
    if name.startswith(NEWEST):
        return f"{BRANCHES}/{name.removeprefix(NEWEST)}"
    return f"{NAMES}/{name}"


def find_commit(cache: Path, repo: str, commit: str) -> Path | None:
    """Return the repository in the cache that has all files of a commit, or ``None``.

    Args:
        commit: Full commit id.
    """
    folder = repository_folder(cache, repo)
    return folder if (folder / COMMITS / commit).is_file() else None


def fetched_spec(cache: Path, repo: str, ref: str) -> str:
    """Return ``git:PATH@COMMIT`` for a commit in the cache.

    Args:
        ref: Commit, the unique start of one, the ref for which a card names it, or `NEWEST` and a
            branch whose newest commit was fetched.

    Raises:
        InputError: The cache does not have it.
    """
    folder = repository_folder(cache, repo)
    complete = sorted(file.name for file in (folder / COMMITS).glob("[0-9a-f]*"))
    found = [commit for commit in complete if commit.startswith(ref)]
    named = folder / named_ref(ref)
    if named.is_file():
        found = [named.read_text("ascii").strip()]
    if len(found) == 1:
        return f"git:{folder}@{found[0]}"
    problem = "is the start of several commits" if found else "is not in the cache"
    remedy = "run `ringproof upstream list` to see what is, and `ringproof upstream fetch`"
    raise InputError("fetched", f"{repo}@{ref}", problem, remedy)
