"""A repository in miniature whose card names two commits on a git server."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from checks.anchors.gitrepo import commit, make_repository
from checks.prove.miniature import Miniature, anchor, claim, miniature
from checks.running import ringproof, run_here

NAME = "some/demo"
MANY = 2300
"""So many files are fetched in three batches."""


@dataclass(frozen=True)
class Demo:
    """The card's repository, and the server with its commits.

    Attributes:
        old: The first commit.
        new: A commit that differs from it in one file.
    """

    repository: Miniature
    server: Path
    old: str
    new: str

    @property
    def cache(self) -> Path:
        return self.repository.cache

    @property
    def bare(self) -> Path:
        """Where the cache keeps the repository."""
        return self.cache / "git" / f"{NAME}.git"

    def words(self, *arguments: str, url: str | None = None) -> list[str]:
        """Return the arguments of ``ringproof``; fetching goes to the server, or to ``url``."""
        words = [*arguments, "--cache", str(self.cache)]
        if arguments[:2] == ("upstream", "fetch"):
            words += ["--from", f"{NAME}={url or self.server.as_uri()}"]
        return words

    def run(
        self, *arguments: str, url: str | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run ``ringproof`` in this process."""
        with mock.patch.dict(os.environ, environment):
            return run_here(self.repository.root, self.words(*arguments, url=url))

    def run_apart(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run ``ringproof`` in a process of its own, which may be killed."""
        environment = {**os.environ, **environment}
        return ringproof(*self.words(*arguments), cwd=self.repository.root, env=environment)

    def here(self) -> list[str]:
        """Commits that `upstream list` says are in the cache."""
        done = self.run("upstream", "list")
        assert done.returncode == 0, done.stderr
        rows = [line.split() for line in done.stdout.splitlines()]
        return sorted(row[2] for row in rows if row[0] == "here" and row[1] == NAME)


def demo(folder: Path, *, files: int = 3, filters: bool = True) -> Demo:
    """Make a server and a repository whose card names both of its commits.

    Args:
        files: Files of each commit besides the one in which they differ.
        filters: Whether the server can leave files out.
    """
    made = miniature(folder / "repo")
    bare = make_repository(folder / "server")
    bare.config["uploadpack.allowFilter"] = filters
    bare.config["uploadpack.allowAnySHA1InWant"] = True
    content = {f"pkg/file_{place}.py": f"value = {place}\n" for place in range(files)}
    content["pkg/mod.py"] = "def build(first):\n    pass\n"
    old = commit(bare, content, ref="refs/heads/main")
    content["pkg/mod.py"] = "def build(second):\n    pass\n"
    new = commit(bare, content, ref="refs/tags/new")
    upstreams = {
        "old": {"repo": NAME, "ref": "main", "commit": old},
        "new": {"repo": NAME, "ref": "new", "commit": new},
    }
    made.card(
        upstreams=upstreams,
        anchors=[
            anchor("a-old", "build", "first", upstream="old"),
            anchor("a-new", "build", "second", upstream="new"),
        ],
        claims=[claim("old", "anchor:a-old"), claim("new", "anchor:a-new")],
    )
    return Demo(made, folder / "server", old, new)


def counted_git(folder: Path, *, then: str = ":", at: int = 0) -> Mapping[str, str]:
    """Return an environment in which ``git`` counts the batches of files it fetches.

    Args:
        folder: Where ``batches`` is kept, a file with a line for each batch.
        then: What the shell runs instead of the batch of number ``at``.
    """
    folder.mkdir()
    git = shutil.which("git")
    script = f"""#!/bin/sh
case "$*" in
*--stdin\\ origin*)
    echo batch >> {folder}/batches
    if [ "$(wc -l < {folder}/batches)" = {at} ]; then {then}; fi
esac
exec {git} "$@"
"""
    (folder / "git").write_text(script)
    (folder / "git").chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def batches(folder: Path) -> int:
    """Return how many batches of files were fetched."""
    return len((folder / "batches").read_text().splitlines())
