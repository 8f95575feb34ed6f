"""Which tree stands for which upstream of a card: the card's default, or what the user gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from ringproof.errors import InputError
from ringproof.harness.anchors.sources import open_upstream
from ringproof.harness.anchors.specs import FORMS, open_tree, split_git
from ringproof.harness.anchors.tree import UpstreamTree
from ringproof.harness.cards.model import Card, PackageUpstream, RepositoryUpstream


def parse_overrides(entries: Sequence[str], *, option: str = "--upstream") -> Mapping[str, str]:
    """``NAME=SPEC`` entries by name.

    Raises:
        InputError: An entry has another form, or a name stands twice.
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
    """How the upstreams of cards are opened; each tree once.

    Attributes:
        overrides: Specs by name. A name is an upstream of a card, or ``OWNER/NAME``, which stands
            for all commits of that repository that cards name. ``git:PATH`` without a ref is that
            repository at the commit the card names.
        cache: Where downloaded wheels are kept.
        offline: Use the cache only.
    """

    overrides: Mapping[str, str]
    cache: Path
    offline: bool
    _opened: dict[str, UpstreamTree] = field(default_factory=dict, repr=False)

    def refuse_unknown(self, cards: Iterable[Card]) -> None:
        """Raise `InputError` for a name that no card knows."""
        known: set[str] = set()
        for card in cards:
            known.update(card.upstreams)
            repositories = (item for item in card.upstreams.values() if _is_repository(item))
            known.update(str(item.repo) for item in repositories)
        for name in self.overrides:
            if name not in known:
                choices = ", ".join(sorted(known)) or "none there"
                problem = "is no upstream of these cards"
                raise InputError("--upstream", name, problem, f"choose from: {choices}")

    def spec(self, name: str, upstream: PackageUpstream | RepositoryUpstream) -> str | None:
        """What the user gave for an upstream, with its ref; ``None`` for nothing."""
        spec = self.overrides.get(name)
        if spec is None and _is_repository(upstream):
            spec = self.overrides.get(str(upstream.repo))
        if spec is None or not spec.startswith("git:"):
            return spec
        path, ref = split_git(spec[len("git:") :])
        if ref is None and upstream.commit is None:
            raise InputError("--upstream", spec, "names no ref", "write git:PATH@REF")
        return f"git:{path}@{ref or upstream.commit}"

    def open(self, name: str, upstream: PackageUpstream | RepositoryUpstream) -> UpstreamTree:
        """The tree of one upstream.

        Raises:
            UpstreamUnavailable, UpstreamError: The card's default cannot be had or used here.
            InputError: The same of what the user gave; or no such release.
        """
        spec = self.spec(name, upstream)
        key = spec or upstream.model_dump_json()
        if key not in self._opened:
            if spec is None:
                tree = open_upstream(upstream, cache=self.cache, offline=self.offline)
            else:
                tree = open_tree(spec, cache=self.cache, offline=self.offline)
            self._opened[key] = tree
        return self._opened[key]


def _is_repository(upstream: PackageUpstream | RepositoryUpstream) -> bool:
    return isinstance(upstream, RepositoryUpstream)
