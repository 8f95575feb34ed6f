"""Repositories of submodules, and the error if one is missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from ringproof.errors import InputError
from ringproof.harness.upstreams.tree import UpstreamTree, UpstreamUnavailable

MAX_NESTED = 8
"""How many submodules may lie inside one another."""
MAX_LISTED = 64
"""How many submodules one listing enters: a few commits can nest into millions of paths."""


@dataclass(frozen=True)
class SubmoduleSources:
    """Repositories that the user gave.

    Attributes:
        paths: Clones or bare repositories by ``OWNER/NAME``, ignoring case.
        option: Option by which the user gives them, for messages.
    """

    paths: Mapping[str, Path] = field(default_factory=lambda: MappingProxyType({}))
    option: str = "--upstream"

    def find(self, repo: str) -> Path | None:
        """Return the repository of that name, or ``None`` if it was not given."""
        wanted = repo.casefold()
        return next((path for name, path in self.paths.items() if name.casefold() == wanted), None)


@dataclass(frozen=True)
class Submodule:
    """A submodule of one commit.

    Attributes:
        path: Path from the root of the outermost repository.
        repo: ``OWNER/NAME``, from ``.gitmodules``.
        commit: Pinned commit.
    """

    path: str
    repo: str
    commit: str


def refuse_unused(sources: SubmoduleSources, trees: Iterable[UpstreamTree]) -> None:
    """Raise `InputError` for a repository that is not a submodule of the trees."""
    found = {item.repo for tree in trees for item in getattr(tree, "submodules", tuple)()}
    known = {name.casefold() for name in found}
    for name, path in sources.paths.items():
        if name.casefold() not in known:
            problem = f"names no ref, and no submodule ({', '.join(sorted(found)) or 'none there'})"
            given = f"{name}=git:{path}"
            raise InputError(sources.option, given, problem, "write NAME=git:PATH@REF")


class MissingSubmodule(UpstreamUnavailable, InputError):
    """A path leads into a submodule whose repository was not given.

    It is both an `UpstreamUnavailable`, for callers that report "not here", and an `InputError`.
    """

    def __init__(self, path: str, submodule: Submodule, option: str) -> None:
        problem = (
            f"is in the submodule {submodule.path}, pinned at {submodule.commit} of "
            f"{submodule.repo}"
        )
        remedy = f"give it with {option} {submodule.repo}=git:PATH"
        InputError.__init__(self, path, None, problem, remedy)
