"""What doctor says about later failures, held against two steps of upstream's own training."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import pytest

from checks.doctor.random_launches import random_launches
from checks.doctor.test_against_upstream import ASKING
from checks.doctor.upstream_lines import TRAINED, stack_at, upstream_at
from checks.skills.shared import REPOSITORY
from ringproof.doctor.examine import RULES, Examination, examine
from ringproof.doctor.frameworks import FRAMEWORKS
from ringproof.doctor.reading import of_launch
from ringproof.doctor.repair import repaired
from ringproof.doctor.reported import REPORTED
from ringproof.doctor.rule import Effect, Rule
from ringproof.doctor.settings import Settings
from ringproof.errors import InputError
from ringproof.launch.reading import Launch
from ringproof.launch.small.shrink import SmallProgram, shrink
from ringproof.rehearsal.fixtures import SessionServers
from ringproof.rehearsal.protocol.program import Program, calling
from ringproof.rehearsal.runs.outcome import Outcome
from ringproof.rehearsal.standins import conversations

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

    def __init__(self, stage: SessionServers, version: str) -> None:
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

    def accepted(self, launches: list[Launch]) -> Iterator[tuple[Launch, Examination]]:
        """Yield the launches that neither a rule nor upstream's own checks refuse, in order."""
        for start in range(0, len(launches), 100):
            examined = [(one, self.examine(one.arguments, one.ranks))
                        for one in launches[start:start + 100]]  # fmt: skip
            left = [pair for pair in examined if not pair[1].counts[Effect.REFUSED]]
            asked = [{"arguments": one.arguments, "world": one.ranks,
                      "environment": dict(CONNECTIONS)} for one, _ in left]  # fmt: skip
            said = self._stage.call(ASKING, 1, asked, upstream=self.upstream)[0]
            answers = zip(left, said, strict=True)
            yield from (pair for pair, refusal in answers if refusal is None)

    def run(self, arguments: tuple[str, ...], ranks: int, faults: tuple[str, ...] = ()) -> Outcome:
        """Train, after calling ``faults`` in every rank."""
        program = Program(self.upstream, SCRIPT, arguments, ranks, dict(CONNECTIONS), faults=faults)
        return self._stage.run(program)

    def shrunk(self, launch: Launch) -> SmallProgram | None:
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
    if settings.text("transformer_impl") == "local":
        return "local layers, whose norm is Apex's kernel where Apex is installed"
    if settings.given("num_experts") and not settings.on("disable_bias_linear"):
        return "experts with bias, which upstream's program refuses without a rule"
    if settings.text("softmax_type", "vanilla") != "vanilla":
        return "another softmax than vanilla, which no stand-in computes"
    return ""


@dataclass(frozen=True)
class Trained:
    """One launch, what doctor says about it, and what became of it."""

    launch: Launch
    small: SmallProgram
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


def chosen(training: Training) -> tuple[list[tuple[Launch, SmallProgram]], Counter[str]]:
    """Take launches that upstream accepts, `FAILING` of them such that doctor says FAILS.

    Those that fail do so by different rules, and those that train use different features. The
    second value counts, by reason, the launches that were left out.
    """
    kinds: Counter[tuple[object, ...]] = Counter()
    wanted = {True: FAILING, False: LAUNCHES - FAILING}
    found: list[tuple[Launch, SmallProgram]] = []
    reasons: Counter[str] = Counter()
    drawn = [replace(one, arguments=(*one.arguments, "--eval-interval", "2"))
             for one in random_launches(1000, SEED, tuple(training.options))]  # fmt: skip
    for launch, examined in training.accepted(drawn):
        if (small := training.shrunk(launch)) is None:
            continue
        rules, facts = fails(examined), examined.facts
        bad = bool(rules)
        kind = rules or (facts.dynamic, facts.hierarchical)
        if not wanted[bad] or kinds[kind] == (1 if bad else MOST_ALIKE):
            continue
        if reason := left_out(examined.settings):
            reasons[reason] += 1
            continue
        kinds[kind] += 1
        wanted[bad] -= 1
        found.append((launch, small))
        if not any(wanted.values()):
            break
    return found, reasons


pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LAUNCHES, FAILING, SEED = 10, 4, 19
LATER = (Effect.FAILS, Effect.WRONG, Effect.IDLE)
BASE = """--num-layers 2 --hidden-size 96 --num-attention-heads 8 --seq-length 256
--max-position-embeddings 256 --micro-batch-size 1 --global-batch-size 8 --train-iters 2 --lr 1e-3
--tokenizer-type NullTokenizer --vocab-size 255 --make-vocab-size-divisible-by 32
--mock-data --num-workers 0 --log-interval 1 --eval-iters 1
--eval-interval 1000 --split 99,1,0 --attention-dropout 0 --hidden-dropout 0"""
PADDED = "--null-tokenizer-pad-id 0"
DYNAMIC = "--sft --calculate-per-token-loss --dataloader-type single"
NEW = f"{DYNAMIC} {PADDED} --dynamic-context-parallel --max-seqlen-per-dp-cp-rank"
OLD = f"""{DYNAMIC} --no-create-attention-mask-in-dataloader --context-parallel-size 2
--hybrid-context-parallel --max-seqlen-per-dp-cp-rank 128"""
EXPERTS = "--num-experts 4 --disable-bias-linear --moe-token-dispatcher-type alltoall"
NO_BACKEND = "No dot product attention backend"


@dataclass(frozen=True)
class Case:
    """The smallest launch that breaks a rule.

    Attributes:
        message: Part of the rule's message; tells rules of one statement apart.
        options: Given besides `BASE`; one that is there already replaces it.
        repair: Options with which it trains, where doctor has no repair; ``None`` if none does.
    """

    statement: str
    message: str
    version: str
    ranks: int
    options: str
    repair: str | None = ""


CASES = (
    Case("hierarchical-context-parallel/heads-level-zero", "shape", "dev", 8,
         "--context-parallel-size 8 --cp-comm-type a2a+p2p --num-attention-heads 6 "
         "--hierarchical-context-parallel-sizes 4 2",
         "--context-parallel-size 8 --cp-comm-type a2a+p2p --num-attention-heads 6 "
         "--hierarchical-context-parallel-sizes 2 4"),
    Case("hierarchical-context-parallel/heads-pure-a2a", "'a2a'", "main", 4,
         "--context-parallel-size 4 --cp-comm-type a2a --num-attention-heads 6",
         "--context-parallel-size 4 --cp-comm-type p2p --num-attention-heads 6"),
    Case("hierarchical-context-parallel/no-window-bias-sink", NO_BACKEND, "main", 4,
         "--context-parallel-size 4 --cp-comm-type a2a+p2p --window-size 128,0 "
         "--hierarchical-context-parallel-sizes 2 2"),
    Case("hierarchical-context-parallel/transformer-engine-only", "TEDot", "main", 2,
         "--context-parallel-size 2 --transformer-impl local --no-persist-layer-norm"),
    Case("dynamic-context-parallel/hybrid-alias", "micro-batch-size", "dev", 2,
         f"{DYNAMIC} {PADDED} --hybrid-context-parallel --max-seqlen-per-dp-cp-rank 128"),
    Case("dynamic-context-parallel/hybrid-alias", "NoneType", "dev", 2,
         f"{DYNAMIC} {PADDED} --hybrid-context-parallel"),
    Case("dynamic-context-parallel/power-of-two-domain", "even number", "dev", 3,
         f"{NEW} 256 --global-batch-size 6", None),
    Case("dynamic-context-parallel/power-of-two-domain", "KeyError", "dev", 6,
         f"{NEW} 64 --global-batch-size 6", None),
    Case("launch/conversations-of-one-sample", "stack expects", "dev", 2,
         f"--sft {PADDED} --micro-batch-size 2"),
    Case("dynamic-context-parallel/odd-smallest-size", "IndexError", "dev", 8,
         f"{NEW} 128 --min-dynamic-context-parallel-size 3 --global-batch-size 16"),
    Case("dynamic-context-parallel/evaluation-not-wrapped", "KeyError", "release", 2,
         f"{OLD} --rerun-mode disabled --position-embedding-type learned_absolute", None),
    Case("dynamic-context-parallel/mla-on-dev-only", "MLA", "release", 2,
         f"{OLD} --rerun-mode disabled --multi-latent-attention --no-rope-fusion", None),
    Case("dynamic-context-parallel/main-loses-the-size", "tuple index", "r0.19", 2,
         f"{OLD} --rerun-mode disabled", None),
    Case("launch/odd-heads", NO_BACKEND, "main", 4,
         "--context-parallel-size 4 --cp-comm-type a2a+p2p --group-query-attention "
         "--hierarchical-context-parallel-sizes 2 2"),
    Case("launch/window-of-a-ring", NO_BACKEND, "r0.19", 2,
         "--context-parallel-size 2 --window-size 128,0"),
    Case("launch/rerun-mode", "RerunDataIterator", "release", 2, OLD, None),
    *(Case("launch/evaluation-interval", "NoneType", version, 1, "--eval-interval")
      for version in TRAINED),
    Case("launch/external-loader", "not an iterator", "main", 1, "--dataloader-type external"),
    Case("launch/conversations-with-mask", "", "main", 1, "--sft"),
    Case("launch/conversations-without-scheduler", "function arguments", "dev", 2,
         f"--sft {PADDED} --context-parallel-size 2"),
    Case("launch/conversations-of-0.16", "batch_size", "release", 1,
         "--sft --no-create-attention-mask-in-dataloader", None),
    Case("launch/expert-world-size", "world_size", "dev", 2,
         f"{EXPERTS} --expert-model-parallel-size 4", f"{EXPERTS} --expert-model-parallel-size 2"),
)  # fmt: skip

