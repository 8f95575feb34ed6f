"""Recognises the line of upstream that a tree is on, by the probes of a card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ringproof.anchors.resolve import AnchorResolver, AnchorStatus
from ringproof.cards.card import CardLines, Probe, UpstreamLine

_GONE = (
    AnchorStatus.MISSING_FILE,
    AnchorStatus.MISSING_SYMBOL,
    AnchorStatus.MISSING_EXPECTATION,
)


@dataclass(frozen=True)
class Recognition:
    """The lines of one card and repository whose probes all hold in a tree.

    Attributes:
        lines: One line, or none if the tree is on no known line. Several mean that the card's
            probes do not tell them apart.
        unmet: Per other line, the first probe that does not hold.
    """

    lines: tuple[UpstreamLine, ...]
    unmet: Mapping[str, str]

    @property
    def line(self) -> UpstreamLine | None:
        """The line, if there is exactly one."""
        return self.lines[0] if len(self.lines) == 1 else None


def recognise(card: CardLines, repo: str, resolver: AnchorResolver) -> Recognition:
    """Return the lines of ``card`` for ``repo`` that the resolver's tree is on."""
    lines = [line for line in card.lines if line.repo == repo]
    unmet = {
        line.id: next((why for probe in line.probe if (why := _unmet(probe, resolver))), "")
        for line in lines
    }
    met = tuple(line for line in lines if not unmet[line.id])
    return Recognition(met, MappingProxyType({name: why for name, why in unmet.items() if why}))


def _unmet(probe: Probe, resolver: AnchorResolver) -> str:
    """Return why a probe does not hold; empty if it does."""
    status = resolver.resolve(probe).status
    place = probe.path if probe.symbol is None else f"{probe.symbol} in {probe.path}"
    if probe.absent:
        what = f"{place} with {', '.join(probe.expects)}" if probe.expects else place
        return "" if status in _GONE else f"{what} is there"
    return "" if status is AnchorStatus.HOLDS else f"{place}: {status.value}"
