"""Rules of the skills that can be decided from settings."""

from __future__ import annotations

from ringproof.doctor.rules.refused import REFUSED
from ringproof.doctor.rules.rule import Effect, Rule
from ringproof.doctor.rules.running import RUNNING

RULES: tuple[Rule, ...] = (*REFUSED, *RUNNING)

__all__ = ["RULES", "Effect", "Rule"]
