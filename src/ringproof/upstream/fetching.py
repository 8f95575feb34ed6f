"""The repositories in the cache, and fetching commits into them with the ``git`` program.

The cache holds one bare repository per upstream, ``git/OWNER/NAME.git``, with commits of depth 1.
A commit has a ref below `COMMITS` once all of its files are there, and not before, so a fetch that
was killed leaves nothing that looks complete.

A fetch brings the commits and their folders first, without files, 0.1 MB each; then the files of
all commits that are not there yet, in the order of their paths and 1,000 at a time. Files that
commits share are fetched once, a killed fetch loses one thousand at most, and versions of a file
that stand next to each other are sent as differences. Pictures are left out.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ringproof.errors import InputError, shown
from ringproof.files import make_folder, read_bounded, walk_files, write_atomically
from ringproof.programs import Ended
from ringproof.upstream.damaged import flaw_of
from ringproof.upstream.gitprogram import Git, reason
from ringproof.upstream.tree import PICTURES

SERVER = "https://github.com"
COMMITS, BRANCHES, NAMES = (f"refs/ringproof/{kind}" for kind in ("commits", "branches", "names"))
"""Prefixes of refs: of complete commits, of the newest commits of branches that were fetched, and
of the commits that cards name for a branch, tag or pull request."""
NEWEST = "newest/"
"""Before the name of a branch: its newest commit, and not the one that a card names."""
FETCHED = re.compile(
    r"(?P<repo>[A-Za-z0-9][A-Za-z0-9-]*/[A-Za-z0-9._-]+)@(?P<ref>[A-Za-z0-9][A-Za-z0-9._/-]*)"
)
FILES_AT_ONCE = 1000
_STARTED = "refs/ringproof/started"
_PAUSE_SECONDS = 0.2
# git refuses --filter unless the remote is a promisor.
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
_FETCH = ("fetch", "--quiet", "--filter=blob:none", "--no-tags", "--no-write-fetch-head",
          "--recurse-submodules=no")  # fmt: skip
_UNREACHABLE = re.compile(
    r"[Cc]ould not resolve|[Cc]onnection (refused|reset|timed out)|[Ff]ailed to connect"
    r"|[Cc]ouldn't connect|unable to (connect|look up)|[Nn]etwork is unreachable|No route to host"
    r"|[Oo]peration (timed out|too slow)|early EOF|hung up unexpectedly|SSL|HTTP 5\d\d"
    r"|error: 5\d\d|Proxy|403|407"
)
_UNKNOWN = re.compile(
    r"not our ref|couldn't find remote ref|no such remote ref|unadvertised object"
)
_FULL = re.compile(r"No space left on device|[Dd]isk quota exceeded|File too large")
_COMMIT = re.compile(r"[0-9a-f]{40}")
REF = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*([./][A-Za-z0-9][A-Za-z0-9_-]*)*")
_ACCESS = re.compile(r"^fatal: (unable to access '[^']*': )?")
_CREDENTIALS = re.compile(r"(?<=://)[^/\s@]+@|[^/\s@:]+:[^/\s@:]+@")


class Unreachable(InputError):
    """The server of a repository does not answer. Other repositories there will not, either."""


def repository_folder(cache: Path, repo: str) -> Path:
    """Return where the cache keeps a repository ``OWNER/NAME``."""
    return cache / "git" / f"{repo}.git"


def find_commit(cache: Path, repo: str, commit: str) -> Path | None:
    """Return the repository in the cache that has all files of a full commit id, or ``None``."""
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
    found = sorted(file.name for file in (folder / COMMITS).glob("[0-9a-f]*"))
    found = [commit for commit in found if commit.startswith(ref)]
    named = folder / _named_ref(ref)
    if named.is_file():
        found = [*filter(None, [_commit_in(named)])]
    if len(found) == 1:
        return f"git:{folder}@{found[0]}"
    problem = "is the start of several commits" if found else "is not in the cache"
    remedy = "run `ringproof upstream list` to see what is, and `ringproof upstream fetch`"
    raise InputError("fetched", f"{shown(f'{repo}@{ref}')} {problem}; {remedy}")


def _named_ref(name: str) -> str:
    """Return the ref of a name that a card has, or of `NEWEST` and a branch."""
    if name.startswith(NEWEST):
        return f"{BRANCHES}/{name.removeprefix(NEWEST)}"
    return f"{NAMES}/{name}"


@contextlib.contextmanager
def locked(cache: Path, seconds: float) -> Iterator[int]:
    """Keep other runs from fetching into the same cache; yield the descriptor of the lock.

    The kernel releases the lock when this process and the git programs that it started have ended,
    however they end.

    Raises:
        InputError: Another run still fetches after that many seconds.
    """
    make_folder(cache, field="--cache")
    handle = os.open(cache / "fetch.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        end = time.monotonic() + seconds
        while not _taken(handle):
            if time.monotonic() > end:
                problem = "another `ringproof upstream fetch` fetches into this folder"
                raise InputError("--cache", f"{problem}, {shown(cache)}; wait until it ends")
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


def _commit_in(path: Path) -> str:
    """Return the commit that the regular file of a ref holds; empty for anything else."""
    try:
        text = read_bounded(path, 100).decode("ascii", "replace").strip()
    except OSError:
        return ""
    return text if _COMMIT.fullmatch(text) else ""


def _discard(path: Path) -> None:
    """Remove a folder, or a link or file in its place."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path)