ELSEWHERE: Mapping[str, str] = MappingProxyType(
    {
        "dynamic-context-parallel/domain-loop-v2": "code that could not be had: unproven",
        "dynamic-context-parallel/gradients-averaged": "executed on this repository's reference",
        **{
            rule.statement: "read in source or reports"
            for rule in (*REPORTED, *FRAMEWORKS)
            if rule.effect in LATER
        },
        "dynamic-context-parallel/end-padding-unseen": "executed on an engine that no line pins",
    }
)
"""Rules that no run of upstream shows, with the reason."""


@pytest.fixture(scope="module")
def training(stage):
    made: dict[str, Training] = {}

    def of(version: str) -> Training:
        if version not in made:
            made[version] = Training(stage, version)
        return made[version]

    return of


@pytest.mark.parametrize("version", TRAINED)
def test_random_launches_end_as_doctor_says(training, version, record_property):
    """Forty launches in all, sixteen of which doctor says will fail."""
    on = training(version)
    launches, reasons = chosen(on)
    assert len(launches) == LAUNCHES
    ended = []
    for launch, small in launches:
        rules = fails(on.examine(launch.arguments, launch.ranks))
        shrunk = fails(on.examine(small.arguments, small.ranks))
        assert shrunk == rules, (launch, "shrinking changes what doctor says")
        ended.append(Trained(launch, small, rules, on.run(small.arguments, small.ranks)))
    table = "\n".join(map(str, ended))
    record_property("launches", table)
    record_property("left_out", json.dumps(reasons))
    assert all(one.agrees for one in ended), table


def test_a_doctor_that_says_nothing_is_found_out(training):
    """The control: the same comparison without rules, and with the rule of another fault."""
    on = training("main")
    arguments = words("--dataloader-type external")
    outcome = on.run(arguments, 1)
    assert as_said(fails(on.examine(arguments, 1)), outcome)
    assert not as_said((), outcome)
    (other, *_) = [rule for rule in RULES if rule.statement == "launch/evaluation-interval"]
    assert not as_said((other,), outcome)


def words(options: str) -> tuple[str, ...]:
    """`BASE` with options replaced; an option of `BASE` given without its value is left out."""
    given: dict[str, list[str]] = {}
    for text in (BASE, options):
        name = ""
        for word in text.split():
            if word.startswith("--"):
                name = word
                given[name] = []
            else:
                given[name].append(word)
    valued = {word for word in BASE.split() if word.startswith("--")} - {"--mock-data"}
    return tuple(
        word for name, values in given.items() if values or name not in valued
        for word in (name, *values)
    )  # fmt: skip


