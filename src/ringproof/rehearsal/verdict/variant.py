"""Results of a rehearsal as values and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ringproof.launch.reading import Launch
from ringproof.launch.small.shrink import Change, SmallProgram
from ringproof.rehearsal.locate.result import WrongPlace
from ringproof.rehearsal.locate.saying import sentence
from ringproof.rehearsal.protocol.reports import SendRace
from ringproof.rehearsal.runs.outcome import Outcome
from ringproof.rehearsal.verdict.agreement import Agreement, Difference, compare
from ringproof.rehearsal.verdict.path import PathTaken
from ringproof.rehearsal.verdict.refusal import StopReason, refusal_of

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
NEEDS: Mapping[str, str] = MappingProxyType(
    {
        "apex": (
            "apex, whose fused weight gradient (fused_weight_gradient_mlp_cuda) is on no package "
            "index: without it upstream refuses this launch; build it with its CUDA extensions, or "
            "pass --no-gradient-accumulation-fusion"
        ),
        "causal-conv1d": "causal-conv1d, which pip compiles for the GPU: install it",
        "mamba-ssm": "mamba-ssm, which pip compiles for the GPU: install it",
    }
)
"""What a machine has to have where a stand-in computed in the place of a package."""
OTHER_ATTENTION = (
    "In this run Transformer Engine's attention was never called; Megatron-LM's own modules "
    "computed attention."
)
NOT_STARTED = Agreement(None, "It did not start, so no reference was run.")
Judge = Callable[[Outcome, Outcome, str], Agreement]


@dataclass(frozen=True)
class FullSizeRun:
    """What became of one rank of a launch at full size, without content.

    Attributes:
        refusal: Why upstream refuses it; ``None`` where it does not, or that is not known.
        unknown: Why that is not known; empty where it is.
    """

    refusal: StopReason | None = None
    unknown: str = ""


@dataclass(frozen=True)
class Variant:
    """One launch with one upstream, as it was rehearsed.

    Attributes:
        launch: The launch at its full size, with the path of its script in the upstream.
        small: Program that ran; ``None`` where upstream could not be imported.
        outcome: Result of the program; ``None`` where none was started.
        reference: Program without context parallelism; ``None`` where none was needed or made.
        refusal: Why the program did not run to its end; ``None`` where it did.
        mended: What upstream's package lacks and the rehearsal mended, a sentence each.
        doubles: Packages that were imported only, in the place of which empty doubles stood.
        does_without: Whether upstream does without the packages of `NEEDS` where they are absent.
        metrics: Sentences on metrics that differ from the reference where the training agrees.
        located: The first wrong tensor; ``None`` where none was looked for.
        traces: Folder in which traces are kept; ``None`` for none.
        full_size: The launch at full size; ``None`` where it was not run.
    """

    name: str
    launch: Launch
    megatron: str
    engine: str
    dtype: str
    path: PathTaken
    agreement: Agreement = NOT_STARTED
    small: SmallProgram | None = None
    outcome: Outcome | None = None
    reference: SmallProgram | None = None
    reference_outcome: Outcome | None = None
    refusal: StopReason | None = None
    mended: tuple[str, ...] = ()
    doubles: tuple[str, ...] = ()
    does_without: bool = False
    metrics: tuple[str, ...] = ()
    located: WrongPlace | None = None
    traces: Path | None = None
    full_size: FullSizeRun | None = None

    @property
    def full_size_refusal(self) -> StopReason | None:
        """Why upstream refuses at full size what starts in small; ``None`` where it does not."""
        return None if self.full_size is None else self.full_size.refusal

    def compared(self, small: SmallProgram, expected: Outcome, judge: Judge = compare) -> Variant:
        """Return the variant with the verdict against its reference, which has run."""
        assert self.outcome is not None
        failure, first = expected.failure, self.agreement.reason if self.reference else ""
        if failure is None:
            agreement = judge(self.outcome, expected, self.dtype)
            less = "This is against the same program with TP 1 and PP 1, too."
            if first:
                said = " ".join((f"{agreement.reason.rstrip('.')}.", less, first))
                agreement = replace(agreement, reason=said)
        else:
            what = "The same with TP 1 and PP 1, too," if first else "The reference without CP"
            said = refusal_of(failure, expected.ranks).message
            where = f"{failure.place}: " if failure.place else ""
            said = f"{what} did not run: {where}{said} (logs in {expected.folder})"
            if not (failure.ours or first):
                said += ". The launch's own code fails without CP"
            agreement = Agreement(False, f"{first} {said}.".lstrip())
        return replace(self, reference=small, reference_outcome=expected, agreement=agreement)

    @property
    def starts(self) -> bool:
        """Whether the program ran to its end."""
        return self.refusal is None

    @property
    def losses(self) -> Mapping[int, Mapping[str, float]]:
        """Losses by training step."""
        return {} if self.outcome is None else self.outcome.losses

    @property
    def races(self) -> tuple[SendRace, ...]:
        """Tensors that upstream released or overwrote while they were being sent."""
        return () if self.outcome is None else self.outcome.races

    @property
    def needs(self) -> Mapping[str, str]:
        """What the launch needs besides upstream, and what the rehearsal stood in for."""
        if self.outcome is None or self.does_without:
            return {}
        return {name: NEEDS[name] for name in self.outcome.packages}

    @property
    def passed(self) -> bool:
        """Whether it starts, takes the path asked for, has no race, and agrees if compared."""
        right = self.agreement.agrees is not False and not self.races
        right = right and self.full_size_refusal is None
        return self.starts and self.path.as_requested and right

    @property
    def changes(self) -> tuple[Change, ...]:
        """What was shrunk."""
        return () if self.small is None else self.small.changes

    @property
    def own_attention(self) -> bool:
        """Whether Transformer Engine's own attention module computed, or nothing did."""
        return bool(self.path.taken) or not self.starts

    @property
    def headline(self) -> str:
        """The verdict in one sentence."""
        if self.refusal is not None:
            return headline_of(self.refusal)
        if self.full_size_refusal is not None:
            said = headline_of(self.full_size_refusal)
            return said.replace("It is", "It starts in small, and at full size it is", 1)
        if not self.path.as_requested:
            return f"It starts, but not on the path asked for. {self.path.departures[0]}"
        unsaid = self.agreement.other_tokens or self.agreement.first is None
        if self.agreement.agrees is False and unsaid:
            unknown = "It starts on the path asked for, but whether it is right is not known."
            return f"{unknown} {self.agreement.reason}"
        if self.agreement.agrees is False:
            return f"It starts on the path asked for, but it is not right. {self.agreement.reason}"
        if self.races:
            return f"It starts on the path asked for, but it has a race: {self.races[0]}."
        if self.agreement.agrees is None:
            return f"It starts. {self.agreement.reason}"
        agrees = f"It starts, takes the path asked for ({self.path.requested}), and agrees."
        return f"{agrees}{self.not_exercised}"

    @property
    def not_exercised(self) -> str:
        """The CP sizes of which the rehearsal shows nothing, in a sentence; empty for none."""
        unused = self.path.unused_sizes
        if not unused:
            return ""
        sizes = " and ".join(map(str, unused))
        return f" No microbatch used CP size {sizes}, so nothing is shown of groups of that size."


