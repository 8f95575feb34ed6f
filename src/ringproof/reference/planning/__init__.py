"""The Dynamic CP planner, which divides a batch of sequences into microbatches and CP groups.

Read in this order: ``costs``, ``domain`` and ``plan`` (input and output), ``packing`` and
``groups`` (which sequences share which ranks), ``simulate`` and ``bounds`` (how long a plan takes,
and a lower bound), ``planner`` (the entry point), ``validate`` (an independent check) and
``baselines`` (plans without Dynamic CP). ``timing`` is the cost model of a real machine, made from
``shapes`` (models) and ``hardware``. ``lengths`` reads and draws batches, ``forms`` builds values
from JSON, and ``elementwise`` computes with numpy where it is installed. Nothing needs torch.
"""

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
