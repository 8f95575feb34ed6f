"""What was found: the first wrong tensor, or why none is named."""

from __future__ import annotations

from dataclasses import dataclass

MOST_TIMES = 1e9
"""The largest ratio of an error to its tolerance; where values are not finite, too."""


class Measured:
    """What differs from the reference by an error, of which rounding explains a part."""

    error: float
    tolerance: float

    @property
    def wrong(self) -> bool:
        """Whether rounding does not explain the difference."""
        return not self.error <= self.tolerance


@dataclass(frozen=True)
class Beside(Measured):
    """A tensor that belongs to the evidence.

    Attributes:
        what: Such as ``input query``.
        error: Difference from the reference, relative to the largest value of its tensor.
        tolerance: What rounding explains; 0 where values must be equal.
    """

    what: str
    error: float
    tolerance: float


@dataclass(frozen=True)
class Culprit:
    """The first computation whose inputs agree with the reference and whose result does not.

    No inputs are known of a gradient that no traced module computed, but code between modules or
    the pipeline stage behind. It is only the first wrong one that was compared, and is the whole
    evidence.

    Attributes:
        phase: ``data``, ``forward``, ``loss``, ``backward``, ``gradient`` (of a parameter, as ranks
            compute it), ``reduction`` (of gradients over ranks), ``scale`` (of all gradients),
            ``norm`` or ``optimizer``.
        module: Qualified name in the whole model; empty for the model itself.
        tensor: The first wrong tensor.
        step: Training step, from 1; the negative index of an evaluation.
        microbatches: From 0; empty where the phase comes after all of them.
        ranks: Ranks that hold the wrong tensor.
        positions: Wrong tokens of the sequences, as ranges of positions with their ends.
        samples: Indices of the wrong samples in their microbatch; of the wrong sequences in their
            pack where sequences are packed.
        computed_at: ``FILE:LINE`` of upstream's function that computed it.
        called_from: ``FILE:LINE`` of its caller; empty where it is not known.
        factor: What explains the difference, in words; empty where nothing simple does.
        evidence: The tensors that went in and came out.
        applied_at: In the backward, ``FILE:LINE`` of the forward that applied the function of
            autograd, and which application of the module it was; empty where it is not known.
    """

    phase: str
    module: str
    tensor: str
    step: int
    microbatches: tuple[int, ...]
    ranks: tuple[int, ...]
    positions: tuple[tuple[int, int], ...] = ()
    samples: tuple[int, ...] = ()
    error: float = 1.0
    tolerance: float = 0.0
    computed_at: str = ""
    called_from: str = ""
    factor: str = ""
    evidence: tuple[Beside, ...] = ()
    applied_at: str = ""


@dataclass(frozen=True)
class ModuleErrors:
    """How far the tensors of one module are from the reference in one phase.

    Attributes:
        phase: ``forward`` (outputs), ``backward`` (gradients of inputs), ``gradients`` (of
            parameters, after their reduction) or ``weights`` (after the step).
        ranks: Largest error over its tolerance on each rank of `ErrorMap.ranks`, at most
            `MOST_TIMES`; ``None`` where nothing was compared.
        blocks: The same for each block of positions over all ranks; empty for parameters.
    """

    module: str
    phase: str
    ranks: tuple[float | None, ...]
    blocks: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class ErrorMap:
    """The errors of all modules in one training step.

    Attributes:
        blocks: First position of each block, and the end of the last one.
        modules: Names in the order in which they are called first.
        rows: Errors by module and phase.
    """

    step: int
    ranks: tuple[int, ...]
    blocks: tuple[int, ...]
    modules: tuple[str, ...]
    rows: tuple[ModuleErrors, ...]


@dataclass(frozen=True)
class WrongPlace:
    """Where a run parts from its reference.

    Attributes:
        culprit: ``None`` where none is named.
        reason: Why none is named; empty otherwise.
        steps: Training steps that were compared.
        compared: Number of tensors that were compared up to the culprit.
        left_out: What was not compared, and why, each with the number of tensors.
        errors: How far each module is off in the step of the culprit; ``None`` without a culprit.
        unstable: How two runs of the launch differ, as with a race; empty where they do not.
        others: What else is wrong in the step of the culprit and does not follow from it.
    """

    culprit: Culprit | None
    reason: str
    steps: tuple[int, ...] = ()
    compared: int = 0
    left_out: tuple[tuple[str, int], ...] = ()
    errors: ErrorMap | None = None
    unstable: str = ""
    others: tuple[Culprit, ...] = ()