@dataclass(frozen=True)
class Rehearsal:
    """One or two variants, rehearsed.

    Attributes:
        between: Losses and gradient norms of ``main`` against those of ``against``; ``None``
            where one of them has none.
        seconds: Wall-clock time of everything, downloads and imports included.
        located: First tensor of ``against`` that ``main`` does not have, where each agrees with its
            own reference and they differ; ``None`` where none was looked for.
    """

    main: Variant
    against: Variant | None
    between: Agreement | None
    seconds: float
    located: WrongPlace | None = None

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
    return {
        "version": VERSION,
        "passed": rehearsal.passed,
        **_variant(rehearsal.main),
        "against": rehearsal.against and _variant(rehearsal.against),
        "between": rehearsal.between and _agreement(rehearsal.between),
        "located_between": rehearsal.located and _located(rehearsal.located),
        "code": dict(CODE),
        "seconds": round(rehearsal.seconds, 2),
    }


def headline_of(refusal: StopReason) -> str:
    """Say in one sentence why a run did not end."""
    where = f"{refusal.file}:{refusal.line}" if refusal.file else ""
    message = refusal.message
    if len(message) > MOST_MESSAGE:
        message = f"{message[:MOST_MESSAGE]} ..."
    at = f" at {where}" if where else ""
    if refusal.symbol:
        return f"It calls {refusal.symbol}{at}, which the rehearsal has no stand-in for."
    if refusal.package:
        return (
            f"Whether it starts cannot be said here: it needs {refusal.package}, which is not "
            f"installed and has no stand-in{at}: {message}"
        )
    if refusal.kind == "memory":
        return (
            "Whether it starts cannot be said here: memory ran out, and rank "
            f"{refusal.rank} {message}"
        )
    if refusal.cause:
        return (
            f"It trains until a result is not finite ({refusal.cause}), and ends with another "
            f"error while that is reported{at}: {message}"
        )
    if refusal.kind == "hung":
        return f"It hangs after {refusal.iteration} iterations: {message}"
    if refusal.kind == "import":
        if refusal.raised_in:
            called = f", called{at}" if at else ""
            return (
                f"Upstream's imports fail in {refusal.raised_in}{called}, which is not upstream's "
                f"code, and may be the fault of this torch or of the rehearsal: {message}"
            )
        return f"Upstream cannot be imported: {message}{at}"
    if refusal.kind in ("died", "timeout"):
        who = "it was" if refusal.kind == "timeout" else ""
        who = who if refusal.rank is None else f"rank {refusal.rank}"
        return f"It does not end well: {f'{who} {message}'.lstrip()}"
    when = f" after {refusal.iteration} iterations" if refusal.iteration else ""
    return f"It is refused{when} by rank {refusal.rank}{at}: {message}"


