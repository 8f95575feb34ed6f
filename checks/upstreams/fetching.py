"""A repository in miniature whose card names two commits on a git server."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from checks.anchors.gitrepo import commit, make_repository
from checks.proofs.miniature import Miniature, anchor, claim, miniature

NAME = "some/demo"
FILES = 2300
"""Files of the first commit: three batches."""


@dataclass(frozen=True)
class Demo:
    """The card's repository, and the server with its commits.

    Attributes:
        old: Commit with many files.
        new: Commit that shares all but one of them.
    """

    repository: Miniature
    server: Path
    old: str
    new: str
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def cache(self) -> Path:
        return self.repository.cache

    @property
    def bare(self) -> Path:
        """Where the cache keeps the repository."""
        return self.cache / "git" / f"{NAME}.git"

    def run(
        self, *arguments: str, url: str | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run ``ringproof``; fetching goes to the server, or to ``url``."""
        command = [sys.executable, "-m", "ringproof", *arguments, "--cache", str(self.cache)]
        if arguments[:2] == ("upstream", "fetch"):
            command += ["--from", f"{NAME}={url or self.server.as_uri()}"]
        return subprocess.run(
            command,
            cwd=self.repository.root,
            env={**os.environ, **self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    def here(self) -> list[str]:
        """Commits that `upstream list` says are in the cache."""
        done = self.run("upstream", "list")
        assert done.returncode == 0, done.stderr
        rows = [line.split() for line in done.stdout.splitlines()]
        return sorted(row[2] for row in rows if row[0] == "here" and row[1] == NAME)


def demo(folder: Path, *, filters: bool = True) -> Demo:
    """Make a server and a repository whose card names both of its commits.

    Args:
        filters: Whether the server can leave files out.
    """
    made = miniature(folder / "repo")
    bare = make_repository(folder / "server")
    bare.config["uploadpack.allowFilter"] = filters
    bare.config["uploadpack.allowAnySHA1InWant"] = True
    files = {f"pkg/file_{place}.py": f"value = {place}\n" for place in range(FILES)}
    files["pkg/mod.py"] = "def build(first):\n    pass\n"
    old = commit(bare, files, ref="refs/heads/main")
    new = commit(
        bare, {**files, "pkg/mod.py": "def build(second):\n    pass\n"}, ref="refs/tags/new"
    )
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
