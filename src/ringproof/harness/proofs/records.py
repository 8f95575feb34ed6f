"""Reads the verdicts of committed evidence records."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ringproof.errors import InputError

_UPSTREAM = "upstream executed"
_BEST_FIRST = ("proven", "partly", "refuted", "in-reference", "unproven", "not-here")


def recorded_verdicts(folder: Path, skill: str) -> Mapping[str, str]:
    """Return the best verdict of each statement of a skill over all environments.

    Args:
        folder: Folder with ``CLASS/SKILL.json``; see `ringproof.harness.proofs.evidence`.

    Raises:
        InputError: A record cannot be read.
    """
    best: dict[str, str] = {}
    for record in _records(folder, skill):
        for claim in record["claims"]:
            name, verdict = str(claim["id"]), str(claim["verdict"])
            best[name] = min(verdict, best.get(name, verdict), key=_rank)
    return MappingProxyType(best)


def about_upstream(folder: Path, skill: str) -> Mapping[str, int] | None:
    """Return the counts of a skill's statements about upstream by kind of evidence.

    They are those of the environment in which most were executed in upstream's code; ``None``
    without a record that has them.

    Raises:
        InputError: A record cannot be read.
    """
    counts = [record["about_upstream"] for record in _records(folder, skill)]
    return max((one for one in counts if one), key=lambda one: one[_UPSTREAM], default=None)


def _records(folder: Path, skill: str) -> Iterator[Mapping[str, Any]]:
    """Yield the parts of records that are used here, of any version of the format."""
    for path in sorted(folder.glob(f"*/{skill}.json")):
        try:
            data = json.loads(path.read_text("utf-8"))
            claims = [{"id": claim["id"], "verdict": claim["verdict"]} for claim in data["claims"]]
            counts = {str(kind): int(n) for kind, n in data.get("about_upstream", {}).items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            remedy = "record it again with `ringproof prove --record`"
            raise InputError(str(path), None, "is not an evidence record", remedy) from error
        yield {"claims": claims, "about_upstream": counts}


def _rank(verdict: str) -> int:
    return _BEST_FIRST.index(verdict) if verdict in _BEST_FIRST else len(_BEST_FIRST)
