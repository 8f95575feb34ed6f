"""What a command needs, compared with what this machine has, before anything starts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ringproof.errors import InputError, shown

CGROUP = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")
RANKS_PER_CORE = 16
"""Ranks of one core that still make progress: they wait for each other most of the time."""
RANK_BYTES = 40 << 20
"""Memory of a rank that has done nothing yet, apart from what it shares with the others."""
BASE_BYTES = 250 << 20
"""Memory of the command and of torch, which all ranks share."""
LEAST_LIMIT_BYTES = 1 << 30
"""Smallest memory limit of a rank: torch itself has to fit."""


@dataclass(frozen=True)
class Machine:
    """What this process may use.

    Args:
        cores: Cores, or what the quota of the control group leaves of them.
        free: Bytes of free memory.
    """

    cores: float
    free: int

    @classmethod
    def here(cls) -> Machine:
        """Read it from the kernel."""
        return cls(_cores(), free_memory())

    def share(self, ranks: int) -> int:
        """Return the memory limit of each of ``ranks``."""
        return max(self.free // ranks, LEAST_LIMIT_BYTES)


@dataclass(frozen=True)
class EstimatePart:
    """A part of an estimate: the option that decides it, its value, and bytes of all ranks."""

    option: str
    value: object
    bytes: int


@dataclass(frozen=True)
class Estimate:
    """What a command will need.

    Args:
        ranks: Processes that it starts.
        parts: Its memory.
        ranks_option, ranks_value: What decides the number of ranks.
    """

    ranks: int
    parts: Sequence[EstimatePart]
    ranks_option: str
    ranks_value: object

    @property
    def bytes(self) -> int:
        """Memory of all ranks together."""
        return BASE_BYTES + self.ranks * RANK_BYTES + sum(part.bytes for part in self.parts)

    def check(self, machine: Machine) -> None:
        """Refuse what this machine cannot do.

        Raises:
            InputError: There are too many ranks for the cores, or too little memory is free.
        """
        limit = max(int(RANKS_PER_CORE * machine.cores), 1)
        if self.ranks > limit:
            sentence = (
                f"{shown(self.ranks_value)} makes {self.ranks:,} ranks, and the limit is {limit:,}"
                f", {RANKS_PER_CORE} for each of {machine.cores:g} cores; use fewer, or --force"
            )
            raise InputError(self.ranks_option, sentence)
        if self.bytes > machine.free:
            ranks = EstimatePart(self.ranks_option, self.ranks_value, self.ranks * RANK_BYTES)
            cause = max((*self.parts, ranks), key=lambda part: part.bytes)
            sentence = (
                f"with {shown(cause.value)} the command needs about {_gigabytes(self.bytes)}, and "
                f"{_gigabytes(machine.free)} are free; lower it, or use --force"
            )
            raise InputError(cause.option, sentence)


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count < 10**15 else f"{count / 1e9:.1e} GB"


def check_seconds(option: str, value: object, seconds: float, limit: float) -> None:
    """Refuse work that takes too long.

    Raises:
        InputError: The estimate exceeds the limit.
    """
    if seconds > limit:
        sentence = (
            f"{shown(value)} takes about {seconds:,.0f} s, and the limit is {limit:,.0f} s; "
            "lower it, or use --force"
        )
        raise InputError(option, sentence)


def free_memory() -> int:
    """Bytes that the processes of this host, or of this container, may still take."""
    import psutil  # not at the top: the planner runs in a browser, too, which has none

    found = [psutil.virtual_memory().available]
    for folder in _cgroups():
        with contextlib.suppress(OSError, ValueError):  # "max" means no limit
            most = int((folder / "memory.max").read_text())
            used = int((folder / "memory.current").read_text())
            # The usage includes the cache of files, of which the kernel gives up this part.
            lines = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
            found.append(most - used + int(dict(lines).get("inactive_file", 0)))
    return min(found)


def usable_cpus() -> int:
    """Cores on which this process may run."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def _cores() -> float:
    found = [float(usable_cpus())]
    for folder in _cgroups():
        with contextlib.suppress(OSError, ValueError):
            quota, period = (folder / "cpu.max").read_text().split()
            found.append(int(quota) / int(period))
    return min(found)


def _cgroups() -> Iterator[Path]:
    """Folders of the control groups (version 2) that limit this process, outer ones included."""
    yield CGROUP  # of a container, whose own group is the root that it sees
    with contextlib.suppress(OSError):
        for line in OWN_CGROUPS.read_text().splitlines():
            own = CGROUP / line.rpartition(":")[2].lstrip("/")
            yield from (folder for folder in (own, *own.parents) if CGROUP in folder.parents)
