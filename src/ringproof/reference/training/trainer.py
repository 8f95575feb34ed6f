"""The training loop: plan, move, compute, reduce, update.

Every rank plans each step from the lengths of all sequences, and the plans are compared before any
communication. A microbatch carries its CP group to the layers, so no module stores a group. Losses
are divided by counts of the whole global batch, so they only have to be summed, independent of the
packing.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median_high
from typing import Any

import torch
import torch.distributed as dist

from ringproof.errors import InputError
from ringproof.reference.graphs.backend import CaptureBackend
from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.planning.elementwise import IntArray
from ringproof.reference.training import checkpoint
from ringproof.reference.training.agreement import check_agreement, refuse_together
from ringproof.reference.training.assembly import Assembly, assembly, sampler_of
from ringproof.reference.training.banks import check_slots, replayed_in_step
from ringproof.reference.training.data import Documents
from ringproof.reference.training.gradients import (
    clip_gradients,
    gradient_norm,
    learning_rate,
    reduce_gradients,
    set_learning_rate,
    sum_losses,
)
from ringproof.reference.training.options import TrainOptions
from ringproof.reference.training.records import (
    EvaluationRecord,
    GraphsRecord,
    GraphTotals,
    Record,
    RunRecord,
    StepRecord,
)
from ringproof.reference.training.routing import owned_documents, route_batches
from ringproof.reference.training.schedules import StepPlan, check_plan, plan_digest, plan_step

Report = Callable[[Record], None]


@dataclass(frozen=True)
class Summary:
    """Summary of a run.

    Args:
        steps: Steps done, including those before the run was resumed.
        first_loss, last_loss: Loss of the first and of the last step of this run.
        tokens_per_second: Median over the steps.
        resumed_at: Steps done before this run was resumed; 0 for a new run.
    """

    steps: int
    first_loss: float
    last_loss: float
    tokens_per_second: float
    resumed_at: int
    graphs: GraphsRecord | None
    graph_totals: GraphTotals | None

    def as_json(self) -> dict[str, Any]:
        """Return the summary as plain data, without the parts that a run does not have."""
        records = {"graphs": self.graphs, "graph_totals": self.graph_totals}
        own = {name: value for name, value in asdict(self).items() if name not in records}
        return {**own, **{name: one.as_json() for name, one in records.items() if one is not None}}


def train(
    options: TrainOptions,
    device: torch.device,
    report: Report,
    *,
    backend: CaptureBackend | None = None,
    timeout: timedelta | None = None,
) -> Summary:
    """Run the training, and report each record on every rank. A collective over the world.

    The backend captures CUDA graphs; it is needed only with ``--graphs bank``.

    Raises:
        InputError: Options, data or checkpoint cannot be used, ranks do not agree on a plan, or a
            loss or gradient norm is not finite. Such a step is reported, but not saved.
    """
    if options.keeping.save and not options.keeping.resume:
        checkpoint.check_unused(Path(options.keeping.save))
    folder, every = Path(options.keeping.save), options.keeping.save_every
    with assembly(options, device, timeout, backend=backend) as parts:
        start = checkpoint.load(folder, parts) if options.keeping.resume else 0
        report(_run_record(options, device))
        if parts.graphs is not None:
            report(parts.graphs)
        records = []
        for step in range(start, options.optimiser.steps):
            records.append(train_step(parts, step))
            report(records[-1])
            check_finite(records[-1])
            if _due(step + 1, options.keeping.evaluate_every):
                report(evaluate(parts, step + 1))
            last = step + 1 == options.optimiser.steps
            if options.keeping.save and (last or _due(step + 1, every)):
                checkpoint.save(folder, parts, step + 1)
        totals = None
        if parts.graphs is not None and records:
            totals = GraphTotals.of_steps(parts.schedule.sizes, records)
            report(totals)
        return Summary(
            steps=start + len(records),
            first_loss=records[0].loss if records else math.nan,
            last_loss=records[-1].loss if records else math.nan,
            tokens_per_second=median_high([one.tokens_per_second for one in records] or [0.0]),
            resumed_at=start,
            graphs=parts.graphs,
            graph_totals=totals,
        )


def train_step(parts: Assembly, step: int) -> StepRecord:
    """Run one optimizer step, counted from 0. The record is the same on every rank.

    Raises:
        InputError: A sequence does not fit, or ranks do not agree on the plan.
    """
    started = time.perf_counter()
    what = f"plan of step {step + 1}"
    plan = agreed_plan(parts, parts.data.training, parts.sampler.indices(step), what)
    check_slots(parts.options, plan)
    for bank in parts.banks:
        bank.begin()
    values, norm, rate = update(parts, _batches(parts, plan, parts.data.training), step)
    replayed, eager = replayed_in_step(parts.banks, parts.schedule.sizes, parts.device)
    metrics = plan.plan.metrics
    return StepRecord(
        step=step + 1,
        loss=sum(values),
        losses=dict(zip(parts.loss_names, values, strict=True)),
        grad_norm=norm,
        learning_rate=rate,
        samples=(step + 1) * parts.options.batch.global_batch,
        tokens=plan.tokens,
        rows=plan.rows,
        step_seconds=time.perf_counter() - started,
        planning_seconds=metrics.planning_seconds,
        microbatches=plan.groups,
        cp_histogram=metrics.cp_histogram,
        graph_replays=replayed,
        graph_eager=eager,
    )


def update(
    parts: Assembly, batches: list[PackedBatch], step: int
) -> tuple[list[float], float, float]:
    """Compute the gradients of a global batch, and update the parameters.

    Returns:
        The losses by ``parts.loss_names``, the gradient norm before clipping, the learning rate.
    """
    losses = parts.runner.train(batches)
    reduce_gradients(parts.parameters, parts.reduction)
    norm = gradient_norm(parts.parameters, parts.reduction)
    options = parts.options.optimiser
    clip_gradients(parts.parameters, norm, options.clip)
    rate = learning_rate(step, options)
    set_learning_rate(parts.optimiser, rate)
    parts.optimiser.step()
    parts.optimiser.zero_grad(set_to_none=True)
    values = sum_losses(losses, parts.loss_names, parts.reduction, parts.device).tolist()
    return values, norm.item(), rate


def check_finite(record: StepRecord) -> None:
    """Refuse to continue with parameters that are lost; all ranks have the same numbers.

    Raises:
        InputError: Loss or gradient norm is infinite or NaN.
    """
    for name, value in (("loss", record.loss), ("grad_norm", record.grad_norm)):
        if not math.isfinite(value):
            problem = f"{value} is not a finite number (step {record.step})"
            raise InputError(name, f"{problem}; lower --learning-rate or use another --dtype")


def evaluate(parts: Assembly, step: int) -> EvaluationRecord:
    """Compute the objective on held-out documents, which are the same in each evaluation.

    The result is the mean over global batches, each divided by its own count of valid tokens.
    """
    documents, count = parts.data.evaluation, parts.options.keeping.evaluate_batches
    sampler = sampler_of(parts.options, documents)
    totals = [0.0] * len(parts.loss_names)
    for batch in range(count):
        what = f"plan of evaluation batch {batch + 1}"
        plan = agreed_plan(parts, documents, sampler.indices(batch), what)
        losses = parts.runner.evaluate(_batches(parts, plan, documents))
        values = sum_losses(losses, parts.loss_names, parts.reduction, parts.device).tolist()
        totals = [total + value / count for total, value in zip(totals, values, strict=True)]
    return EvaluationRecord(
        step=step,
        loss=sum(totals),
        losses=dict(zip(parts.loss_names, totals, strict=True)),
    )


def agreed_plan(parts: Assembly, documents: Documents, indices: IntArray, what: str) -> StepPlan:
    """Plan a global batch on each rank, and check that all ranks have the same plan.

    Raises:
        InputError: A document does not fit, the plan is not legal, or ranks have different plans,
            in which case the message names them. A group that does not exist would cause a hang.
    """

    def planned() -> StepPlan:
        plan = plan_step(
            documents.lengths[indices],
            parts.schedule,
            documents=indices,
            names=[documents.name(index) for index in indices.tolist()],
        )
        check_plan(plan, what, multiple=parts.schedule.microbatch_multiple)
        return plan

    plan = refuse_together(planned)
    check_agreement(plan_digest(plan), what=what)
    return plan


def _batches(parts: Assembly, plan: StepPlan, documents: Documents) -> list[PackedBatch]:
    """Build this rank's microbatches by one exchange of the loaded rows.

    Raises:
        InputError: A rank cannot read a document. All ranks raise.
    """
    rank = parts.groups.domain_rank
    owned = refuse_together(lambda: owned_documents(documents, plan, rank))
    return route_batches(plan, owned, parts.groups, parts.needs)


def _due(done: int, every: int) -> bool:
    return every > 0 and done % every == 0


def _run_record(options: TrainOptions, device: torch.device) -> RunRecord:
    environment = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "backend": dist.get_backend(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
    }
    ranks = dist.get_world_size()
    return RunRecord(arguments=asdict(options), world_size=ranks, environment=environment)
