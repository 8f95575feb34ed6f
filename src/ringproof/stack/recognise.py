"""Recognises the line of upstream that a tree is on, by the probes of a card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ringproof.anchors.resolve import AnchorResolver, AnchorStatus
from ringproof.cards.model import Anchor, Card, Probe, UpstreamLine
from ringproof.upstream.tree import UpstreamError, UpstreamTree

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


def recognise(card: Card, repo: str, tree: UpstreamTree, resolver: AnchorResolver) -> Recognition:
    """Return the lines of ``card`` for ``repo`` that a tree is on.

    Args:
        resolver: Resolver of the same tree. A probe and an anchor look up symbols alike.
    """
    lines = [line for line in card.lines if line.repo == repo]
    unmet = {
        line.id: next((why for probe in line.probe if (why := _unmet(probe, tree, resolver))), "")
        for line in lines
    }
    met = tuple(line for line in lines if not unmet[line.id])
    return Recognition(met, MappingProxyType({name: why for name, why in unmet.items() if why}))


def _unmet(probe: Probe, tree: UpstreamTree, resolver: AnchorResolver) -> str:
    """Return why a probe does not hold; empty if it does."""
    status = _in_file(probe, tree) if probe.symbol is None else _in_symbol(probe, resolver)
    place = probe.path if probe.symbol is None else f"{probe.symbol} in {probe.path}"
    if probe.absent:
        what = f"{place} with {', '.join(probe.expects)}" if probe.expects else place
        return "" if status in _GONE else f"{what} is there"
    return "" if status is AnchorStatus.HOLDS else f"{place}: {status.value}"


def _in_symbol(probe: Probe, resolver: AnchorResolver) -> AnchorStatus:
    anchor = Anchor(
        id="probe",
        upstream="probe",
        path=probe.path,
        symbol=probe.symbol or "",
        role="probe",
        expects=probe.expects,
    )
    return resolver.resolve(anchor).status


def _in_file(probe: Probe, tree: UpstreamTree) -> AnchorStatus:
    for path in (probe.path, probe.path.removeprefix("src/")):
        try:
            text = tree.read(path).decode("utf-8", "replace")
        except FileNotFoundError:
            continue
        except UpstreamError:
            return AnchorStatus.UNREADABLE_FILE
        found = all(expected in text for expected in probe.expects)
        return AnchorStatus.HOLDS if found else AnchorStatus.MISSING_EXPECTATION
    return AnchorStatus.MISSING_FILE
