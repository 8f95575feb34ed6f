"""Anchors of cards as proofs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from types import MappingProxyType

from ringproof.errors import InputError
from ringproof.harness.anchors import (
    AnchorResolver,
    UpstreamError,
    UpstreamTree,
    UpstreamUnavailable,
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
from ringproof.harness.upstreams.choice import UpstreamChoice

_Look = Callable[[Anchor, Proof, str], ProofResult]


class AnchorProver:
    """Looks up anchors in the upstreams of their cards, at the versions that the cards name.

    Args:
        choice: Chooses the trees of the upstreams.
    """

    def __init__(self, choice: UpstreamChoice) -> None:
        self._choice = choice
        self._opened: dict[tuple[str, str], _Look] = {}

    def prove(self, card: Card, anchor: Anchor) -> ProofResult:
        """Look up one anchor and return its result.

        Raises:
            InputError: The package index does not have the release, or the tree that the user gave
                is another version than the card names.
        """
        proof = Proof(ProofKind.ANCHOR, anchor.id)
        look = self._look(anchor.upstream, card.upstreams[anchor.upstream])
        return look(anchor, proof, anchor_digest(card, anchor))

    def _look(self, name: str, upstream: PackageUpstream | RepositoryUpstream) -> _Look:
        key = (name, upstream.model_dump_json())
        if key not in self._opened:
            self._opened[key] = self._open(name, upstream)
        return self._opened[key]

    def _open(self, name: str, upstream: PackageUpstream | RepositoryUpstream) -> _Look:
        given = self._choice.spec(name, upstream)
        try:
            tree = self._choice.open(name, upstream)
        except UpstreamUnavailable as error:
            return _always(ProofState.UNAVAILABLE, str(error))
        except UpstreamError as error:
            return _always(ProofState.FAILED, str(error))
        if given is not None:
            refuse_other_version(name, given, upstream, tree)
        return _looked_up(AnchorResolver(tree))


def refuse_other_version(
    name: str, spec: str, upstream: PackageUpstream | RepositoryUpstream, tree: UpstreamTree
) -> None:
    """Refuse a tree of another version than the card names; `anchors check` accepts others.

    Raises:
        InputError: The tree is another commit, or replaces a release.
    """
    if isinstance(upstream, PackageUpstream):
        problem = "is a release, which is proven from its wheel"
        raise InputError("--upstream", name, problem, "leave it out or use `anchors check`")
    commit = getattr(tree, "commit", upstream.commit)
    if commit != upstream.commit:
        problem = f"is commit {commit[:12]}, and the card speaks of {upstream.commit[:12]}"
        raise InputError("--upstream", spec, problem, "leave the ref out or use `anchors check`")


def _looked_up(resolver: AnchorResolver) -> _Look:
    def look(anchor: Anchor, proof: Proof, digest: str) -> ProofResult:
        try:
            return judge_anchor(proof, resolver.resolve(anchor), digest)
        except UpstreamUnavailable as error:  # the repository of a submodule was not given
            return _always(ProofState.UNAVAILABLE, str(error))(anchor, proof, digest)

    return look


def _always(state: ProofState, detail: str) -> _Look:
    def look(anchor: Anchor, proof: Proof, digest: str) -> ProofResult:
        return ProofResult(proof.id, proof.kind, state, detail=detail, sources=digest)

    return look


def anchor_digest(card: Card, anchor: Anchor) -> str:
    """Return the digest of an anchor as written in the card, and of its version."""
    upstream = card.upstreams[anchor.upstream]
    written = [upstream.model_dump(mode="json"), anchor.model_dump(mode="json", exclude={"role"})]
    return hashlib.sha256(json.dumps(written, sort_keys=True).encode()).hexdigest()


def anchor_digests(card: Card) -> Mapping[str, str]:
    """Return the digests of all anchors by proof id."""
    return MappingProxyType(
        {f"anchor:{anchor.id}": anchor_digest(card, anchor) for anchor in card.anchors}
    )
