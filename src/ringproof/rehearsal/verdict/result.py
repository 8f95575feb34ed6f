"""Results of a rehearsal as values and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ringproof.rehearsal.program import SendRace
from ringproof.rehearsal.running import Outcome
from ringproof.rehearsal.small.shrink import Change, Small
from ringproof.rehearsal.verdict.agreement import GRAD_NORM, Agreement, Difference, Refusal
from ringproof.rehearsal.verdict.path import PathCount, PathTaken

VERSION = 1
MOST_MESSAGE = 240  # characters of a message in a headline
CODE: Mapping[str, str] = MappingProxyType(
    {
        "upstream": (
            "Megatron-LM's program, parallel state, schedules, models, losses and optimizers; "
            "Transformer Engine's DotProductAttention, context_parallel.py and layers."
        ),
        "stand_ins": (
            "The CPU computes in place of a GPU, gloo communicates in place of NCCL, and PyTorch "
            "computes in place of Transformer Engine's compiled extension (GEMM, norms, the "
            "attention of one rank, helpers for packed sequences, optimizer kernels)."
        ),
        "cannot_show": (
            "Speed, memory on GPUs, the numerics of GPU kernels, NCCL's behaviour, races between "
            "streams, and the capture of CUDA graphs."
        ),
    }
)
OTHER_ATTENTION = (
    "In this run Transformer Engine's attention was never called; Megatron-LM's own modules "
    "computed attention."
)


@dataclass(frozen=True)
class Variant:
    """One launch with one upstream, as it was rehearsed.

    Attributes:
        source: File, or command line, that the launch was read from.
        ranks: World size of the launch.
        small: Program that ran; ``None`` where upstream could not be imported.
        reference: Program without context parallelism; ``None`` where none was needed or made.
        outcome: What became of the program; ``None`` where none was started.
        refusal: Why the program did not run to its end; ``None`` where it did.
        notes: Sentences about the launch that its reader could not follow.
    """

    name: str
    source: str
    script: str
    ranks: int
    megatron: str
    engine: str
    dtype: str
    small: Small | None
    reference: Small | None
    outcome: Outcome | None
    reference_outcome: Outcome | None
    refusal: Refusal | None
    path: PathTaken
    agreement: Agreement
    notes: tuple[str, ...] = ()

    @property
    def starts(self) -> bool:
        """Whether the program ran to its end."""
        return self.refusal is None

    @property
    def has_losses(self) -> bool:
        """Whether any training step logged losses."""
        return self.outcome is not None and bool(self.outcome.losses)

    @property
    def races(self) -> tuple[SendRace, ...]:
        """Tensors that upstream released or overwrote while they were being sent."""
        return () if self.outcome is None else self.outcome.races

    @property
    def passed(self) -> bool:
        """Whether it starts, takes the path asked for, has no race, and agrees if compared."""
        right = self.agreement.agrees is not False and not self.races
        return self.starts and self.path.as_asked and right

    @property
    def changes(self) -> tuple[Change, ...]:
        """What was shrunk."""
        return () if self.small is None else self.small.changes

    @property
    def own_attention(self) -> bool:
        """Whether Transformer Engine's own attention module computed, or nothing did."""
        return bool(self.path.total) or not self.starts

    @property
    def headline(self) -> str:
        """The verdict in one sentence."""
        if self.refusal is not None:
            return _refused(self.refusal)
        if not self.path.as_asked:
            return f"It starts, but not on the path asked for. {self.path.departures[0]}"
        if self.agreement.agrees is False and not self.agreement.differences:
            unknown = "It starts on the path asked for, but whether it is right is not known."
            return f"{unknown} {self.agreement.reason}"
        if self.agreement.agrees is False:
            return f"It starts on the path asked for, but it is not right. {self.agreement.reason}"
        if self.races:
            return f"It starts on the path asked for, but it has a race: {self.races[0]}."
        if self.agreement.agrees is None:
            return f"It starts. {self.agreement.reason}"
        return f"It starts, takes the path asked for ({self.path.asked}), and agrees."


@dataclass(frozen=True)
class Rehearsal:
    """One or two variants, rehearsed.

    Attributes:
        between: Losses and gradient norms of ``main`` against those of ``against``; ``None``
            where one of them has none.
        seconds: Wall-clock time of everything, downloads and imports included.
    """

    main: Variant
    against: Variant | None
    between: Agreement | None
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether every variant passed."""
        return all(variant.passed for variant in self.variants)

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The launch, and its variant where there is one."""
        return (self.main,) if self.against is None else (self.main, self.against)

    @property
    def headline(self) -> str:
        """The verdict in one sentence for each variant."""
        if self.against is None:
            return self.main.headline
        said = ("passes" if variant.passed else "does not pass" for variant in self.variants)
        names = (variant.name for variant in self.variants)
        return "; ".join(f"{name} {verdict}" for name, verdict in zip(names, said, strict=True))


