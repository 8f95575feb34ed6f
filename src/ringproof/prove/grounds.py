"""What statements rest on: the lines of upstream on which code ran or was read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ringproof.anchors.resolve import AnchorResolver
from ringproof.cards.card import Card, PackageUpstream
from ringproof.cards.proof import ProofKind
from ringproof.cards.statements import Statement
from ringproof.prove.results import Ground, Judged
from ringproof.prove.touches import Evidence, Touch
from ringproof.stack.recognise import recognise
from ringproof.upstream.tree import FolderTree

_STRONGEST_FIRST = tuple(Evidence)


class Grounds:
    """Finds the ground of statements of one card; each upstream's line is recognised once."""

    def __init__(self, card: Card) -> None:
        self._card = card
        self._lines: dict[Touch, frozenset[str]] = {}

    def of(self, statement: Statement, proofs: Sequence[Judged]) -> Ground:
        """Return the ground of a statement.

        A line without an upstream at hand cannot be covered by anything and is left out. A
        statement rests on ringproof's own code only if no line is executed or read.
        """
        passed = [proof for proof in proofs if proof.passed]
        kinds = {proof.ground.evidence for proof in passed} - {None}
        if not kinds:
            return Ground()
        strongest = next(kind for kind in _STRONGEST_FIRST if kind in kinds)
        executed = self._touched(passed, executed=True)
        if not statement.lines:
            return Ground(strongest, tuple(sorted(executed)))
        read = self._touched(passed, executed=False) | frozenset(self._anchored(passed))
        scope = [line.id for line in self._card.lines if line.id in statement.lines]
        wanted = {line.id for line in self._card.lines if line.upstreams}.intersection(scope)
        own = kinds - {Evidence.UPSTREAM, Evidence.READ}
        if wanted and wanted <= executed:
            evidence = Evidence.UPSTREAM
        elif (executed | read).intersection(scope) or not own:
            evidence = Evidence.READ
        else:
            evidence = next(kind for kind in _STRONGEST_FIRST if kind in own)
        covered = executed | read if evidence is Evidence.READ else wanted
        return Ground(
            evidence,
            tuple(name for name in scope if name in executed),
            tuple(name for name in scope if name in read),
            tuple(name for name in scope if name in wanted - covered),
        )

    def _touched(self, proofs: Sequence[Judged], *, executed: bool) -> frozenset[str]:
        touches = {touch for proof in proofs for touch in proof.touches}
        return frozenset(
            line for touch in touches if touch.executed is executed for line in self._line(touch)
        )

    def _line(self, touch: Touch) -> frozenset[str]:
        code = replace(touch, functions=())
        if code not in self._lines:
            self._lines[code] = frozenset(self._recognised(code))
        return self._lines[code]

    def _recognised(self, touch: Touch) -> Iterator[str]:
        """The line of the code that was touched: by its folder, or by the commit that it names."""
        if touch.root and Path(touch.root).is_dir():
            tree = FolderTree(Path(touch.root))
            found = recognise(self._card, touch.repo, AnchorResolver(tree))
            yield from (line.id for line in found.lines)
            return
        for line in self._card.lines:
            for name in line.upstreams:
                upstream = self._card.upstreams[name]
                release = isinstance(upstream, PackageUpstream)
                known = upstream.version if release else upstream.commit  # type: ignore[union-attr]
                if line.repo == touch.repo and known == touch.name:
                    yield line.id

    def _anchored(self, proofs: Sequence[Judged]) -> Iterator[str]:
        homes = {anchor.id: anchor.upstream for anchor in self._card.anchors}
        for proof in proofs:
            if proof.kind is ProofKind.ANCHOR:
                upstream = homes.get(proof.id.removeprefix("anchor:"))
                yield from (line.id for line in self._card.lines if upstream in line.upstreams)
