"""Skill cards: the model of ``card.yaml``, and loading."""

from ringproof.harness.cards.loading import find_cards, has_card, load_card
from ringproof.harness.cards.model import Anchor, Card, PackageUpstream, RepositoryUpstream
from ringproof.harness.cards.proof import Proof, ProofKind
from ringproof.harness.cards.statements import Statement, StatementKind, statements

__all__ = (
    "Anchor",
    "Card",
    "PackageUpstream",
    "Proof",
    "ProofKind",
    "RepositoryUpstream",
    "Statement",
    "StatementKind",
    "find_cards",
    "has_card",
    "load_card",
    "statements",
)
