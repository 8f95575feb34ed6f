"""What a run was told to do (Megatron-LM) and what Transformer Engine says it runs.

Megatron-LM prints on rank 0 a line that begins with "using world size:" and a dump of all
arguments, one per line, name and value joined by dots. Both are configuration and show no activity.

Transformer Engine prints "Running with config=" and a Python dict under ``NVTE_DEBUG=1
NVTE_DEBUG_LEVEL=2`` each time it selects an attention backend. Its ``context_parallel`` is true
only where the CP group handed over has more than one rank, so it is evidence of what runs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_STARTUP_BEGIN = "using world size: "
_DOTS = " .."
_STARTUP = re.compile(
    _STARTUP_BEGIN + r"([0-9]{1,9}), data-parallel size: ([0-9]{1,9}), "
    r"context-parallel size: ([0-9]{1,9}), "
    r"hierarchical context-parallel sizes: (None|\[[0-9, ]*\]),"
)
_ARGUMENT = re.compile(
    r"(?:^|\s)(cp_comm_type|context_parallel_size|hierarchical_context_parallel_sizes)"
    r" \.{2,} (\S.*)"
)
_ENGINE = "Running with config={'transformer_engine_version': "
_ENGINE_PARALLEL = re.compile(r"'context_parallel': (True|False)\b")
_ENGINE_TYPE = re.compile(r"'cp_comm_type': '([a-z0-9_+]{1,20})'")
_ENGINE_SIZE = re.compile(r"'cp_size': ([0-9]{1,9})\b")
_WORD = re.compile(r"[A-Za-z0-9_+]{1,20}")
_INTEGER = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class Configuration:
    """Megatron-LM's own words on context parallelism; ``None`` where the log does not say.

    Attributes:
        world_size: Ranks of the run; ``data_parallel_size`` and ``context_parallel_size`` likewise.
        hierarchical_sizes: Level sizes, inner first; empty where the run was given none.
        comm_types: The distinct values of ``cp_comm_type``, sorted.
    """

    world_size: int | None = None
    data_parallel_size: int | None = None
    context_parallel_size: int | None = None
    hierarchical_sizes: tuple[int, ...] | None = None
    comm_types: tuple[str, ...] | None = None


@dataclass(frozen=True)
class EngineLine:
    """One choice of an attention backend in Transformer Engine."""

    context_parallel: bool
    comm_type: str
    size: int | None


def parse_configuration(text: str) -> Configuration | None:
    """What one start-up line or one line of the argument dump says, or ``None``."""
    startup = _STARTUP.search(text) if _STARTUP_BEGIN in text else None
    if startup is not None:
        return Configuration(
            world_size=int(startup[1]),
            data_parallel_size=int(startup[2]),
            context_parallel_size=int(startup[3]),
            hierarchical_sizes=_integers(startup[4]),
        )
    argument = _ARGUMENT.search(text) if _DOTS in text else None
    if argument is None:
        return None
    name, value = argument[1], argument[2].rstrip()
    if name == "cp_comm_type":
        types = tuple(sorted(set(_WORD.findall(value)) - {"None"}))
        return Configuration(comm_types=types) if types else None
    if name == "hierarchical_context_parallel_sizes":
        return Configuration(hierarchical_sizes=_integers(value))
    return Configuration(context_parallel_size=int(value)) if _INTEGER.fullmatch(value) else None


def parse_engine(text: str) -> EngineLine | None:
    """What Transformer Engine's configuration line says of context parallelism, or ``None``."""
    found = text.find(_ENGINE)
    if found < 0:
        return None
    begin = found + len(_ENGINE)
    parallel = _ENGINE_PARALLEL.search(text, begin)
    comm_type = _ENGINE_TYPE.search(text, begin)
    if parallel is None or comm_type is None:
        return None
    size = _ENGINE_SIZE.search(text, begin)
    return EngineLine(parallel[1] == "True", comm_type[1], int(size[1]) if size else None)


def engine_text(counted: Sequence[tuple[EngineLine, int]]) -> str:
    """The variants of attention that ran, each with the number of lines that say so.

    >>> engine_text([(EngineLine(False, "p2p", 1), 3), (EngineLine(True, "p2p", 2), 1)])
    '3 lines without, 1 line with p2p over 2 ranks'
    """
    return ", ".join(
        f"{count} {'line' if count == 1 else 'lines'} "
        + (
            f"with {line.comm_type} over {line.size or 'an unknown number of'} ranks"
            if line.context_parallel
            else "without"
        )
        for line, count in counted
    )


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in _INTEGER.findall(text))
