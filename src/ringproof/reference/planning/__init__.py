"""The Dynamic CP planner: lengths to microbatches, CP groups and sequences (numpy only)."""

from ringproof.reference.planning.costs import AttentionOnly, CostModel
from ringproof.reference.planning.domain import Domain, choose_cp_sizes
from ringproof.reference.planning.plan import Group, Metrics, Microbatch, Plan
from ringproof.reference.planning.planner import make_plan
from ringproof.reference.planning.simulate import Goal, Pipeline
from ringproof.reference.planning.validate import violations

__all__ = (
    "AttentionOnly",
    "CostModel",
    "Domain",
    "Goal",
    "Group",
    "Metrics",
    "Microbatch",
    "Pipeline",
    "Plan",
    "choose_cp_sizes",
    "make_plan",
    "violations",
)
