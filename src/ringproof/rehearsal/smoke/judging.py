"""What the logs of both programs show: process groups, markers, and losses side by side."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringproof import __version__
from ringproof.errors import InputError
from ringproof.logs.groups.judge import GroupsReport, read_groups
from ringproof.logs.groups.output import as_text
from ringproof.logs.training.compare import SeriesComparison, compare_logs
from ringproof.logs.training.quantities import parse_columns
from ringproof.logs.training.read import read_log
from ringproof.prove.environment import Environment
from ringproof.rehearsal.protocol.trace import HEAD
from ringproof.rehearsal.smoke.launcher import rank_logs
from ringproof.rehearsal.smoke.pair import Pair, PairProgram
from ringproof.rehearsal.verdict.agreement import TOLERANCES

FORMAT = 1
LOSS_LINE = r"iteration\s+\d+/\s*\d+.*lm loss"
SERIES = ("loss", "grad_norm")


@dataclass(frozen=True)
class LogEvidence:
    """What the logs of one program show; ``groups`` is ``None`` where there are no logs."""

    program: PairProgram
    groups: GroupsReport | None
    problems: tuple[str, ...]


@dataclass(frozen=True)
class SmokeVerdict:
    """The judgement on a smoke run.

    Attributes:
        losses: Loss and gradient norm side by side; empty where a program logged none.
        problems: What is wrong, one sentence each.
    """

    pair: Pair
    shown: tuple[LogEvidence, ...]
    losses: tuple[SeriesComparison, ...]
    problems: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def judge(pair: Pair, problems: tuple[str, ...] = ()) -> SmokeVerdict:
    """Read the logs of both programs and compare them.

    Args:
        problems: What is known to be wrong already.
    """
    shown = tuple(_shown(pair, program) for program in pair.programs)
    found = [*problems, *(problem for one in shown for problem in one.problems)]
    losses: tuple[SeriesComparison, ...] = ()
    try:
        losses = tuple(_compared(pair))
    except InputError as error:
        found.append(f"losses cannot be compared: {error}")
    found += [
        f"{one.name} differs by {_largest(one):.1e} at most, beyond {_tolerance(pair, one.name):g}"
        for one in losses
        if not one.within
    ]
    return SmokeVerdict(pair, shown, losses, tuple(found))


def _shown(pair: Pair, program: PairProgram) -> LogEvidence:
    files = rank_logs(pair.folder(program))
    # Two files of each rank: what it printed, and its errors.
    if len(files) < 2 * pair.setting.ranks:
        problem = f"feature {program.name}: there are logs of {len(files) // 2} of the ranks"
        return LogEvidence(program, None, (problem,))
    groups = read_groups([str(path) for path in files], program.expected)
    problems = [f"feature {program.name}: {finding.text}" for finding in groups.findings]
    sizes = {(line.context_parallel, line.cp_size) for line, _ in groups.facts.engine}
    if program.expected.dynamic_sizes and len(sizes) < 2:
        problems.append(f"feature {program.name}: attention did not run on groups of several sizes")
    if program.marker and not any(_has(path, program.marker) for path in files):
        problems.append(f"feature {program.name}: no log has a line {program.marker!r}")
    return LogEvidence(program, groups, tuple(problems))


def _has(path: Path, pattern: str) -> bool:
    with path.open(errors="replace") as stream:
        return any(re.search(pattern, line) for line in stream)


def _compared(pair: Pair) -> Iterator[SeriesComparison]:
    """Compare each series within its own tolerance."""
    logs = [_training_log(pair, program) for program in pair.programs]
    for name in SERIES:
        on, off = (
            read_log(path, program.name, parse_columns(name, None), format_name="megatron")
            for path, program in zip(logs, pair.programs, strict=True)
        )
        yield from compare_logs(on, off, (name,), _tolerance(pair, name)).series


def _training_log(pair: Pair, program: PairProgram) -> str:
    logs = rank_logs(pair.folder(program))
    path = next((str(path) for path in logs if _has(path, LOSS_LINE)), None)
    if path is None:
        sentence = "no rank logged a loss; look into the logs of the ranks"
        raise InputError(f"feature {program.name}", sentence)
    return path


def _tolerance(pair: Pair, name: str) -> float:
    tolerance = TOLERANCES[pair.setting.dtype]
    return tolerance.loss if name == "loss" else tolerance.grad_norm


def _largest(series: SeriesComparison) -> float:
    return series.largest.relative if series.largest else 0.0


def lines(verdict: SmokeVerdict) -> Iterator[str]:
    """Yield the judgement for a reader."""
    yield "passed" if verdict.passed else "failed"
    yield from (f"problem: {problem}" for problem in verdict.problems)
    for one in verdict.shown:
        yield f"feature {one.program.name}:"
        if one.groups is not None:
            yield from (f"  {line}" for line in as_text(one.groups) if not _is_evidence(line))
    for series in verdict.losses:
        steps = len(series.steps)
        allowed = f"{_tolerance(verdict.pair, series.name):g} allowed"
        hidden = f"print can hide {series.resolution[1]:.1e}"
        yield (
            f"{series.name}: {steps} steps, differs by at most {_largest(series):.1e}, {allowed}; "
            f"{hidden}"
        )
    top, programs = verdict.pair.setting.traces, verdict.pair.programs
    traces = [top / program.name for program in programs] if top else []
    if traces and all((folder / HEAD).is_file() for folder in traces):
        yield f"compare: ringproof trace compare {shlex.join(map(str, traces))}"


def _is_evidence(line: str) -> bool:
    return line == "evidence:" or line.startswith(("  /", "  ... "))


def record(verdict: SmokeVerdict, machine: Environment, scheduler: str) -> dict[str, Any]:
    """Return the evidence record, in which nothing names a folder of this machine.

    Args:
        scheduler: ``slurm``, ``kubernetes``, or empty where torchrun was started by hand.
    """
    pair, setting = verdict.pair, verdict.pair.setting
    return {
        "format": FORMAT,
        "ringproof": __version__,
        "feature": pair.feature,
        "device": "cpu, stand-ins for GPUs and kernels" if setting.cpu else "cuda",
        "scheduler": scheduler,
        "megatron": setting.upstream.megatron_name,
        "engine": setting.upstream.engine_version,
        "environment": {
            "class": machine.name,
            "python": machine.python,
            "torch": machine.torch,
            "gpus": machine.gpus,
            "commit": machine.commit,
        },
        "nodes": pair.setting.nodes,
        "ranks_per_node": pair.setting.ranks_per_node,
        "dtype": setting.dtype,
        "passed": verdict.passed,
        "problems": verdict.problems,
        "programs": [
            {
                "feature": program.name,
                "arguments": " ".join(program.arguments),
                "verdict": groups and groups.decision.verdict.value,
                "proof": groups and groups.decision.proof.value,
                "level_sizes": groups and groups.decision.level_sizes,
                "as_expected": groups and groups.as_expected,
            }
            for program, groups in ((one.program, one.groups) for one in verdict.shown)
        ],
        "losses": [
            {
                "name": series.name,
                "on": list(series.a_values),
                "off": list(series.b_values),
                "largest_difference": _largest(series),
                "tolerance": _tolerance(pair, series.name),
                "hidden_by_print": series.resolution[1],
                "within": series.within,
            }
            for series in verdict.losses
        ],
    }
