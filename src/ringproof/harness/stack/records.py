"""Reads the verdicts of committed evidence records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from ringproof.errors import InputError

_BEST_FIRST = ("proven", "partly", "refuted", "in-reference", "unproven", "not-here")


def recorded_verdicts(folder: Path, skill: str) -> Mapping[str, str]:
    """Return the best verdict of each statement of a skill over all environments.

    Args:
        folder: Folder with ``CLASS/SKILL.json``; see `ringproof.harness.proofs.evidence`.

    Raises:
        InputError: A record cannot be read.
    """
    best: dict[str, str] = {}
    for path in sorted(folder.glob(f"*/{skill}.json")):
        try:
            claims = json.loads(path.read_text("utf-8"))["claims"]
            found = {str(claim["id"]): str(claim["verdict"]) for claim in claims}
        except (OSError, ValueError, KeyError, TypeError) as error:
            remedy = "record it again with `ringproof prove --record`"
            raise InputError(str(path), None, "is not an evidence record", remedy) from error
        for name, verdict in found.items():
            best[name] = min(verdict, best.get(name, verdict), key=_rank)
    return MappingProxyType(best)


def _rank(verdict: str) -> int:
    return _BEST_FIRST.index(verdict) if verdict in _BEST_FIRST else len(_BEST_FIRST)
