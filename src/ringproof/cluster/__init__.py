"""SPMD workers: start ranks once, run many cases on them, and name the rank that failed.

Reading order: ``case`` (the context and result of a case), ``worker`` (one rank), ``cluster`` (all
of them, or those of a launcher such as torchrun), ``gpus`` (which rank gets which GPU).
"""

from ringproof.cluster.case import (
    CaseOutcome,
    ClusterOptions,
    LogSink,
    RankContext,
    RankFailure,
    RankRefusal,
    drop,
)
from ringproof.cluster.cluster import Cluster, launched_world, run_launched

__all__ = [
    "CaseOutcome",
    "Cluster",
    "ClusterOptions",
    "LogSink",
    "RankContext",
    "RankFailure",
    "RankRefusal",
    "drop",
    "launched_world",
    "run_launched",
]
