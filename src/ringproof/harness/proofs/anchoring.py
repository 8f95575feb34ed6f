"""The anchors of cards as proofs: each upstream opened once, each anchor looked up once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from ringproof.harness.anchors import (
    AnchorResolver,
    UpstreamError,
    UpstreamUnavailable,
    open_upstream,
)
from ringproof.harness.cards import (
    Anchor,
    Card,
    PackageUpstream,
    Proof,
    ProofKind,
    RepositoryUpstream,
)
from ringproof.harness.proofs.verdicts import ProofResult, ProofState, judge_anchor

_Look = Callable[[Anchor, Proof, str], ProofResult]


class AnchorProver:
    """Looks anchors up in the default upstreams of their cards.

    Args:
        cache: Where downloaded wheels are kept.
        offline: Use the cache only.
    """

    def __init__(self, cache: Path, *, offline: bool) -> None:
        self._cache = cache
        self._offline = offline
        self._opened: dict[str, _Look] = {}

    def prove(self, card: Card, anchor: Anchor) -> ProofResult:
        """The outcome of one anchor.

        Raises:
            InputError: The package index knows no such release.
        """
        proof = Proof(ProofKind.ANCHOR, anchor.id)
        look = self._look(card.upstreams[anchor.upstream])
        return look(anchor, proof, anchor_digest(card, anchor))

    def _look(self, upstream: PackageUpstream | RepositoryUpstream) -> _Look:
        key = upstream.model_dump_json()
        if key not in self._opened:
            self._opened[key] = self._open(upstream)
        return self._opened[key]

    def _open(self, upstream: PackageUpstream | RepositoryUpstream) -> _Look:
        try:
            tree = open_upstream(upstream, cache=self._cache, offline=self._offline)
        except UpstreamUnavailable as error:
            return _always(ProofState.UNAVAILABLE, str(error))
        except UpstreamError as error:
            return _always(ProofState.FAILED, str(error))
        resolver = AnchorResolver(tree)
        return lambda anchor, proof, digest: judge_anchor(proof, resolver.resolve(anchor), digest)


def _always(state: ProofState, detail: str) -> _Look:
    def look(anchor: Anchor, proof: Proof, digest: str) -> ProofResult:
        return ProofResult(proof.id, proof.kind, state, detail=detail, sources=digest)

    return look


def anchor_digest(card: Card, anchor: Anchor) -> str:
    """Of the anchor as the card writes it and of the version it is sought in."""
    upstream = card.upstreams[anchor.upstream]
    written = [upstream.model_dump(mode="json"), anchor.model_dump(mode="json", exclude={"role"})]
    return hashlib.sha256(json.dumps(written, sort_keys=True).encode()).hexdigest()


def anchor_digests(card: Card) -> Mapping[str, str]:
    """By proof id."""
    return MappingProxyType(
        {f"anchor:{anchor.id}": anchor_digest(card, anchor) for anchor in card.anchors}
    )
