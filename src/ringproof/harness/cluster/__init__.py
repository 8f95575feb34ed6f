"""SPMD workers: start ranks once, run many cases on them, and name the rank that failed.

Read in this order: ``case`` (what a case sees and how it fails), ``worker`` (one rank),
``cluster`` (all of them), ``torchrun`` (the same case where a launcher made the ranks), ``gpus``
(which rank gets which GPU, and how several share one).
"""

from ringproof.harness.cluster.case import (
    CaseOutcome,
    ClusterOptions,
    RankContext,
    RankFailure,
    drop,
)
from ringproof.harness.cluster.cluster import Cluster

__all__ = ["CaseOutcome", "Cluster", "ClusterOptions", "RankContext", "RankFailure", "drop"]