def rule_of(case: Case) -> Rule:
    (rule,) = [rule for rule in RULES if rule.statement == case.statement
               and rule.effect in LATER and case.message in rule.message
               and bool(case.message) == bool(rule.message)]  # fmt: skip
    return rule


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.statement}-{case.version}")
def test_the_smallest_launch_that_breaks_a_rule(training, case):
    on, rule, arguments = training(case.version), rule_of(case), words(case.options)
    examined = on.examine(arguments, case.ranks)
    assert not examined.counts[Effect.REFUSED], examined.findings
    assert rule in fails(examined)
    outcome = on.run(arguments, case.ranks)
    assert said(rule, outcome), outcome.failure
    if case.repair is None:
        return
    if case.repair:
        better = words(case.repair)
    else:
        values = repaired(examined).settings.values
        named = [("--" + name.replace("_", "-"), given) for name, given in values.items()]
        better = tuple(word for name, given in named for word in (name, *given))
    assert not fails(on.examine(better, case.ranks)), better
    outcome = on.run(better, case.ranks)
    assert outcome.failure is None, (better, outcome.failure)
    assert len(outcome.losses) == STEPS


def test_a_smallest_size_above_half_of_the_domain_leaves_no_choice(training):
    """The effect of the rule: Dynamic CP is on, and every microbatch takes all ranks."""
    on, arguments = training("dev"), words(f"{NEW} 128 --min-dynamic-context-parallel-size 3")
    examined = on.examine(arguments, 4)
    (found,) = examined.findings
    assert (found.effect, found.rule.name) == (Effect.IDLE, "odd-smallest-size")
    assert sizes(on.run(arguments, 4)) == {4}
    assert repaired(examined).settings.text("min_dynamic_context_parallel_size") == "2"
    better = words(f"{NEW} 128 --min-dynamic-context-parallel-size 2")
    assert 2 in sizes(on.run(better, 4))


def sizes(outcome: Outcome) -> set[int]:
    assert outcome.failure is None, outcome.failure
    return {call.size for rank in outcome.ranks for call in rank.attention}


UNMASKED = "--no-create-attention-mask-in-dataloader"
FILES = (
    Case("launch/conversations-of-one-sample", "micro-batch-size", "dev", 1,
         f"--micro-batch-size 2 {UNMASKED}", UNMASKED),
    Case("launch/conversations-with-mask", "", "dev", 1, "", UNMASKED),
)  # fmt: skip


@pytest.mark.parametrize("case", FILES, ids=lambda case: case.statement)
def test_conversations_from_a_file_on_dev(training, case, tmp_path):
    """Which has a mock of its own, and reads files as the other versions do."""
    conversations.write(tmp_path / "conversations.jsonl")
    on, read = training("dev"), (f"{conversations.__name__}:install_readers",)
    from_file = f"""--sft --sft-tokenizer-prompt-format default --tokenizer-type SFTTokenizer
    --seq-length 128 --tokenizer-model rehearsal --data-path {tmp_path}/conversations.jsonl"""
    arguments, better = (
        tuple(word for word in words(f"{from_file} {options}") if word != "--mock-data")
        for options in (case.options, case.repair)
    )
    assert fails(on.examine(arguments, 1))[0] is rule_of(case)
    assert said(rule_of(case), on.run(arguments, 1, read))
    assert not fails(on.examine(better, 1))
    assert on.run(better, 1, read).failure is None


def test_local_graphs_are_refused_by_name(training):
    """Which is why random launches with them are left out."""
    outcome = training("dev").run(words("--cuda-graph-impl local"), 1)
    assert outcome.failure is not None
    assert outcome.failure.symbol == "torch._C._cuda_beginAllocateCurrentThreadToPool"


def test_a_mask_of_each_sample_has_the_square_of_the_length(stage):
    """What launch/dense-mask says, at a length that a test can hold."""
    call = "checks.doctor.asking:bytes_of_mask"
    held = stage.call(call, 1, 512, upstream=upstream_at(stage, "dev"))[0]
    assert held == {"kept": 512 * 512, "left out": 0}


def test_every_rule_about_later_is_executed_or_named():
    """By a case here, or by a proof of its statement whose evidence says that upstream ran."""
    executed = set()
    for skill in {rule.statement.partition("/")[0] for rule in RULES} - {"launch"}:
        path = REPOSITORY / "evidence" / "cpu-gloo" / f"{skill}.json"
        for claim in json.loads(path.read_text(encoding="utf-8"))["claims"]:
            if claim["evidence"] == "upstream executed" and claim["verdict"] == "proven":
                executed.add(f"{skill}/{claim['id']}")
    here = {rule_of(case) for case in (*CASES, *FILES)}
    rest = {
        rule.statement for rule in RULES
        if rule.effect in LATER and rule not in here and rule.statement not in executed
    }  # fmt: skip
    assert rest == set(ELSEWHERE)
