"""Anchors of cards as proofs, and the upstream checkouts that a user gave for tests."""

from __future__ import annotations

import ast
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

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
from ringproof.harness.proofs.executed import Touch, note
from ringproof.harness.proofs.verdicts import ProofResult, ProofState, judge_anchor
from ringproof.harness.upstreams.sources import UpstreamChoice, parse_overrides
from ringproof.harness.upstreams.tree import PICTURES

UPSTREAM_OPTION = "--ringproof-upstream"
"""How `prove` hands checkouts to pytest: ``NAME=SPEC``, as often as needed; see `recorder`."""
CACHE_OPTION = "--ringproof-cache"
"""How `prove` tells pytest the folder in which ``ringproof upstream fetch`` keeps repositories."""
OFFLINE_OPTION = "--ringproof-offline"
"""How `prove` tells pytest that tests may not download anything."""


_Unusable = UpstreamError | UpstreamUnavailable


class AnchorProver:
    """Looks up anchors in the upstreams of their cards, at the versions that the cards name.

    Args:
        choice: Chooses the trees of the upstreams.
    """

    def __init__(self, choice: UpstreamChoice) -> None:
        self._choice = choice
        self._opened: dict[tuple[str, str], AnchorResolver | _Unusable] = {}

    def prove(self, card: Card, anchor: Anchor) -> ProofResult:
        """Look up one anchor and return its result.

        Raises:
            InputError: The package index does not have the release, or the tree that the user gave
                is another version than the card names.
        """
        proof = Proof(ProofKind.ANCHOR, anchor.id)
        digest = anchor_digest(card, anchor)
        upstream = card.upstreams[anchor.upstream]
        key = (anchor.upstream, upstream.model_dump_json())
        if key not in self._opened:
            self._opened[key] = self._open(anchor.upstream, upstream)
        opened = self._opened[key]
        try:
            if isinstance(opened, _Unusable):
                raise opened
            return judge_anchor(proof, opened.resolve(anchor), digest)
        except UpstreamUnavailable as error:  # or the repository of a submodule was not given
            state, detail = ProofState.UNAVAILABLE, str(error)
        except UpstreamError as error:
            state, detail = ProofState.FAILED, str(error)
        return ProofResult(proof.id, proof.kind, state, detail=detail, sources=digest)

    def _open(
        self, name: str, upstream: PackageUpstream | RepositoryUpstream
    ) -> AnchorResolver | _Unusable:
        given = self._choice.spec(name, upstream)
        try:
            tree = self._choice.open(name, upstream)
        except (UpstreamError, UpstreamUnavailable) as error:
            return error
        if given is not None:
            refuse_other_version(name, given, upstream, tree)
        return AnchorResolver(tree)


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


@dataclass(frozen=True)
class GivenTree:
    """An upstream checkout that notes what a test does with it.

    Attributes:
        tree: Its files.
        repo: Repository of the sources.
        commit: The commit that the card names.
    """

    tree: UpstreamTree
    repo: str
    commit: str

    @property
    def origin(self) -> str:
        """See `UpstreamTree.origin`."""
        return self.tree.origin

    def read(self, path: str) -> bytes:
        """See `UpstreamTree.read`; the test read upstream."""
        note(Touch(False, self.repo, self.commit))
        return self.tree.read(path)

    def paths(self, under: str = "") -> Iterator[str]:
        """See `UpstreamTree.paths`; the test read upstream."""
        note(Touch(False, self.repo, self.commit))
        return self.tree.paths(under)

    def run(self, path: str, parts: Sequence[ast.stmt], names: dict[str, Any]) -> dict[str, Any]:
        """Execute statements of a file, alone; the test executed upstream.

        Args:
            parts: Statements of the file, as `ast.parse` gives them.
            names: What they find; it gets what they define.
        """
        note(Touch(True, self.repo, self.commit))
        exec(compile(ast.Module([*parts], []), path, "exec"), names)
        return names


def given_tree(
    entries: Sequence[str], card: Card, name: str, *, cache: str | None = None
) -> GivenTree:
    """Open an upstream repository of a card at the commit that the card names.

    Args:
        entries: Entries ``NAME=SPEC`` that the user gave.
        name: Key of the upstream in the card.
        cache: Folder of fetched repositories, the value of `CACHE_OPTION`.

    Raises:
        UpstreamUnavailable: No checkout was given. The message names the one that is needed.
        InputError: The given tree is not a repository, or is at another commit.
    """
    upstream = card.upstreams[name]
    choice = UpstreamChoice(
        parse_overrides(entries, option=UPSTREAM_OPTION),
        cache=Path(cache or os.devnull),
        offline=True,
    )
    tree = choice.open(name, upstream)
    refuse_other_version(name, choice.spec(name, upstream) or "", upstream, tree)
    repo, commit = getattr(upstream, "repo", ""), getattr(upstream, "commit", "")
    return GivenTree(tree, repo, commit)


def unpack(tree: UpstreamTree, under: str, folder: Path) -> None:
    """Write the files whose path starts with ``under`` to a folder, so that they can be run."""
    for path in tree.paths(under):
        if path.lower().endswith(PICTURES):
            continue
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(tree.read(path))
