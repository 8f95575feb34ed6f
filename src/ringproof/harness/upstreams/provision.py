"""Brings what cards need into the cache, and says what could not be had."""

from __future__ import annotations

import errno
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from ringproof.errors import InputError
from ringproof.harness.proofs.progress import Progress
from ringproof.harness.upstreams.fetched import NEWEST, find_commit, named_ref
from ringproof.harness.upstreams.fetching import (
    Servers,
    fetch_commits,
    locked,
    name_commit,
    newest_commit,
)
from ringproof.harness.upstreams.gitprogram import Unreachable
from ringproof.harness.upstreams.releases import INDEX_UNREACHABLE, DamagedWheel, fetch_release
from ringproof.harness.upstreams.tree import UpstreamError, UpstreamUnavailable
from ringproof.harness.upstreams.wanted import (
    PinnedWheel,
    Wanted,
    WantedCommit,
    damage,
    has_wheel,
)

_REF = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*([./][A-Za-z0-9][A-Za-z0-9_-]*)*")
_WHEELS_AT_ONCE = 4  # most of pip's time is its own


@dataclass(frozen=True)
class Shortfall:
    """Something that could not be fetched, and why."""

    what: str
    error: InputError


@dataclass(frozen=True)
class Provision:
    """One run that fetches.

    Attributes:
        cache: Folder for repositories and wheels.
        servers: Where repositories come from, and how long to wait for an answer.
        progress: Where progress is shown.
        say: Function that receives a line for each repository that was fetched.
        wait: Seconds to wait for another run that fetches into the same cache.
    """

    cache: Path
    servers: Servers
    progress: Progress
    say: Callable[[str], None]
    wait: float = 60.0
    _down: dict[str, InputError] = field(default_factory=dict, repr=False)

    def bring(self, wanted: Wanted, *, branches: bool = False) -> tuple[Shortfall, ...]:
        """Fetch what is not in the cache yet.

        Args:
            branches: Whether to fetch the newest commit of each branch, too.

        Returns:
            What could not be fetched: the server or the index does not answer, or does not have it.

        Raises:
            InputError: Another run fetches, the cache cannot be written, or there is no git.
        """
        if not (wanted.commits or wanted.wheels):
            return ()
        try:
            with locked(self.cache, self.wait) as lock:
                return (*self._repositories(wanted, lock, branches), *self._wheels(wanted.wheels))
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            problem = "the disk is full" if full else f"cannot be written: {error.strerror}"
            remedy = "free space, and go on" if full else "name a writable folder"
            raise InputError("--cache", self.cache, problem, remedy) from error

    def _repositories(self, wanted: Wanted, lock: int, branches: bool) -> Iterator[Shortfall]:
        for repo, items in itertools.groupby(wanted.commits, lambda item: item.repo):
            commits = list(items)
            url = self.servers.url(repo)
            host = urlsplit(url).netloc or url  # a path has no host that others share
            try:
                if host in self._down:
                    raise self._down[host]
                if branches:
                    commits += [*self._newest(repo, wanted, lock)]
                yield from self._commits(repo, commits, lock)
            except Unreachable as error:
                self._down[host] = error
                yield from (Shortfall(str(item), error) for item in commits)
            except InputError as error:
                if error.field == "--cache":
                    raise
                yield from (Shortfall(str(item), error) for item in commits)

    def _newest(self, repo: str, wanted: Wanted, lock: int) -> Iterator[WantedCommit]:
        for name in (name for owner, name in wanted.branches if owner == repo):
            commit = newest_commit(repo, name, self.servers, lock)
            yield WantedCommit(repo, commit, f"{NEWEST}{name}")

    def _commits(self, repo: str, commits: list[WantedCommit], lock: int) -> Iterator[Shortfall]:
        wanted = dict.fromkeys(item.commit for item in commits)
        new = [commit for commit in wanted if find_commit(self.cache, repo, commit) is None]
        failures: dict[str, InputError] = {}
        refs = Counter(item.ref for item in commits)
        if new:
            failures.update(self._fetched(repo, new, lock))
        for item in commits:
            if item.commit in failures:
                yield Shortfall(str(item), failures[item.commit])
            elif _REF.fullmatch(item.ref) and refs[item.ref] == 1:
                name_commit(repo, named_ref(item.ref), item.commit, self.cache, lock)

    def _fetched(self, repo: str, commits: Sequence[str], lock: int) -> dict[str, InputError]:
        newest_commit(repo, "HEAD", self.servers, lock)
        self.progress.begin(f"{repo}: files", None)
        try:
            failures = fetch_commits(
                repo,
                commits,
                cache=self.cache,
                servers=self.servers,
                lock=lock,
                advance=lambda done, total: self.progress.update(done, total, 0, "fetching"),
            )
        finally:
            self.progress.end()
        self.say(f"{repo}: {len(commits) - len(failures)} commits fetched")
        return dict(failures)

    def _wheels(self, wheels: Sequence[PinnedWheel]) -> Iterator[Shortfall]:
        new = [wheel for wheel in wheels if not has_wheel(self.cache, wheel)]
        if not new:
            return
        failed = 0
        damaged = [damage(self.cache, wheel) for wheel in new]
        mended: list[DamagedWheel] = []
        self.progress.begin("wheels", len(new))
        pool = ThreadPoolExecutor(_WHEELS_AT_ONCE)
        try:
            for done, (wheel, broken, error) in enumerate(
                zip(new, damaged, pool.map(self._wheel, new), strict=True), 1
            ):
                if error is not None:
                    failed += 1
                    again = broken and DamagedWheel(broken.path, broken.flaw, error.problem)
                    yield Shortfall(wheel.spec, again or error)
                elif broken is not None:
                    mended.append(broken)
                self.progress.update(done, len(new), failed, wheel.spec)
        finally:
            pool.shutdown(cancel_futures=True)
            self.progress.end()
        for broken in mended:
            self.say(f"{broken.path} was damaged and is downloaded again: {broken.flaw}")
        self.say(f"{len(new) - failed} wheels fetched")

    def _wheel(self, wheel: PinnedWheel) -> InputError | None:
        if "pip" in self._down:
            return self._down["pip"]
        remedy = "check the network and pip's settings"
        try:
            fetch_release(
                wheel.package,
                wheel.version,
                cache=self.cache,
                accepted=wheel.sha256,
                offline=False,
                patience=self.servers.patience,
                mend=True,
            )
        except UpstreamUnavailable as error:
            failure = InputError("upstream", None, str(error), remedy)
            if INDEX_UNREACHABLE in str(error):
                self._down["pip"] = failure
            return failure
        except UpstreamError as error:
            correct = "correct the hash where the release is named, or the index"
            return InputError("upstream", None, str(error), correct)
        except InputError as error:
            if error.field == "--cache":
                raise
            return error
        return None
