"""A program that is rehearsed, and the upstream code that it runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ringproof.rehearsal.protocol.trace import TraceRequest

CALLING = str(Path(__file__).parents[1] / "rank" / "calling.py")
WHEELS = Path(__file__).parents[1] / "wheels"
"""Programs of ours in the place of those that wheels of Megatron lack."""


@dataclass(frozen=True)
class Upstream:
    """Folders of upstream code that a program imports.

    Attributes:
        megatron: Folder that holds ``megatron`` and, in a checkout, the training scripts.
        megatron_name: The version or commit, for people.
        engine: Folder that holds ``transformer_engine``.
        helpers: Megatron's compiled dataset helpers, its own for this Python or built outside the
            checkout; ``None`` where it has no source of them.
        extra: Further folders that are imported from, such as Megatron-Bridge's ``src``.
        programs: Folder of ours with programs that Megatron's folder lacks; ``None`` for none.
        lacks: What upstream's package lacks and the run mended, a sentence each.
        hidden: Packages without which its ranks run even where they are installed.
    """

    megatron: Path
    megatron_name: str
    engine: Path
    engine_version: str
    helpers: Path | None
    extra: tuple[Path, ...] = ()
    programs: Path | None = None
    lacks: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()

    @property
    def engine_name(self) -> str:
        """Transformer Engine's version, with its folder where that is not an unpacked wheel."""
        checkout = (self.engine / "build_tools").is_dir()
        return (
            f"{self.engine_version} (dir:{self.engine.name})" if checkout else self.engine_version
        )

    def program(self, name: str) -> Path | None:
        """Return the file of a training program by its name, or ``None`` without one."""
        folders = (self.megatron, *((self.programs,) if self.programs else ()))
        return next((path for at in folders if (path := at / name).is_file()), None)

    @property
    def roots(self) -> tuple[Path, ...]:
        """All folders of upstream code."""
        return (*self.extra, self.megatron, self.engine)

    def relative(self, text: str) -> str:
        """Return a text with paths relative to the folders of upstream code."""
        for root in self.roots:
            text = text.replace(f"{root}/", "")
        return text


ROUTINGS = ("balanced", "worst")
"""Where tokens without content go: to every expert as many, or all to those of the rank."""


@dataclass(frozen=True)
class FullSize:
    """How a program is run at full size, where large tensors have no content.

    Attributes:
        ranks: Ranks that are run; the others are only numbers.
        node: Ranks of a node.
        together: Whether these ranks exchange whole numbers; otherwise each runs by itself.
        computes: Whether everything is computed, on all ranks, to compare; only the memory is
            counted then.
        routing: One of `ROUTINGS`.
        first: Microbatches of the first step, which makes the optimizer's states; 0 for all.
    """

    ranks: tuple[int, ...] = (0,)
    node: int = 8
    together: bool = False
    computes: bool = False
    routing: str = ROUTINGS[0]
    first: int = 0


@dataclass(frozen=True)
class Program:
    """One training program on some ranks.

    Attributes:
        script: Name of the script, as `Upstream.program` finds it, or a path to one.
        dtype: Dtype besides bfloat16 in which Transformer Engine's attention may run.
        faults: Planted defects, ``module:function`` each, called in every rank before the script.
        same_weights: Whether weights are drawn by their global place, so that every layout of
            ranks starts from the same model.
        listens: Whether each rank reports which functions of upstream ran, for which it is slower
            before Python 3.12.
        full_size: Set for a run at full size, whose ranks report their memory.
        trace: Set for a run that records what crosses the borders of modules.
    """

    upstream: Upstream
    script: str
    arguments: tuple[str, ...]
    ranks: int
    environment: Mapping[str, str] = field(default_factory=dict)
    dtype: str = "float32"
    faults: tuple[str, ...] = ()
    same_weights: bool = True
    listens: bool = False
    full_size: FullSize | None = None
    trace: TraceRequest | None = None

    @property
    def started(self) -> tuple[int, ...]:
        """Ranks that are run."""
        if self.full_size is None or self.full_size.computes:
            return tuple(range(self.ranks))
        return self.full_size.ranks

    @property
    def exchanges(self) -> bool:
        """Whether its ranks run without content and exchange whole numbers."""
        size = self.full_size
        return size is not None and size.together and not size.computes and len(size.ranks) > 1

    @property
    def file(self) -> Path:
        """The file of the script."""
        return self.upstream.program(self.script) or Path(self.script)


def calling(
    upstream: Upstream, function: str, argument: Any, ranks: int = 1, *, dtype: str = "float32"
) -> Program:
    """Return a program that calls ``module:function`` with a JSON value in every rank.

    What the function returns becomes the ``results`` of each rank's report.
    """
    return Program(upstream, CALLING, (function, json.dumps(argument)), ranks, dtype=dtype)
