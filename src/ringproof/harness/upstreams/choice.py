"""Chooses the tree of each upstream of a card: the default, or one that the user gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from ringproof.errors import InputError
from ringproof.harness.cards.model import Card, PackageUpstream, RepositoryUpstream
from ringproof.harness.upstreams.fetched import find_commit
from ringproof.harness.upstreams.releases import open_release
from ringproof.harness.upstreams.specs import FORMS, open_tree, split_git
from ringproof.harness.upstreams.submodules import SubmoduleSources
from ringproof.harness.upstreams.tree import UpstreamTree, UpstreamUnavailable

if TYPE_CHECKING:
    from ringproof.harness.upstreams.git import GitTree


def parse_overrides(entries: Sequence[str], *, option: str = "--upstream") -> Mapping[str, str]:
    """Parse ``NAME=SPEC`` entries.

    Raises:
        InputError: An entry has another form, or a name is given twice.
    """
    found: dict[str, str] = {}
    for entry in entries:
        name, equals, spec = entry.partition("=")
        if not (name and equals and spec):
            raise InputError(option, entry, "is not NAME=SPEC", f"SPEC is {FORMS}")
        if name in found:
            raise InputError(option, name, "is given twice", "give each name once")
        found[name] = spec
    return MappingProxyType(found)


@dataclass(frozen=True)
class UpstreamChoice:
    """Opens the upstreams of cards, each tree once.

    Attributes:
        overrides: Specs by name. A name is an upstream of a card, or ``OWNER/NAME`` for all commits
            of that repository that cards name or at which submodules are pinned. ``git:PATH``
            without a ref means the commit that the card names.
        cache: Folder of wheels and repositories.
        offline: Use the cache only.
    """

    overrides: Mapping[str, str]
    cache: Path
    offline: bool
    _opened: dict[str, UpstreamTree] = field(default_factory=dict, repr=False)

    @property
    def submodules(self) -> SubmoduleSources:
        """Git repositories that the user gave by ``OWNER/NAME``."""
        return SubmoduleSources(
            {
                name: split_git(spec.removeprefix("git:"))[0]
                for name, spec in self.overrides.items()
                if "/" in name and spec.startswith("git:")
            }
        )

    def refuse_unknown(self, cards: Iterable[Card]) -> None:
        """Raise `InputError` for a name that neither a card nor a submodule has."""
        named = [pair for card in cards for pair in card.upstreams.items()]
        repositories = [(key, up) for key, up in named if isinstance(up, RepositoryUpstream)]
        known = {name for name, _ in named} | {upstream.repo for _, upstream in repositories}
        unknown = [name for name in self.overrides if name not in known]
        if any("/" in name for name in unknown):
            pinned = {
                item.repo
                for name, upstream in repositories
                if (self.spec(name, upstream) or "").startswith("git:")
                for item in cast("GitTree", self.open(name, upstream)).submodules()
            }
            known |= pinned
            folded = {name.casefold() for name in pinned}
            unknown = [name for name in unknown if name.casefold() not in folded]
        for name in unknown:
            choices = ", ".join(sorted(known)) or "none there"
            problem = "is not an upstream of these cards"
            raise InputError("--upstream", name, problem, f"choose from: {choices}")

    def spec(self, name: str, upstream: PackageUpstream | RepositoryUpstream) -> str | None:
        """Return the spec that the user gave for an upstream, with its ref, or ``None``."""
        spec = self.overrides.get(name)
        if spec is None and isinstance(upstream, RepositoryUpstream):
            spec = self.overrides.get(str(upstream.repo))
        if spec is None or not spec.startswith("git:"):
            return spec
        path, ref = split_git(spec[len("git:") :])
        if ref is None and upstream.commit is None:
            raise InputError("--upstream", spec, "names no ref", "write git:PATH@REF")
        return f"git:{path}@{ref or upstream.commit}"

    def open(self, name: str, upstream: PackageUpstream | RepositoryUpstream) -> UpstreamTree:
        """Open the tree of one upstream.

        Raises:
            UpstreamUnavailable, UpstreamError: The card's default cannot be used here.
            InputError: What the user gave cannot be used, or there is no such release.
        """
        spec = self.spec(name, upstream)
        key = upstream.model_dump_json() if spec is None else f"{upstream.repo} {spec}"
        if key not in self._opened:
            places: dict[str, Any] = {
                "cache": self.cache,
                "offline": self.offline,
                "submodules": self.submodules,
            }
            if spec is None:
                self._opened[key] = open_upstream(upstream, **places)
            else:
                self._opened[key] = open_tree(spec, **places, name=upstream.repo)
        return self._opened[key]


def open_upstream(
    upstream: PackageUpstream | RepositoryUpstream,
    *,
    cache: Path,
    offline: bool,
    submodules: SubmoduleSources | None = None,
) -> UpstreamTree:
    """Open the tree of an upstream for which the user gave no spec.

    Raises:
        UpstreamUnavailable: It is not available here. Repositories are only read from the cache.
        UpstreamError: It cannot be used because of its hash or a broken wheel.
        InputError: The index has no wheel of the release.
    """
    if isinstance(upstream, RepositoryUpstream):
        folder = find_commit(cache, upstream.repo, upstream.commit)
        if folder is None:
            needed = f"{upstream.repo} at {upstream.commit[:12]}"
            raise UpstreamUnavailable(f"needs a checkout of {needed}")
        spec = f"git:{folder}@{upstream.commit}"
        return open_tree(spec, cache=cache, offline=True, submodules=submodules, name=upstream.repo)
    package, accepted = upstream.package, upstream.file_sha256
    return open_release(package, upstream.version, cache=cache, accepted=accepted, offline=offline)