def _variant(variant: Variant) -> dict[str, Any]:
    agreement, path = _agreement(variant.agreement), variant.path
    requested = {**asdict(path.requested), "text": str(path.requested)}
    launch = ("source", "script", "ranks", "notes")
    return {
        "name": variant.name,
        "headline": variant.headline,
        "starts": variant.starts,
        "refused_by": variant.refusal and asdict(variant.refusal),
        "takes_path_asked_for": path.as_requested if variant.starts else None,
        "path": {**asdict(path), "requested": requested},
        "races": [asdict(race) for race in variant.races],
        "needs": dict(variant.needs),
        "mended": list(variant.mended),
        "doubles": variant.doubles,
        "metrics": variant.metrics,
        "full_size": variant.full_size and asdict(variant.full_size),
        "agrees": agreement["agrees"],
        "largest_relative_difference": agreement["largest_relative_difference"],
        "agreement": agreement,
        "located": variant.located and _located(variant.located),
        "traces": variant.traces and str(variant.traces),
        "shrunk": [asdict(change) for change in variant.changes],
        "launch": {name: getattr(variant.launch, name) for name in launch},
        "megatron": variant.megatron,
        "transformer_engine": variant.engine,
        "attention_by_transformer_engine": variant.own_attention if variant.starts else None,
        "feature": "" if variant.small is None else path.requested.feature,
        "dtype": variant.dtype,
        "program": _program(variant.small, variant.outcome),
        "reference": _program(variant.reference, variant.reference_outcome),
    }


def _located(location: WrongPlace) -> dict[str, Any]:
    return {"sentence": sentence(location), **asdict(location)}


def _agreement(agreement: Agreement) -> dict[str, Any]:
    loss, norm = agreement.largest_loss, agreement.largest_grad_norm
    return {
        "agrees": agreement.agrees,
        "reason": agreement.reason,
        "largest_relative_difference": loss and loss.relative,
        "largest_relative_difference_of_grad_norm": norm and norm.relative,
        "first_difference": agreement.first and _difference(agreement.first),
        "tolerance": agreement.tolerance and asdict(agreement.tolerance),
        "compared": [_difference(item) for item in agreement.differences],
    }


def _difference(item: Difference) -> dict[str, Any]:
    names = ("name", "iteration", "value", "reference", "relative", "tolerance")
    return {name: getattr(item, name) for name in names}


def _program(small: SmallProgram | None, outcome: Outcome | None) -> dict[str, Any] | None:
    if small is None:
        return None
    names = ("script", "arguments", "environment", "ranks")
    data = {name: getattr(small, name) for name in names}
    if outcome is not None:
        data.update(
            seconds=round(outcome.seconds, 2),
            memory_bytes=outcome.memory_bytes,
            logs=str(outcome.folder),
            losses=outcome.losses,
            evaluations=outcome.evaluations,
            grad_norms=outcome.grad_norms,
            tokens={step: count for step, (count, _) in outcome.tokens.items()},
        )
    return data
