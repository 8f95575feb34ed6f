"""Evening out filled groups: two of unequal time become one of twice the size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ringproof.reference.planning.domain import Domain, IntArray
from ringproof.reference.planning.groups import Groups

_EVEN_ENOUGH = 1.001
"""Groups within this factor of the mean time are left alone."""


def merge(groups: Groups, sizes: Sequence[int], domain: Domain) -> tuple[Groups, IntArray]:
    """Join groups that take too long with those that take the shortest, where both gain.

    Level by level: the longest with the shortest, the next with the next, each into one group of
    the next size, if that is shorter than the longer one was and fits.

    Returns:
        The groups, and for each old group the new one that has its sequences.
    """
    new_home = np.arange(len(groups))
    rank_ticks = int((groups.time * np.array(sizes)[groups.level]).sum())
    goal = int(rank_ticks / domain.ranks * _EVEN_ENOUGH)
    if int(groups.time.max()) <= goal:
        return groups, new_home
    for level in range(len(sizes) - 1):
        groups, moved = _merge_level(groups, level, sizes[level + 1] // sizes[level], goal, domain)
        new_home = moved[new_home]
    return groups, new_home


def _merge_level(
    groups: Groups, level: int, factor: int, goal: int, domain: Domain
) -> tuple[Groups, IntArray]:
    time = groups.time
    same = np.flatnonzero(groups.level == level)
    same = same[np.argsort(-time[same], kind="stable")]
    half = len(same) // factor
    if not half or time[same[0]] <= goal:
        return groups, np.arange(len(groups))
    heads = same[:half]
    partners = same[::-1][: half * (factor - 1)].reshape(half, factor - 1)
    teams = np.concatenate((heads[:, None], partners), axis=1)
    count = groups.count[teams].sum(axis=1)
    together = groups.ticks[level + 1][teams].sum(axis=1)
    together -= (factor - 1) * groups.overhead[level + 1]
    useful = (time[heads] > goal) & (together < time[heads])
    useful &= groups.tokens[level + 1][teams].sum(axis=1) <= domain.max_tokens_per_rank
    if domain.max_sequences is not None:
        useful &= count <= domain.max_sequences
    teams = teams[useful]
    if not len(teams):
        return groups, np.arange(len(groups))
    return _joined(groups, teams, level + 1)


def _joined(groups: Groups, teams: IntArray, level: int) -> tuple[Groups, IntArray]:
    """Each row of ``teams`` becomes one group; the others keep their order."""
    heads, rest = teams[:, 0], teams[:, 1:]
    ticks, tokens, count = groups.ticks.copy(), groups.tokens.copy(), groups.count.copy()
    levels = groups.level.copy()
    ticks[:, heads] = groups.ticks[:, teams].sum(axis=2)
    ticks[:, heads] -= (teams.shape[1] - 1) * groups.overhead[:, None]
    tokens[:, heads] = groups.tokens[:, teams].sum(axis=2)
    count[heads] = groups.count[teams].sum(axis=1)
    levels[heads] = level
    keep = np.ones(len(groups), bool)
    keep[rest] = False
    number = np.cumsum(keep) - 1
    number[rest] = number[heads][:, None]
    return Groups(levels, ticks, tokens, count, groups.overhead).only(keep), number


def widen(groups: Groups, sizes: Sequence[int], free: int) -> Groups:
    """Let groups grow into ranks that have nothing to do: the longest first.

    A group that would take longer for it (its communication grows) grows only when no other can.

    Args:
        groups: None of them empty.
        free: Ranks without a group.

    Returns:
        The groups; fewer ranks are left than any of them could grow by.
    """
    growth = np.diff(np.array(sizes), append=np.iinfo(np.int64).max // 2)
    while free > 0:
        columns = np.arange(len(groups))
        able = np.flatnonzero(growth[groups.level] <= free)
        if not len(able):
            break
        following = groups.ticks[groups.level[able] + 1, able]
        gaining = able[following <= max(int(groups.time.max()), 0)]
        order = gaining if len(gaining) else able[np.argsort(following, kind="stable")]
        if len(gaining):
            order = gaining[np.argsort(-groups.time[gaining], kind="stable")]
        need = np.cumsum(growth[groups.level[order]])
        chosen = order[need <= free] if len(gaining) else order[:1]
        level = groups.level + np.isin(columns, chosen)
        free -= int(growth[groups.level[chosen]].sum())
        groups = replace(groups, level=level)
    return groups
