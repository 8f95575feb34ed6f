"""What cards need from upstream: commits of repositories, and wheels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ringproof.errors import InputError
from ringproof.files import read_input
from ringproof.harness.cards.model import Card, PackageUpstream
from ringproof.harness.upstreams.cached import DamagedWheel, release_folder, wheels_in
from ringproof.harness.upstreams.choice import UpstreamChoice
from ringproof.harness.upstreams.fetched import find_commit
from ringproof.harness.upstreams.releases import fetch_release
from ringproof.harness.upstreams.tree import UpstreamError, UpstreamUnavailable
from ringproof.harness.upstreams.wheels import WHEELS_FILE, PinnedWheel, read_wheels

COMMITS_FILE = "commits.txt"
"""List of commits that tests need, beside that of wheels: ``OWNER/NAME REF COMMIT``."""
_MAX_BYTES = 1_000_000
_COMMIT = re.compile(r"([A-Za-z0-9][A-Za-z0-9-]*/[A-Za-z0-9._-]+) (\S+) ([0-9a-f]{40})")
MOVING = ("main", "master", "dev")
"""Refs that are branches; the others that cards name are tags, releases and pull requests."""


@dataclass(frozen=True)
class WantedCommit:
    """A commit of a repository.

    Attributes:
        ref: Branch or tag from which the cards read it.
    """

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
    wheels: tuple[PinnedWheel, ...]

    @property
    def branches(self) -> tuple[tuple[str, str], ...]:
        """Repository and name of each branch that moves."""
        named = {(item.repo, item.ref): None for item in self.commits if item.ref in MOVING}
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
            wheels[release] = PinnedWheel(upstream.package, upstream.version, tuple(hashes))
    commits.update(dict.fromkeys(pinned.commits))
    ordered = sorted(commits, key=lambda item: item.repo)
    return Wanted(tuple(ordered), tuple(wheels.values()))


def pinned_beside(cards: Iterable[Path]) -> Wanted:
    """Return what the lists in the folder of the cards name; nothing without lists.

    Args:
        cards: Paths of cards, ``cards/NAME/card.yaml``.

    Raises:
        InputError: A line of a list has another form.
    """
    folders = sorted({path.parent.parent for path in cards})
    wheels = [folder / WHEELS_FILE for folder in folders]
    commits = [folder / COMMITS_FILE for folder in folders]
    return Wanted(
        tuple(item for path in commits if path.is_file() for item in read_commits(path)),
        tuple(wheel for path in wheels if path.is_file() for wheel in read_wheels(path)),
    )


def read_commits(path: Path) -> Iterator[WantedCommit]:
    """Yield the commits of a list.

    Raises:
        InputError: The file cannot be read, or a line has another form.
    """
    data = read_input(path, _MAX_BYTES, remedy="name the folder of the skills with --skills")
    for text in data.decode("utf-8", "replace").splitlines():
        line = text.partition("#")[0].strip()
        match = _COMMIT.fullmatch(line)
        if match is not None:
            yield WantedCommit(match[1], match[3], match[2])
        elif line:
            remedy = "write OWNER/NAME REF COMMIT, the commit in full"
            raise InputError(str(path), line, "is not a commit of a repository", remedy)


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
    given = set(_given(cards, choice))
    commits = (item for item in wanted.commits if (item.repo, item.commit) not in given)
    return Wanted(tuple(commits), wanted.wheels)


def _given(cards: Mapping[str, Card], choice: UpstreamChoice) -> Iterator[tuple[str, str]]:
    for card in cards.values():
        for name, upstream in card.upstreams.items():
            given = name in choice.overrides or upstream.repo in choice.overrides
            if given and upstream.repo is not None and upstream.commit is not None:
                yield upstream.repo, upstream.commit
