"""Every rule of every command, for the pages that explain them."""

from __future__ import annotations

from ringproof.harness.lint.rules import RULES as LINT
from ringproof.harness.reports.anchors import RULES as ANCHORS
from ringproof.harness.reports.drift import RULES as DRIFT
from ringproof.harness.reports.fences import RULES as FENCES
from ringproof.harness.reports.model import Rule

ALL_RULES: tuple[Rule, ...] = (*LINT, *ANCHORS, *FENCES, *DRIFT)
