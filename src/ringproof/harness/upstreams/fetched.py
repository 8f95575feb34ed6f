"""The repositories in the cache: where they are, which commits are whole, and opening one.

The cache holds one bare repository per upstream, ``git/OWNER/NAME.git``, with commits of depth 1.
A commit has the ref `complete_ref` once all of its files are there, and not before, so a fetch that
was killed leaves nothing that looks complete.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ringproof.errors import InputError

COMPLETE = "refs/ringproof"
"""Prefix of the refs of complete commits, and of the newest commits of branches."""

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


def complete_ref(commit: str) -> str:
    """Return the ref that a commit has when all of its files are there."""
    return f"{COMPLETE}/commits/{commit}"


def branch_ref(branch: str) -> str:
    """Return the ref of the newest commit of a branch that was fetched."""
    return f"{COMPLETE}/branches/{branch}"


def name_ref(ref: str) -> str:
    """Return the ref of the commit that cards name for a branch, tag or pull request."""
    return f"{COMPLETE}/names/{ref}"


def find_commit(cache: Path, repo: str, commit: str) -> Path | None:
    """Return the repository in the cache that has all files of a commit, or ``None``.

    Args:
        commit: Full commit id.
    """
    folder = repository_folder(cache, repo)
    return folder if (folder / complete_ref(commit)).is_file() else None


def complete_commits(cache: Path, repo: str) -> Iterator[str]:
    """Yield the commits of a repository that are complete, sorted."""
    folder = repository_folder(cache, repo) / complete_ref("")
    yield from sorted(file.name for file in folder.glob("[0-9a-f]*"))


def fetched_spec(cache: Path, repo: str, ref: str) -> str:
    """Return ``git:PATH@COMMIT`` for a commit in the cache.

    Args:
        ref: Commit, the unique start of one, the ref for which a card names it, or `NEWEST` and a
            branch whose newest commit was fetched.

    Raises:
        InputError: The cache does not have it.
    """
    folder = repository_folder(cache, repo)
    found = [commit for commit in complete_commits(cache, repo) if commit.startswith(ref)]
    newest = ref.startswith(NEWEST)
    named = folder / (branch_ref(ref[len(NEWEST) :]) if newest else name_ref(ref))
    if named.is_file():
        found = [named.read_text("ascii").strip()]
    if len(found) == 1:
        return f"git:{folder}@{found[0]}"
    problem = "is the start of several commits" if found else "is not in the cache"
    remedy = "run `ringproof upstream list` to see what is, and `ringproof upstream fetch`"
    raise InputError("fetched", f"{repo}@{ref}", problem, remedy)
