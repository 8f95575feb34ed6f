"""Launches that are shrunk and trained for two steps by upstream's own program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from checks.doctor.random_launches import random_launches
from checks.doctor.upstream_lines import stack_at, upstream_at
from ringproof.doctor.examine import Examination, examine
from ringproof.doctor.reading import of_launch
from ringproof.doctor.rules import Effect, Rule
from ringproof.doctor.settings import Settings
from ringproof.errors import InputError
from ringproof.rehearsal.fixtures import Stage
from ringproof.rehearsal.launch.reading import Launch
from ringproof.rehearsal.program import Program, calling
from ringproof.rehearsal.running import Outcome
from ringproof.rehearsal.small.shrink import Small, shrink

SCRIPT = "pretrain_gpt.py"
KNOWN_OPTIONS = "ringproof.rehearsal.rank.calling:known_options"
STEPS = 2
MOST_RANKS = 4
MOST_ALIKE = 3
"""Launches of one version that train with the same features."""
OTHERS_JUDGE = ("cuda_graph_dynamic_microbatches", "step_batch_size_schedule")
CONNECTIONS = MappingProxyType({"CUDA_DEVICE_MAX_CONNECTIONS": "1"})


class Training:
    """Upstream's training program at a version, and what doctor knows about that version."""

    def __init__(self, stage: Stage, version: str) -> None:
        self._stage = stage
        self.version = version
        self.upstream = upstream_at(stage, version)
        self.lines = stack_at(version)
        ask = calling(self.upstream, KNOWN_OPTIONS, str(self.upstream.megatron / SCRIPT))
        asked = stage.run(ask, preload=SCRIPT)
        self.options = frozenset(asked.ranks[0].results)

    def examine(self, arguments: tuple[str, ...], ranks: int) -> Examination:
        """Ask doctor about a command line."""
        launch = Launch(SCRIPT, arguments, CONNECTIONS, 1, ranks, "the test")
        return examine(of_launch(launch), self.lines)

    def run(self, arguments: tuple[str, ...], ranks: int, faults: tuple[str, ...] = ()) -> Outcome:
        """Train, after calling ``faults`` in every rank."""
        program = Program(self.upstream, SCRIPT, arguments, ranks, dict(CONNECTIONS), faults=faults)
        return self._stage.run(program)

    def shrunk(self, launch: Launch) -> Small | None:
        """Make a launch small; ``None`` where it needs more ranks than a test has."""
        try:
            small = shrink(launch, options=self.options, max_ranks=MOST_RANKS, iterations=STEPS)
        except InputError:
            return None
        return small if small.ranks <= MOST_RANKS else None


def left_out(settings: Settings) -> str:
    """Return why CPU stand-ins cannot say what becomes of a launch; empty if they can."""
    if any(name in settings.values for name in OTHERS_JUDGE):
        return "options of a bank of graphs, which no rule judges alone"
    if settings.text("cuda_graph_impl") == "local" or settings.on("enable_cuda_graph"):
        return "local CUDA graphs, whose memory pool has no counterpart on the tape"
    norm = settings.text("normalization", "LayerNorm")
    if settings.text("transformer_impl") == "local" and norm == "LayerNorm":
        return "LayerNorm of local layers, which is Apex's kernel where Apex is installed"
    if settings.text("softmax_type", "vanilla") != "vanilla":
        return "another softmax than vanilla, which no stand-in computes"
    return ""


@dataclass(frozen=True)
class Trained:
    """One launch, what doctor says about it, and what became of it."""

    launch: Launch
    small: Small
    rules: tuple[Rule, ...]
    outcome: Outcome

    @property
    def agrees(self) -> bool:
        """Whether it is as doctor says."""
        return as_said(self.rules, self.outcome)

    def __str__(self) -> str:
        said = ", ".join(rule.name for rule in self.rules) or "trains"
        failure = self.outcome.failure
        became = "trained" if failure is None else f"{failure.message} at {failure.place}"
        mark = "" if self.agrees else "  <- differs: " + " ".join(self.small.arguments)
        return f"{self.small.ranks} ranks, doctor: {said}; upstream: {became[:160]}{mark}"


def fails(examination: Examination) -> tuple[Rule, ...]:
    """Rules by which a launch fails later."""
    found = examination.findings
    return tuple(one.rule for one in found if one.effect is Effect.FAILS)


def as_said(rules: tuple[Rule, ...], outcome: Outcome) -> bool:
    """Whether a run ends with the message of one of the rules; without rules, after two steps."""
    steps = max((len(report.iterations) for report in outcome.ranks), default=0)
    if not rules:
        return outcome.failure is None and steps == STEPS
    return outcome.failure is not None and any(said(rule, outcome) for rule in rules)


def said(rule: Rule, outcome: Outcome) -> bool:
    """Whether a run ended with the message of a rule; a rule without one names a bare assertion."""
    message = "" if outcome.failure is None else outcome.failure.message
    if not rule.message:
        return message == "AssertionError: "
    return rule.message in message or bool(rule.or_message and rule.or_message in message)


@dataclass(frozen=True)
class Choice:
    """Launches to train on one version, and how many were left out for which reason."""

    launches: tuple[tuple[Launch, Small], ...]
    reasons: Mapping[str, int]


def chosen(training: Training, count: int, seed: int, *, failing: int) -> Choice:
    """Take launches that upstream accepts, ``failing`` of them such that doctor says FAILS.

    Those that fail do so by different rules, and those that train use different features.
    """
    kinds: Counter[tuple[object, ...]] = Counter()
    wanted = {True: failing, False: count - failing}
    found: list[tuple[Launch, Small]] = []
    reasons: dict[str, int] = {}
    for drawn in random_launches(1000, seed, tuple(training.options)):
        launch = replace(drawn, arguments=(*drawn.arguments, "--eval-interval", "2"))
        examined = training.examine(launch.arguments, launch.ranks)
        if examined.counts[Effect.REFUSED] or (small := training.shrunk(launch)) is None:
            continue
        rules, facts = fails(examined), examined.facts
        bad = bool(rules)
        kind = rules or (facts.dynamic, facts.hierarchical)
        if not wanted[bad] or kinds[kind] == (1 if bad else MOST_ALIKE):
            continue
        if reason := left_out(examined.settings):
            reasons[reason] = reasons.get(reason, 0) + 1
            continue
        kinds[kind] += 1
        wanted[bad] -= 1
        found.append((launch, small))
        if not any(wanted.values()):
            break
    return Choice(tuple(found), reasons)
