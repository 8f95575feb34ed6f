"""What cards and tests need from upstream, and bringing it into the cache.

Beside the cards may lie two lists of what tests need: ``commits.txt`` with lines ``OWNER/NAME REF
COMMIT``, and ``wheels.txt`` in pip's form of requirements with hashes, so that ``pip download
--require-hashes`` could read it, too. A release has one hash for each of its wheels that may be
used.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console

from ringproof.cards.card import Card, PackageUpstream
from ringproof.errors import InputError, shown
from ringproof.files import read_input
from ringproof.progress import progress
from ringproof.upstream.fetching import (
    NEWEST,
    REF,
    SERVER,
    Repository,
    Unreachable,
    find_commit,
    locked,
)
from ringproof.upstream.releases import (
    INDEX_UNREACHABLE,
    Archive,
    DamagedWheel,
    Release,
)
from ringproof.upstream.tree import UpstreamError, UpstreamUnavailable

WHEELS_FILE, _COMMITS_FILE = "wheels.txt", "commits.txt"
_MAX_BYTES = 1_000_000
_COMMIT = re.compile(r"([A-Za-z0-9][A-Za-z0-9-]*/[A-Za-z0-9._-]+) (\S+) ([0-9a-f]{40})")
_RELEASE = re.compile(
    r"(?P<package>[a-z0-9]([a-z0-9-]*[a-z0-9])?)==(?P<version>[0-9][0-9a-z.]*)"
    r"(?P<hashes>(\s+--hash=sha256:[0-9a-f]{64})+)"
)
_MOVING = ("main", "master", "dev")
"""Refs that are branches; the others that cards name are tags, releases and pull requests."""
_WHEELS_AT_ONCE = 4  # most of pip's time is its own


@dataclass(frozen=True)
class WantedCommit:
    """A commit of a repository, and the branch or tag from which the cards read it."""

    repo: str
    commit: str
    ref: str

    def __str__(self) -> str:
        return f"{self.repo} {self.ref} {self.commit[:12]}"


@dataclass(frozen=True)
class Wanted:
    """All that cards need.

    Attributes:
        commits: Each commit once for each of its refs, by repository.
        wheels: Each release once, by package and then in the order of versions.
    """

    commits: tuple[WantedCommit, ...]
    wheels: tuple[Release, ...]

    def missing(self, cache: Path) -> Wanted:
        """Return the part that the cache does not have."""
        commits = (
            item for item in self.commits if find_commit(cache, item.repo, item.commit) is None
        )
        wheels = (w for w in self.wheels if not isinstance(w.cached(cache), Archive))
        return Wanted(tuple(commits), tuple(wheels))


def wanted_by(cards: Mapping[str, Card], pinned: Wanted) -> Wanted:
    """Return what the cards of skills need, and the ``pinned`` that tests need besides."""
    commits: dict[WantedCommit, None] = {}
    wheels = {(wheel.package, wheel.version): wheel for wheel in pinned.wheels}
    for upstream in (item for card in cards.values() for item in card.upstreams.values()):
        if upstream.repo is not None and upstream.commit is not None:
            ref = upstream.ref or upstream.commit[:12]
            commits[WantedCommit(upstream.repo, upstream.commit, ref)] = None
        if isinstance(upstream, PackageUpstream):
            release = (upstream.package, upstream.version)
            hashes = upstream.file_sha256 or getattr(wheels.get(release), "sha256", ())
            wheels[release] = Release(*release, tuple(hashes))
    commits.update(dict.fromkeys(pinned.commits))
    return Wanted(tuple(sorted(commits, key=lambda item: item.repo)), tuple(wheels.values()))


def pinned_beside(cards: Iterable[Path]) -> Wanted:
    """Return what the lists in the folder of the cards name; nothing without lists.

    Args:
        cards: Paths of cards, ``cards/NAME/card.yaml``.

    Raises:
        InputError: A line of a list has another form.
    """
    folders = sorted({path.parent.parent for path in cards})
    remedy = "write OWNER/NAME REF COMMIT, the commit in full"
    commits = [
        WantedCommit(match[1], match[3], match[2])
        for folder in folders
        if (path := folder / _COMMITS_FILE).is_file()
        for match in _matches(path, _COMMIT, "is not a commit of a repository", remedy)
    ]
    lists = (path for folder in folders if (path := folder / WHEELS_FILE).is_file())
    return Wanted(tuple(commits), tuple(wheel for path in lists for wheel in read_wheels(path)))


def read_wheels(path: Path) -> tuple[Release, ...]:
    """Return the releases of a list in the order of its lines, or raise `InputError`."""
    remedy = "write PACKAGE==VERSION --hash=sha256:DIGEST"
    found = []
    for match in _matches(path, _RELEASE, "is not a release with hashes", remedy):
        hashes = re.findall(r"sha256:([0-9a-f]{64})", match["hashes"])
        found.append(Release(match["package"], match["version"], tuple(hashes)))
    return tuple(found)


def _matches(
    path: Path, form: re.Pattern[str], problem: str, remedy: str
) -> Iterator[re.Match[str]]:
    """Yield the entries of a list, which may have comments and continued lines."""
    data = read_input(path, _MAX_BYTES, remedy="name the folder of the skills with --skills")
    for text in data.decode("utf-8", "replace").replace("\\\n", " ").splitlines():
        line = text.partition("#")[0].strip()
        match = form.fullmatch(line)
        if match is not None:
            yield match
        elif line:
            raise InputError(str(path), f"{shown(line)} {problem}; {remedy}")


@dataclass(frozen=True)
class Provision:
    """One run that fetches.

    Attributes:
        cache: Folder for repositories and wheels.
        console: Where progress is shown.
        say: Function that receives a line for each repository that was fetched.
        urls: Servers by ``OWNER/NAME``; GitHub by default.
        patience: Seconds after which a server that does not answer counts as unreachable.
        wait: Seconds to wait for another run that fetches into the same cache.
    """

    cache: Path
    console: Console
    say: Callable[[str], None]
    urls: Mapping[str, str] = field(default_factory=dict)
    patience: float = 30.0
    wait: float = 60.0
    _down: dict[str, InputError] = field(default_factory=dict, repr=False)

    def bring(self, wanted: Wanted, *, branches: bool = False) -> dict[str, InputError]:
        """Fetch what is not in the cache yet.

        Args:
            branches: Whether to fetch the newest commit of each branch, too.

        Returns:
            What could not be fetched, and why: the server or the index does not answer, or does not
            have it.

        Raises:
            InputError: Another run fetches, the cache cannot be written, or there is no git.
        """
        if not (wanted.commits or wanted.wheels):
            return {}
        short: dict[str, InputError] = {}
        try:
            with locked(self.cache, self.wait) as lock:
                for repo, items in itertools.groupby(wanted.commits, lambda item: item.repo):
                    short.update(self._commits(repo, list(items), lock, branches))
                short.update(self._wheels(wanted.wheels))
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            problem = "is on a full disk" if full else f"cannot be written ({error.strerror})"
            remedy = "free space, and go on" if full else "name a writable folder"
            raise InputError("--cache", f"{shown(self.cache)} {problem}; {remedy}") from error
        return short

    def _commits(
        self, repo: str, commits: list[WantedCommit], lock: int, branches: bool
    ) -> Iterator[tuple[str, InputError]]:
        """Fetch commits of one repository, and yield those that could not be fetched."""
        url = self.urls.get(repo, f"{SERVER}/{repo}")
        server = urlsplit(url).netloc or url  # a path has no host that others share
        repository = Repository(repo, self.cache, url, lock, self.patience)
        try:
            if server in self._down:
                raise self._down[server]
            moving = [item.ref for item in commits if item.ref in _MOVING] if branches else []
            for name in dict.fromkeys(moving):
                newest = repository.newest_commit(name)
                commits.append(WantedCommit(repo, newest, f"{NEWEST}{name}"))
            failures = self._fetched(repository, commits)
            refs = Counter(item.ref for item in commits)
            for item in commits:
                if item.commit in failures:
                    yield str(item), failures[item.commit]
                elif REF.fullmatch(item.ref) and refs[item.ref] == 1:
                    repository.give_name(item.ref, item.commit)
        except InputError as error:
            if error.field == "--cache":
                raise
            if isinstance(error, Unreachable):
                self._down[server] = error
            yield from ((str(item), error) for item in commits)

    def _fetched(
        self, repository: Repository, commits: Sequence[WantedCommit]
    ) -> dict[str, InputError]:
        """Fetch what is not there, and return by commit why it could not be fetched.

        A repository that is damaged is fetched anew with all commits that it had. It is put back
        where that breaks off.
        """
        found = dict.fromkeys(item.commit for item in commits)
        here = [one for one in found if find_commit(self.cache, repository.name, one)]
        flaw = repository.flaw(here)
        if not flaw and len(here) == len(found):
            return {}
        repository.newest_commit("HEAD")  # before anything is moved
        if not flaw:
            return self._new(repository, [one for one in found if one not in here])
        names = repository.names()
        self.say(f"{repository.name} was damaged and is fetched again: {flaw}")
        with repository.aside():
            failures = self._new(repository, list(dict.fromkeys([*found, *names.values()])))
            for ref, commit in names.items():
                if commit not in failures:
                    repository.give_ref(ref, commit)
        for commit in failures.keys() - found.keys():
            self.say(f"{repository.name} no longer has {commit}: {failures[commit].sentence}")
        return failures

    def _new(self, repository: Repository, commits: Sequence[str]) -> dict[str, InputError]:
        """Fetch commits, and return by commit why it could not be fetched."""
        with progress(self.console, f"{repository.name}: files") as update:
            failures = repository.fetch(
                commits, lambda done, all_: update(done, all_, 0, "fetching")
            )
        self.say(f"{repository.name}: {len(commits) - len(failures)} commits fetched")
        return failures

    def _wheels(self, wheels: Sequence[Release]) -> Iterator[tuple[str, InputError]]:
        """Download wheels, and yield those that could not be downloaded."""
        cached = {wheel: wheel.cached(self.cache) for wheel in wheels}
        new = {wheel: found for wheel, found in cached.items() if not isinstance(found, Archive)}
        if not new:
            return
        failed = 0
        mended = []
        with progress(self.console, "wheels", len(new)) as update, _downloads() as pool:
            results = zip(new.items(), pool.map(self._wheel, new), strict=True)
            for done, ((wheel, broken), error) in enumerate(results, 1):
                if error is None:
                    mended += [broken] if broken else []
                else:
                    failed += 1
                    again = broken and DamagedWheel(broken.path, broken.flaw, error.sentence)
                    yield wheel.spec, again or error
                update(done, len(new), failed, wheel.spec)
        for broken in mended:
            self.say(f"{broken.path} was damaged and is downloaded again: {broken.flaw}")
        self.say(f"{len(new) - failed} wheels fetched")

    def _wheel(self, wheel: Release) -> InputError | None:
        """Download a wheel; return why it could not be downloaded."""
        if "pip" in self._down:
            return self._down["pip"]
        remedy = "check the network and pip's settings"
        try:
            wheel.fetch(self.cache, offline=False, patience=self.patience, mend=True)
        except UpstreamUnavailable as error:
            failure = InputError("upstream", f"{error}; {remedy}")
            if INDEX_UNREACHABLE in str(error):
                self._down["pip"] = failure
            return failure
        except UpstreamError as error:
            correct = "correct the hash where the release is named, or the index"
            return InputError("upstream", f"{error}; {correct}")
        except InputError as error:
            if error.field == "--cache":
                raise
            return error
        return None


@contextlib.contextmanager
def _downloads() -> Iterator[ThreadPoolExecutor]:
    """Yield threads for downloads; those that have not begun are cancelled on exit."""
    pool = ThreadPoolExecutor(_WHEELS_AT_ONCE)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
