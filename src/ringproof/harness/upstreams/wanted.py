"""What cards and tests need from upstream: commits of repositories, and wheels.

Beside the cards may lie two lists of what tests need: ``commits.txt`` with lines ``OWNER/NAME REF
COMMIT``, and ``wheels.txt`` in pip's form of requirements with hashes, so that ``pip download
--require-hashes`` could read it, too. A release has one hash for each of its wheels that may be
used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ringproof.errors import InputError
from ringproof.files import read_input
from ringproof.harness.cards.model import Card, PackageUpstream
from ringproof.harness.upstreams.choice import UpstreamChoice
from ringproof.harness.upstreams.fetched import find_commit
from ringproof.harness.upstreams.releases import (
    DamagedWheel,
    fetch_release,
    release_folder,
    wheels_in,
)
from ringproof.harness.upstreams.tree import UpstreamError, UpstreamUnavailable

WHEELS_FILE, _COMMITS_FILE = "wheels.txt", "commits.txt"
_MAX_BYTES = 1_000_000
_COMMIT = re.compile(r"([A-Za-z0-9][A-Za-z0-9-]*/[A-Za-z0-9._-]+) (\S+) ([0-9a-f]{40})")
_RELEASE = re.compile(
    r"(?P<package>[a-z0-9]([a-z0-9-]*[a-z0-9])?)==(?P<version>[0-9][0-9a-z.]*)"
    r"(?P<hashes>(\s+--hash=sha256:[0-9a-f]{64})+)"
)
_MOVING = ("main", "master", "dev")
"""Refs that are branches; the others that cards name are tags, releases and pull requests."""


@dataclass(frozen=True)
class WantedCommit:
    """A commit of a repository, and the branch or tag from which the cards read it."""

    repo: str
    commit: str
    ref: str

    def __str__(self) -> str:
        return f"{self.repo} {self.ref} {self.commit[:12]}"


@dataclass(frozen=True)
class PinnedWheel:
    """A release and the SHA-256 values of its wheels that may be used."""

    package: str
    version: str
    sha256: tuple[str, ...]

    @property
    def spec(self) -> str:
        """The release as ``pip:PACKAGE==VERSION``."""
        return f"pip:{self.package}=={self.version}"


@dataclass(frozen=True)
class Wanted:
    """All that cards need.

    Attributes:
        commits: Each commit once for each of its refs, by repository.
        wheels: Each release once, by package and then in the order of versions.
    """

    commits: tuple[WantedCommit, ...]
    wheels: tuple[PinnedWheel, ...]

    @property
    def branches(self) -> tuple[tuple[str, str], ...]:
        """Repository and name of each branch that moves."""
        named = {(item.repo, item.ref): None for item in self.commits if item.ref in _MOVING}
        return tuple(named)


def wanted_by(cards: Mapping[str, Card], pinned: Wanted) -> Wanted:
    """Return what cards need, and what tests need besides.

    Args:
        cards: By skill.
        pinned: What the tests need, wheels with their hashes.
    """
    commits: dict[WantedCommit, None] = {}
    wheels = {(wheel.package, wheel.version): wheel for wheel in pinned.wheels}
    for upstream in (item for card in cards.values() for item in card.upstreams.values()):
        if upstream.repo is not None and upstream.commit is not None:
            ref = upstream.ref or upstream.commit[:12]
            commits[WantedCommit(upstream.repo, upstream.commit, ref)] = None
        if isinstance(upstream, PackageUpstream):
            release = (upstream.package, upstream.version)
            hashes = upstream.file_sha256 or getattr(wheels.get(release), "sha256", ())
            wheels[release] = PinnedWheel(*release, tuple(hashes))
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
    commits = [path for folder in folders if (path := folder / _COMMITS_FILE).is_file()]
    wheels = [path for folder in folders if (path := folder / WHEELS_FILE).is_file()]
    remedy = "write OWNER/NAME REF COMMIT, the commit in full"
    return Wanted(
        tuple(
            WantedCommit(match[1], match[3], match[2])
            for path in commits
            for match in _matches(path, _COMMIT, "is not a commit of a repository", remedy)
        ),
        tuple(wheel for path in wheels for wheel in read_wheels(path)),
    )


def read_wheels(path: Path) -> tuple[PinnedWheel, ...]:
    """Return the releases of a list in the order of its lines.

    Raises:
        InputError: The file cannot be read, or a line is not a release with hashes.
    """
    remedy = "write PACKAGE==VERSION --hash=sha256:DIGEST"
    found = _matches(path, _RELEASE, "is not a release with hashes", remedy)
    return tuple(
        PinnedWheel(
            match["package"],
            match["version"],
            tuple(re.findall(r"sha256:([0-9a-f]{64})", match["hashes"])),
        )
        for match in found
    )


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
            raise InputError(str(path), line, problem, remedy)


def missing(wanted: Wanted, cache: Path) -> Wanted:
    """Return the part that the cache does not have."""
    commits = (
        item for item in wanted.commits if find_commit(cache, item.repo, item.commit) is None
    )
    wheels = (wheel for wheel in wanted.wheels if not has_wheel(cache, wheel))
    return Wanted(tuple(commits), tuple(wheels))


def has_wheel(cache: Path, wheel: PinnedWheel) -> bool:
    """Return whether the cache has a sound wheel of a release, whose hash is accepted."""
    try:
        fetch_release(
            wheel.package, wheel.version, cache=cache, accepted=wheel.sha256, offline=True
        )
    except (UpstreamUnavailable, UpstreamError, DamagedWheel):
        return False
    return True


def damage(cache: Path, wheel: PinnedWheel) -> DamagedWheel | None:
    """Return what is wrong with the cached wheel of a release that `has_wheel` does not accept."""
    found = wheels_in(release_folder(cache, wheel.package, wheel.version))
    return next((item for item in found if isinstance(item, DamagedWheel)), None)


def not_given(wanted: Wanted, cards: Mapping[str, Card], choice: UpstreamChoice) -> Wanted:
    """Return what is wanted without the commits that the user gave with ``--upstream``."""
    given = {
        (upstream.repo, upstream.commit)
        for card in cards.values()
        for name, upstream in card.upstreams.items()
        if name in choice.overrides or upstream.repo in choice.overrides
    }
    commits = (item for item in wanted.commits if (item.repo, item.commit) not in given)
    return Wanted(tuple(commits), wanted.wheels)