@dataclass(frozen=True)
class Repository:
    """One repository of the cache and its server, while the lock of the cache is held.

    Attributes:
        name: ``OWNER/NAME``.
        url: Its server; that of GitHub if empty.
        lock: File descriptor of the lock.
        patience: Seconds after which a server that does not answer counts as unreachable.

    Every method raises `InputError` if there is no git, the disk is full, the cache cannot be
    written, or the server does not have what is wanted, and `Unreachable` if it does not answer.
    """

    name: str
    cache: Path
    url: str
    lock: int
    patience: float = 30.0

    @property
    def folder(self) -> Path:
        """Where the cache keeps it."""
        return repository_folder(self.cache, self.name)

    def newest_commit(self, ref: str) -> str:
        """Ask the server for the commit of ``HEAD``, or of a branch."""
        name = ref if ref == "HEAD" else f"refs/heads/{ref}"
        arguments = ("ls-remote", "--quiet", self.url, name)
        found = self._run(*arguments, seconds=self.patience, what=self.name, apart=True).split()
        if not found and ref != "HEAD":
            problem = f"{self.name} at {self.url} has no branch {ref}"
            raise InputError("upstream", f"{problem}; correct the ref in the card")
        return found[0] if found else ""

    def flaw(self, commits: Sequence[str]) -> str:
        """Say what is damaged in the repository, which may have lost files of commits it had.

        Args:
            commits: Full commit ids that are there.

        Returns:
            The text is empty if nothing is damaged, or if there is no repository.
        """
        self._put_back()  # a run that fetched it again was killed
        if not self.folder.exists() and not self.folder.is_symlink():
            return ""
        found = flaw_of(self.folder)
        if found or not commits:
            return found
        self._prepare()
        git = Git(self.folder)
        for commit in commits:
            listed = git.run("ls-tree", "-r", "--full-tree", commit)
            if listed.code != 0:
                return reason(listed.log)
        lost = len(self._missing(commits).intersection(self._by_path(commits)))
        return f"{lost} of its files are missing" if lost else ""

    def names(self) -> dict[str, str]:
        """Return the commits of the repository by ref, as far as its files can be read.

        A link in the place of the repository, or in it, is not followed.
        """
        found = {}
        for path in () if self.folder.is_symlink() else self._files_of_refs():
            ref, commit = path.relative_to(self.folder).as_posix(), _commit_in(path)
            named = REF.fullmatch(ref) and not ref.startswith(f"{COMMITS}/")
            if commit and (named or ref == f"{COMMITS}/{commit}"):
                found[ref] = commit
        return found

    def _files_of_refs(self) -> Iterator[Path]:
        for prefix in (COMMITS, BRANCHES, NAMES):
            yield from walk_files(self.folder / prefix, lambda _: False)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Move the repository aside, remove it when all went well, and else put it back.

        What a link in its place leads to stays.
        """
        self.folder.rename(self._aside)
        try:
            yield
        except BaseException:
            self._put_back()
            raise
        _discard(self._aside)

    @property
    def _aside(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.damaged")

    def _put_back(self) -> None:
        """Put back what is aside, if anything is."""
        if os.path.lexists(self._aside):
            _discard(self.folder)
            self._aside.rename(self.folder)

    def fetch(
        self, commits: Sequence[str], advance: Callable[[int, int], None]
    ) -> dict[str, InputError]:
        """Fetch commits with all their files but pictures.

        Args:
            commits: Full commit ids. What is there is not fetched again.
            advance: Is called with the number of files that are there, and of all that are wanted.

        Returns:
            For each commit that could not be fetched, why.
        """
        self._prepare()
        new = [one for one in commits if find_commit(self.cache, self.name, one) is None]
        reasons = {commit: self._started(commit) for commit in new}
        failures = {commit: reason for commit, reason in reasons.items() if reason is not None}
        started = [commit for commit in commits if commit not in failures]
        self._fill(started, advance)
        for commit in started:
            self._run("update-ref", f"{COMMITS}/{commit}", commit)
        return failures

    def give_name(self, name: str, commit: str) -> None:
        """Name a complete commit, so that it is found by that name."""
        self.give_ref(_named_ref(name), commit)

    def give_ref(self, ref: str, commit: str) -> None:
        """Let a ref lead to a complete commit."""
        file = self.folder / ref
        if not file.is_file() or _commit_in(file) != commit:
            self._run("update-ref", ref, commit)

    def _prepare(self) -> None:
        """Create the repository, and remove what a killed git left in it."""
        folder = self.folder
        try:
            for name in ("objects/pack", "objects/info", "refs"):
                (folder / name).mkdir(parents=True, exist_ok=True)
            write_atomically(folder / "HEAD", "ref: refs/heads/main\n", field="--cache")
            write_atomically(folder / "config", _CONFIG, field="--cache")
            leftovers = (folder.glob("*.lock"), (folder / "refs").rglob("*.lock"))
            broken = (folder / "objects").glob("**/*tmp_*")
            for path in itertools.chain(*leftovers, broken):
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        except OSError as error:
            problem = f"cannot be written ({error.strerror})"
            raise InputError(
                "--cache", f"{shown(folder)} {problem}; name a writable folder"
            ) from error

    def _started(self, commit: str) -> InputError | None:
        """Fetch a commit and its folders without its files; return why it cannot be had."""
        refs, what = f"+{commit}:{_STARTED}/{commit}", f"{self.name} {commit[:12]}"
        try:
            self._run(*_FETCH, "--depth=1", "origin", refs, what=what)
        except InputError as error:
            if isinstance(error, Unreachable) or error.field == "--cache":
                raise
            return error
        return None

    def _fill(self, commits: Sequence[str], advance: Callable[[int, int], None]) -> None:
        """Fetch the files of commits that are not there."""
        wanted = self._missing(commits)
        named = tuple(self._by_path(commits)) if wanted else ()
        files = [blob for blob in named if blob in wanted]
        for start in range(0, len(files), FILES_AT_ONCE):
            advance(start, len(files))
            batch = files[start : start + FILES_AT_ONCE]
            what = f"{self.name}, files {start + 1} to {start + len(batch)}"
            self._run(*_FETCH, "--stdin", "origin", feed="\n".join((*batch, "")), what=what)
        advance(len(files), len(files))
        left = self._missing(commits).intersection(named)
        if left:
            problem = f"{self.url} did not send {len(left)} files of {self.name}"
            remedy = "run it again, or name another server with --from NAME=URL"
            raise InputError("upstream", f"{problem}; {remedy}")

    def _missing(self, commits: Sequence[str]) -> frozenset[str]:
        """Return the files of commits that are not there."""
        if not commits:
            return frozenset()
        arguments = ("rev-list", "--objects", "--no-walk", "--missing=print", "--stdin")
        lines = self._run(*arguments, feed="\n".join((*commits, ""))).splitlines()
        return frozenset(line[1:] for line in lines if line.startswith("?"))

    def _by_path(self, commits: Sequence[str]) -> Iterator[str]:
        """Yield the files of commits without pictures, those with the same path side by side."""
        found = set()
        for commit in commits:
            for line in self._run("ls-tree", "-r", "-z", "--full-tree", commit).split("\0"):
                kind, _, path = line.partition("\t")
                if " blob " in kind and not path.lower().endswith(PICTURES):
                    found.add((path, kind.split()[2]))
        yield from dict.fromkeys(blob for _, blob in sorted(found))

    def _run(
        self,
        *arguments: str,
        feed: str = "",
        seconds: float | None = None,
        what: str = "",
        apart: bool = False,
    ) -> str:
        """Run git and return its output.

        Args:
            what: What is fetched, for messages.
            apart: Whether the repository of the cache is not needed, which may not be there yet.
        """
        settings = (
            *("http.lowSpeedLimit=1", "http.lowSpeedTime=60", f"remote.origin.url={self.url}"),
            *("fetch.negotiationAlgorithm=noop", "maintenance.auto=false"),
        )
        git = Git(None if apart else self.folder, settings, self.lock, fetches=True)
        ended = git.run(*arguments, feed=feed, seconds=seconds)
        if ended.code != 0:
            raise self._failure(what, ended, seconds)
        return ended.out

    def _failure(self, what: str, ended: Ended, seconds: float | None) -> InputError:
        url = _CREDENTIALS.sub("", self.url)
        why = _CREDENTIALS.sub("", _ACCESS.sub("", reason(ended.log)))[:200]
        name = f"{what} from {url}" if what else url
        remedy = "name another server with --from NAME=URL"
        if _FULL.search(ended.log):
            return InputError(
                "--cache",
                f"the disk is full (the cache is {shown(self.folder)}); free space, and go on",
            )
        if ended.code is None or _UNREACHABLE.search(ended.log):
            why = why if ended.code is not None else f"no answer within {seconds:g} s"
            problem = f"{url} cannot be reached ({why})"
            return Unreachable("upstream", f"{problem}; check the network, or {remedy}")
        if _UNKNOWN.search(ended.log):
            problem, remedy = f"there is no such commit: {name}", f"correct the card, or {remedy}"
            return InputError("upstream", f"{problem}; {remedy}")
        return InputError("upstream", f"{name} cannot be fetched ({why}); {remedy}")
