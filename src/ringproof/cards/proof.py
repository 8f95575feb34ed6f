"""Proofs of a statement: a test, an anchor, or ``unproven`` with a reason."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

PROOF_FOLDERS = ("checks", "smoke")
"""The folders of a checkout whose tests a card may name; nothing else is ever executed."""

_ANCHOR = "anchor:"
_UNPROVEN = "unproven:"
# FILE.py, FILE.py::name, FILE.py::Class::name, each name with [parameters] at the end only.
PROOF_NODE = re.compile(
    r"(?P<file>(checks|smoke)(/[A-Za-z0-9_.-]+)+\.py)(::[A-Za-z_]\w*)*(\[[^\x00-\x1f]*\])?"
)


class ProofKind(str, Enum):
    """Kinds of a ``proof`` entry."""

    PYTEST = "pytest"
    ANCHOR = "anchor"
    UNPROVEN = "unproven"


@dataclass(frozen=True)
class Proof:
    """One parsed ``proof`` entry.

    Attributes:
        target: Pytest node id, anchor id, or the reason why there is no proof.
    """

    kind: ProofKind
    target: str

    @property
    def id(self) -> str:
        """The entry as the card spells it."""
        return self.target if self.kind is ProofKind.PYTEST else f"{self.kind.value}:{self.target}"

    @property
    def file(self) -> str:
        """The test file of a pytest node id, relative to the repository root."""
        return self.target.split("::", 1)[0]


def parse_proof(text: str) -> Proof:
    """Parse one entry.

    Raises:
        ValueError: The entry has none of the three forms, or its path leaves the proof folders.
    """
    for prefix, kind in ((_ANCHOR, ProofKind.ANCHOR), (_UNPROVEN, ProofKind.UNPROVEN)):
        if text.startswith(prefix):
            target = " ".join(text[len(prefix) :].split())
            if not target:
                raise ValueError(f"{prefix!r} is followed by nothing")
            return Proof(kind, target)
    match = PROOF_NODE.fullmatch(text)
    if match is None:
        folders = " or ".join(f"{name}/" for name in PROOF_FOLDERS)
        raise ValueError(f"{text[:120]!r} is not a pytest node id below {folders}")
    if any(part in (".", "..") for part in match["file"].split("/")):
        raise ValueError(f"{text[:120]!r} leaves the repository")
    return Proof(ProofKind.PYTEST, text)


def covers(proof_id: str, node_id: str) -> bool:
    """Return whether a proof's node id names a test, its parameters, or its class or file."""
    return node_id == proof_id or node_id.startswith((f"{proof_id}[", f"{proof_id}::"))
