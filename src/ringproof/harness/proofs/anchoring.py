"""The anchors of cards as proofs: each upstream opened once, each anchor looked up once."""

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
    """Looks anchors up in the upstreams of their cards, at the versions that the cards name.

    Args:
        choice: Where they are.
    """

    def __init__(self, choice: UpstreamChoice) -> None:
        self._choice = choice
        self._opened: dict[tuple[str, str], _Look] = {}

    def prove(self, card: Card, anchor: Anchor) -> ProofResult:
        """The outcome of one anchor.

        Raises:
            InputError: The package index knows no such release, or what the user gave for the
                upstream is not what the card speaks of.
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
    """A verdict is about the version that the card names; `anchors check` is for others.

    Raises:
        InputError: The tree is another commit, or stands for a release.
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
        except UpstreamUnavailable as error:  # a submodule whose repository was not given
            return _always(ProofState.UNAVAILABLE, str(error))(anchor, proof, digest)

    return look


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
