"""What a command needs, compared with what this machine has, before anything starts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ringproof.errors import InputError

MEMINFO = Path("/proc/meminfo")
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
        free: Bytes of free memory; ``None`` if unknown.
    """

    cores: float
    free: int | None

    @classmethod
    def here(cls) -> Machine:
        """Read it from the kernel."""
        return cls(_cores(), free_memory())

    def share(self, ranks: int) -> int:
        """Return the memory limit of each of ``ranks``; 0 if the free memory is unknown."""
        return 0 if self.free is None else max(self.free // ranks, LEAST_LIMIT_BYTES)


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
            problem = (
                f"{self.ranks:,} ranks, and the limit is {limit:,}: {RANKS_PER_CORE} for each of "
                f"{machine.cores:g} cores"
            )
            remedy = "use fewer, or --force"
            raise InputError(self.ranks_option, self.ranks_value, problem, remedy)
        if machine.free is not None and self.bytes > machine.free:
            problem = (
                f"{_ranks(self.ranks)} about {_gigabytes(self.bytes)}, and "
                f"{_gigabytes(machine.free)} are free"
            )
            ranks = EstimatePart(self.ranks_option, self.ranks_value, self.ranks * RANK_BYTES)
            cause = max((*self.parts, ranks), key=lambda part: part.bytes)
            raise InputError(cause.option, cause.value, problem, "lower it, or use --force")


def _ranks(count: int) -> str:
    return "1 rank needs" if count == 1 else f"{count:,} ranks need"


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count < 10**15 else f"{count / 1e9:.1e} GB"


def check_seconds(option: str, value: object, seconds: float, limit: float) -> None:
    """Refuse work that takes too long.

    Raises:
        InputError: The estimate exceeds the limit.
    """
    if seconds > limit:
        problem = f"takes about {seconds:,.0f} s, and the limit is {limit:,.0f} s"
        raise InputError(option, value, problem, "lower it, or use --force")


def free_memory() -> int | None:
    """Bytes that the processes of this host, or of this container, may still take.

    A container's usage includes the cache of files, of which the kernel gives up the inactive part.
    """
    found = [in_table(MEMINFO, "MemAvailable:", 1024)]
    for folder in _cgroups("memory"):
        for limit, usage, cache in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),  # version 1
        ):
            for most, used in _numbers(folder, limit, usage):
                found.append(most - used + (in_table(folder / "memory.stat", cache, 1) or 0))
    return min((one for one in found if one is not None), default=None)


def usable_cpus() -> int:
    """Cores on which this process may run."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def _cores() -> float:
    found = [float(usable_cpus())]
    for folder in _cgroups("cpu"):
        for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):  # then version 1
            found += [quota / period for quota, period in _numbers(folder, *names) if quota > 0]
    return min(found)


def _numbers(folder: Path, *names: str) -> Iterator[tuple[int, int]]:
    """Yield the two numbers in files of a control group; none where it has no limit."""
    with contextlib.suppress(OSError, ValueError):
        first, second = " ".join((folder / name).read_text() for name in names).split()
        yield int(first), int(second)


def _cgroups(controller: str) -> Iterator[Path]:
    """Folders of the control groups that limit this process, those around its own included."""
    yield CGROUP
    yield CGROUP / controller
    try:
        lines = OWN_CGROUPS.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = CGROUP / controller if controllers else CGROUP
        own = top / path.lstrip("/")
        yield from (folder for folder in (own, *own.parents) if top in folder.parents)


def in_table(path: Path, name: str, unit: int) -> int | None:
    """Read a number of units from a file of the kernel, in bytes."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    rows = (line.split() for line in lines)
    return next((int(row[1]) * unit for row in rows if row[:1] == [name]), None)
