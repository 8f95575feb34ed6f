"""Skill cards: the model of ``card.yaml``, and loading."""

from ringproof.cards.card import Anchor, Card, PackageUpstream, RepositoryUpstream
from ringproof.cards.loading import find_cards, has_card, load_card
from ringproof.cards.proof import Proof, ProofKind
from ringproof.cards.statements import Statement, StatementKind, statements

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
