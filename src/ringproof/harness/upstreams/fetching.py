"""Fetches commits of upstream's repositories into the cache, with the ``git`` program.

First come the commits and their folders without files, 0.1 MB each; then the files of all commits
that are not there yet, in the order of their paths and 1,000 at a time. Files that commits share
are fetched once, a killed fetch loses one thousand at most, and versions of a file that stand next
to each other are sent as differences. Pictures are left out.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from ringproof.errors import InputError
from ringproof.files import write_atomically
from ringproof.harness.upstreams.fetched import COMMITS, find_commit, repository_folder
from ringproof.harness.upstreams.gitprogram import GitProgram, Unreachable
from ringproof.harness.upstreams.releases import make_folder
from ringproof.harness.upstreams.tree import PICTURES

SERVER = "https://github.com"
FILES_AT_ONCE = 1000
_STARTED = "refs/ringproof/started"
_PAUSE_SECONDS = 0.2
# git refuses --filter unless the remote is a promisor; libgit2 reads version 0 with any extension.
_CONFIG = """[core]
\trepositoryformatversion = 0
\tbare = true
[extensions]
\tpartialClone = origin
[remote "origin"]
\tpromisor = true
\tpartialclonefilter = blob:none
[gc]
\tauto = 0
"""

Advance = Callable[[int, int], None]
"""Is called with the number of files that are there, and of all that are wanted."""


@dataclass(frozen=True)
class Servers:
    """Where repositories are fetched from.

    Attributes:
        given: URLs by ``OWNER/NAME``.
        patience: Seconds after which a server that does not answer counts as unreachable.
    """

    given: Mapping[str, str]
    patience: float = 30.0

    def url(self, repo: str) -> str:
        """Return the URL of a repository."""
        return self.given.get(repo, f"{SERVER}/{repo}")


@contextlib.contextmanager
def locked(cache: Path, seconds: float) -> Iterator[int]:
    """Keep other runs from fetching into the same cache; yield the descriptor of the lock.

    The kernel releases the lock when this process and the git programs that it started have ended,
    however they end.

    Raises:
        InputError: Another run still fetches after that many seconds.
    """
    make_folder(cache)
    handle = os.open(cache / "fetch.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        end = time.monotonic() + seconds
        while not _taken(handle):
            if time.monotonic() > end:
                problem = "another `ringproof upstream fetch` fetches into this folder"
                raise InputError("--cache", cache, problem, "wait until it ends")
            time.sleep(_PAUSE_SECONDS)
        yield handle
    finally:
        os.close(handle)


def _taken(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def newest_commit(repo: str, ref: str, servers: Servers, lock: int) -> str:
    """Ask the server of a repository for the commit of ``HEAD``, or of a branch.

    Raises:
        Unreachable: It does not answer in time.
        InputError: It has no such repository or branch.
    """
    url = servers.url(repo)
    name = ref if ref == "HEAD" else f"refs/heads/{ref}"
    arguments = ("ls-remote", "--quiet", url, name)
    found = GitProgram(None, url, lock).run(*arguments, seconds=servers.patience, what=repo).split()
    if not found and ref != "HEAD":
        problem = f"has no branch {ref}: {repo} at {url}"
        raise InputError("upstream", None, problem, "correct the ref in the card")
    return found[0] if found else ""


def fetch_commits(
    repo: str,
    commits: Sequence[str],
    *,
    cache: Path,
    servers: Servers,
    lock: int,
    advance: Advance,
) -> Mapping[str, InputError]:
    """Fetch commits of one repository, with all their files but pictures.

    Args:
        commits: Full commit ids. What is there is not fetched again.

    Returns:
        For each commit that could not be fetched, why.

    Raises:
        Unreachable: The server does not answer.
        InputError: There is no git, the disk is full, or the cache cannot be written.
    """
    folder = repository_folder(cache, repo)
    git = GitProgram(folder, servers.url(repo), lock)
    _prepare(folder)
    failures: dict[str, InputError] = {}
    for commit in commits:
        if find_commit(cache, repo, commit) is None:
            failure = _started(git, commit, repo)
            failures |= {} if failure is None else {commit: failure}
    started = [commit for commit in commits if commit not in failures]
    _fill(git, started, repo, advance)
    for commit in started:
        git.run("update-ref", f"{COMMITS}/{commit}", commit)
    return MappingProxyType(failures)


def name_commit(repo: str, ref: str, commit: str, cache: Path, lock: int) -> None:
    """Give a complete commit a ref."""
    folder = repository_folder(cache, repo)
    file = folder / ref
    if not file.is_file() or file.read_text("ascii").strip() != commit:
        GitProgram(folder, "", lock).run("update-ref", ref, commit)


def _prepare(folder: Path) -> None:
    """Create the repository, and remove what a killed git left in it. The lock is held."""
    try:
        for name in ("objects/pack", "objects/info", "refs"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        if not (folder / "HEAD").is_file():
            write_atomically(folder / "HEAD", "ref: refs/heads/main\n", field="--cache")
        write_atomically(folder / "config", _CONFIG, field="--cache")
        leftovers = (folder.glob("*.lock"), (folder / "refs").rglob("*.lock"))
        broken = (folder / "objects").glob("**/*tmp_*")
        for path in itertools.chain(*leftovers, broken):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    except OSError as error:
        problem = f"cannot be written: {error.strerror}"
        raise InputError("--cache", folder, problem, "name a writable folder") from error


def _started(git: GitProgram, commit: str, repo: str) -> InputError | None:
    """Fetch a commit and its folders, without its files; return why the server does not have it."""
    try:
        git.run(
            *("fetch", "--quiet", "--depth=1", "--filter=blob:none", "--no-tags"),
            *("--no-write-fetch-head", "--recurse-submodules=no", "origin"),
            f"+{commit}:{_STARTED}/{commit}",
            what=f"{repo} {commit[:12]}",
        )
    except InputError as error:
        if isinstance(error, Unreachable) or error.field == "--cache":
            raise
        return error
    return None


def _fill(git: GitProgram, commits: Sequence[str], repo: str, advance: Advance) -> None:
    """Fetch the files of commits that are not there.

    Raises:
        InputError: The server sent fewer files than there are.
    """
    wanted = _missing(git, commits)
    named = tuple(_by_path(git, commits)) if wanted else ()
    files = [blob for blob in named if blob in wanted]
    for start in range(0, len(files), FILES_AT_ONCE):
        advance(start, len(files))
        git.run(
            *("fetch", "--quiet", "--filter=blob:none", "--no-tags", "--no-write-fetch-head"),
            *("--recurse-submodules=no", "--stdin", "origin"),
            feed="".join(f"{blob}\n" for blob in files[start : start + FILES_AT_ONCE]),
            what=f"{repo}, files {start + 1} to {min(start + FILES_AT_ONCE, len(files))}",
        )
    advance(len(files), len(files))
    left = _missing(git, commits).intersection(named)
    if left:
        problem = f"sent all but {len(left)} files: {repo} from {git.url}"
        remedy = "run it again, or name another server with --from NAME=URL"
        raise InputError("upstream", None, problem, remedy)


def _missing(git: GitProgram, commits: Sequence[str]) -> frozenset[str]:
    """Return the files of commits that are not there."""
    if not commits:
        return frozenset()
    feed = "".join(f"{commit}\n" for commit in commits)
    arguments = ("rev-list", "--objects", "--no-walk", "--missing=print", "--stdin")
    lines = git.run(*arguments, feed=feed).splitlines()
    return frozenset(line[1:] for line in lines if line.startswith("?"))


def _by_path(git: GitProgram, commits: Iterable[str]) -> Iterator[str]:
    """Yield the files of commits without pictures, those with the same path side by side."""
    found: dict[tuple[str, str], None] = {}
    for commit in commits:
        for line in git.run("ls-tree", "-r", "-z", "--full-tree", commit).split("\0"):
            kind, _, path = line.partition("\t")
            if " blob " in kind and not path.lower().endswith(PICTURES):
                found[(path, kind.split()[2])] = None
    yield from dict.fromkeys(blob for _, blob in sorted(found))
