"""Rules of the skills that can be decided from settings."""

from __future__ import annotations

from ringproof.doctor.accepted import ACCEPTED
from ringproof.doctor.refused import REFUSED
from ringproof.doctor.rule import Effect, Rule

RULES: tuple[Rule, ...] = (*REFUSED, *ACCEPTED)

__all__ = ["RULES", "Effect", "Rule"]
