"""Anchors of cards as proofs, and the upstream checkouts that a user gave for tests."""

from __future__ import annotations

import ast
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ringproof.anchors import (
    AnchorResolver,
    UpstreamError,
    UpstreamTree,
    UpstreamUnavailable,
)
from ringproof.cards import (
    Anchor,
    Card,
    PackageUpstream,
    Proof,
    ProofKind,
    RepositoryUpstream,
)
from ringproof.errors import InputError, shown
from ringproof.prove.results import Ground, Judged, ProofState
from ringproof.prove.touches import Evidence, Touch, note, watch
from ringproof.upstream.sources import UpstreamChoice, parse_overrides

UPSTREAM_OPTION = "--ringproof-upstream"
"""How `prove` hands checkouts to pytest: ``NAME=SPEC``, as often as needed; see `recorder`."""
CACHE_OPTION = "--ringproof-cache"
"""How `prove` tells pytest the folder in which ``ringproof upstream fetch`` keeps repositories."""
OFFLINE_OPTION = "--ringproof-offline"
"""How `prove` tells pytest that tests may not download anything."""


class AnchorProver:
    """Looks up anchors in the upstreams of their cards, at the versions that the cards name.

    Args:
        choice: Chooses the trees of the upstreams.
    """

    def __init__(self, choice: UpstreamChoice) -> None:
        self._choice = choice
        self._resolvers: dict[UpstreamTree, AnchorResolver] = {}

    def prove(self, card: Card, anchor: Anchor) -> Judged:
        """Look up one anchor and return its result.

        Raises:
            InputError: The package index does not have the release, or the tree that the user gave
                is another version than the card names.
        """
        proof = Proof(ProofKind.ANCHOR, anchor.id)
        result = partial(Judged, proof.id, sources=anchor_digest(card, anchor))
        try:
            found = self._resolver(anchor.upstream, card).resolve(anchor)
        except UpstreamUnavailable as error:  # or the repository of a submodule was not given
            return result(ProofState.UNAVAILABLE, detail=str(error))
        except UpstreamError as error:
            return result(ProofState.FAILED, detail=str(error))
        known = {"origin": found.origin}
        if found.fingerprint is not None:
            known["place"] = f"{found.path}:{found.start}-{found.end}"
            known["fingerprint"] = found.fingerprint
        state = ProofState.PASSED if found.holds else ProofState.FAILED
        detail = "" if found.holds else f"{found.status.value}: {found.detail}"
        read = Ground(Evidence.READ)
        return result(state, detail=detail, properties=tuple(known.items()), ground=read)

    def _resolver(self, name: str, card: Card) -> AnchorResolver:
        upstream = card.upstreams[name]
        tree, given = self._choice.open(name, upstream), self._choice.spec(name, upstream)
        if given is not None:
            refuse_other_version(name, given, upstream, tree)
        if tree not in self._resolvers:
            self._resolvers[tree] = AnchorResolver(tree)
        return self._resolvers[tree]


def refuse_other_version(
    name: str, spec: str, upstream: PackageUpstream | RepositoryUpstream, tree: UpstreamTree
) -> None:
    """Refuse a tree of another version than the card names; `anchors check` accepts others.

    Raises:
        InputError: The tree is another commit, or replaces a release.
    """
    if isinstance(upstream, PackageUpstream):
        problem = f"{name} is a release, which is proven from its wheel"
        raise InputError("--upstream", f"{problem}; leave it out or use `anchors check`")
    commit = tree.commit or upstream.commit
    if commit != upstream.commit:
        problem = (
            f"{shown(spec)} is commit {commit[:12]}, and the card names {upstream.commit[:12]}"
        )
        raise InputError("--upstream", f"{problem}; leave the ref out or use `anchors check`")


def anchor_digest(card: Card, anchor: Anchor) -> str:
    """Return the digest of an anchor as written in the card, and of its version."""
    upstream = card.upstreams[anchor.upstream]
    written = [upstream.model_dump(mode="json"), anchor.model_dump(mode="json", exclude={"role"})]
    return hashlib.sha256(json.dumps(written, sort_keys=True).encode()).hexdigest()


_DEFINING = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)
"""Statements that say nothing about what upstream does by being executed."""


class GivenTree(UpstreamTree):
    """An upstream checkout or wheel that notes what a test does with it.

    Args:
        tree: Its files.
        repo: Repository of the sources.
        version: The commit or release that the card names.
    """

    def __init__(self, tree: UpstreamTree, repo: str, version: str) -> None:
        self.origin, self.commit, self._tree = tree.origin, tree.commit, tree
        self._touch = Touch(False, repo, version)

    def read(self, path: str) -> bytes:
        """See `UpstreamTree.read`; the test read upstream."""
        note(self._touch)
        return self._tree.read(path)

    def paths(self, under: str = "") -> Iterator[str]:
        """See `UpstreamTree.paths`; the test read upstream."""
        note(self._touch)
        return self._tree.paths(under)

    def run(self, path: str, parts: Sequence[ast.stmt], names: dict[str, Any]) -> dict[str, Any]:
        """Execute statements of a file, alone.

        Upstream was executed if a function that they define runs, or if they are statements from
        within a function.

        Args:
            parts: Statements of the file, as `ast.parse` gives them.
            names: What they find; it gets what they define.
        """
        within = (part for part in parts if not isinstance(part, _DEFINING))
        note(self._touch.ran(f"{path}:{part.lineno}" for part in within))
        watch(self.origin, self._touch)
        exec(compile(ast.Module([*parts], []), f"{self.origin}/{path}", "exec"), names)
        return names


def given_tree(
    entries: Sequence[str], card: Card, name: str, *, cache: str | None = None
) -> GivenTree:
    """Open an upstream of a card at the commit or release that the card names.

    Args:
        entries: Entries ``NAME=SPEC`` that the user gave.
        name: Key of the upstream in the card.
        cache: Folder of fetched repositories and wheels, the value of `CACHE_OPTION`.

    Raises:
        UpstreamUnavailable: No checkout was given, or the wheel is not in the cache. The message
            names what is needed.
        InputError: The given tree is not a repository, or is at another commit.
    """
    upstream = card.upstreams[name]
    choice = UpstreamChoice(
        parse_overrides(entries, option=UPSTREAM_OPTION),
        cache=Path(cache or os.devnull),
        offline=True,
    )
    tree, given = choice.open(name, upstream), choice.spec(name, upstream)
    if given is not None:
        refuse_other_version(name, given, upstream, tree)
    version = upstream.version if isinstance(upstream, PackageUpstream) else upstream.commit
    return GivenTree(tree, upstream.repo or name, version)