def as_json(rehearsal: Rehearsal) -> dict[str, Any]:
    """Return a rehearsal as what JSON can hold."""
    data = {"version": VERSION, "passed": rehearsal.passed, **_variant(rehearsal.main)}
    data["against"] = None if rehearsal.against is None else _variant(rehearsal.against)
    between = rehearsal.between
    data["between"] = None if between is None else _agreement(between)
    data["code"] = dict(CODE)
    data["seconds"] = round(rehearsal.seconds, 2)
    return data


def _refused(refusal: Refusal) -> str:
    where = f"{refusal.file}:{refusal.line}" if refusal.file else ""
    message = refusal.message
    if len(message) > MOST_MESSAGE:
        message = f"{message[:MOST_MESSAGE]} ..."
    at = f" at {where}" if where else ""
    if refusal.symbol:
        return f"It calls {refusal.symbol}{at}, which the rehearsal has no stand-in for."
    if refusal.kind == "hung":
        return f"It hangs after {refusal.iteration} iterations: {message}"
    if refusal.kind == "import":
        return f"Upstream cannot be imported: {message}{at}"
    if refusal.kind in ("died", "timeout"):
        return f"It does not end well: rank {refusal.rank} {message}"
    when = f" after {refusal.iteration} iterations" if refusal.iteration else ""
    return f"It is refused{when} by rank {refusal.rank}{at}: {message}"


def _variant(variant: Variant) -> dict[str, Any]:
    agreement = variant.agreement
    return {
        "name": variant.name,
        "headline": variant.headline,
        "starts": variant.starts,
        "refused_by": _refusal(variant.refusal),
        "takes_path_asked_for": variant.path.as_asked if variant.starts else None,
        "path": _path(variant.path),
        "races": [dataclasses.asdict(race) for race in variant.races],
        "agrees": agreement.agrees,
        "largest_relative_difference": _relative(agreement.largest_loss),
        "agreement": _agreement(agreement),
        "shrunk": [dataclasses.asdict(change) for change in variant.changes],
        "launch": {
            "source": variant.source,
            "script": variant.script,
            "ranks": variant.ranks,
            "notes": list(variant.notes),
        },
        "megatron": variant.megatron,
        "transformer_engine": variant.engine,
        "attention_by_transformer_engine": variant.own_attention if variant.starts else None,
        "feature": "" if variant.small is None else variant.small.feature,
        "dtype": variant.dtype,
        "program": _program(variant.small, variant.outcome),
        "reference": _program(variant.reference, variant.reference_outcome),
    }


def _relative(difference: Difference | None) -> float | None:
    return None if difference is None else difference.relative


def _refusal(refusal: Refusal | None) -> dict[str, Any] | None:
    if refusal is None:
        return None
    data = dataclasses.asdict(refusal)
    data["waiting"] = {str(rank): text for rank, text in refusal.waiting.items()}
    return data


def _agreement(agreement: Agreement) -> dict[str, Any]:
    tolerance = agreement.tolerance
    return {
        "agrees": agreement.agrees,
        "reason": agreement.reason,
        "largest_relative_difference": _relative(agreement.largest_loss),
        "largest_relative_difference_of_grad_norm": _relative(agreement.largest_grad_norm),
        "first_difference": _difference(agreement.first),
        "tolerance": None if tolerance is None else dataclasses.asdict(tolerance),
        "compared": [_difference(item) for item in agreement.differences],
    }


def _difference(difference: Difference | None) -> dict[str, Any] | None:
    return None if difference is None else dataclasses.asdict(difference)


def _program(small: Small | None, outcome: Outcome | None) -> dict[str, Any] | None:
    if small is None:
        return None
    data: dict[str, Any] = {
        "script": small.script,
        "arguments": list(small.arguments),
        "environment": dict(small.environment),
        "ranks": small.ranks,
    }
    if outcome is not None:
        data.update(
            seconds=round(outcome.seconds, 2),
            memory_bytes=outcome.memory_bytes,
            logs=str(outcome.folder),
            losses={str(step): losses for step, losses in outcome.losses.items()},
            evaluations=[dict(losses) for losses in outcome.evaluations],
        )
        data[GRAD_NORM.replace(" ", "_") + "s"] = {
            str(step): norm for step, norm in outcome.grad_norms.items()
        }
    return data


def _path(path: PathTaken) -> dict[str, Any]:
    return {
        "asked": {**dataclasses.asdict(path.asked), "text": str(path.asked)},
        "taken": _counts(path.total),
        "departures": list(path.departures),
        "remarks": list(path.remarks),
        "layers": {str(layer): _counts(counts) for layer, counts in path.by_layer.items()},
        "ranks": {str(rank): _counts(counts) for rank, counts in path.by_rank.items()},
        "evaluation": _counts(path.evaluation),
        "recomputed": _counts(path.recomputed),
        "microbatches": [dataclasses.asdict(item) for item in path.microbatches],
        "cp_sizes": {str(size): number for size, number in path.cp_sizes.items()},
        "groups": [dataclasses.asdict(group) for group in path.groups],
        "tokens": {str(rank): number for rank, number in path.tokens.items()},
        "idle_ranks": list(path.idle_ranks),
    }


def _counts(counts: tuple[PathCount, ...]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(count) for count in counts]
