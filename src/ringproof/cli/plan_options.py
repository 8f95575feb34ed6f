"""What the options of ``ringproof plan`` stand for: domain, cost model and goal."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from ringproof.budget import Estimate, EstimatePart, Machine, check_seconds
from ringproof.cli.lengths import read_bytes, read_lengths
from ringproof.errors import InputError, check_name, shown
from ringproof.options import check_options, given_options, option
from ringproof.reference.attention.names import COMM_TYPES
from ringproof.reference.planning.costs import AttentionOnly, CostModel
from ringproof.reference.planning.domain import MAX_RANKS, ZIGZAG_CHUNKS, Domain, choose_cp_sizes
from ringproof.reference.planning.forms import built
from ringproof.reference.planning.hardware import PRESETS, Hardware
from ringproof.reference.planning.lengths import MAX_LENGTH, Lengths, plain
from ringproof.reference.planning.planner import MAX_SEQUENCES
from ringproof.reference.planning.shapes import SHAPES, ModelShape
from ringproof.reference.planning.simulate import Goal, Pipeline
from ringproof.reference.planning.timing import StepCost

TARGETS = ("dev", "pr5618", "main")
"""Versions of Megatron-LM for which `plan_flags` has flags."""
OTHER_NAMES = MappingProxyType(
    {
        "comm_type": "--comm",
        "comm-type": "--comm",
        "cp_sizes": "--cp-sizes",
        "cp-sizes": "--cp-sizes",
        "max_tokens_per_rank": "--max-tokens-per-rank",
    }
)
"""Options of what has another name in the reference."""
_ONLY_FULL = ("--model", "--hardware", "--comm", "--inner-size")
_MOST_STEPS = 1 << 17
"""Steps of the shortest possible iteration, over all stages; a simulation walks through each."""
_MAX_BYTES = 4 * 1024 * 1024
_MOST_SECONDS = 300.0
# Fitted to the peaks of memory and the processor time of six runs with 100,000 to 400,000 sequences
# on 64 ranks, and with 64 sequences on 1,048,576 ranks. They are rather too high than too low:
# slower shapes take twice the time of these.
_SEQUENCE_BYTES, _RANK_BYTES = 1_000, 600
"""Of a plan with its baselines, for each sequence and each rank."""
_SEQUENCE_SECONDS, _RANK_SECONDS = 2e-5, 5e-6
"""Of a plan with its baselines."""
_SETTING_BYTES, _PLAN_SECONDS = 150, 1e-5
"""Of a plan without baselines, for each sequence."""
Preset = TypeVar("Preset", ModelShape, Hardware)


@dataclass(frozen=True, kw_only=True)
class SharedPlanOptions:
    """The options that describe a batch and its machine, which planning and sweeping share.

    They are ``None`` or empty where not given. Limits are those beyond which a value is a slip: no
    run has it, and stages and batches are simulated one by one.
    """

    lengths: str = option(
        "",
        "Lengths of the sequences: a file (text, JSON, JSON lines or NPY; - is standard "
        "input), or a distribution such as "
        "lognormal:mean=1024,sigma=1.5,min=128,max=8192,n=512,seed=0.",
        metavar="FILE|DIST",
    )
    column: str = option("", "Key that holds the lengths in JSON.", metavar="NAME")
    ranks: int | None = option(
        None,
        "Number of ranks: data parallel size times context parallel size.",
        least=1,
        most=MAX_RANKS,
    )
    min_cp: int = option(1, "Smallest CP group size that may be used.")
    microbatch_multiple: int | None = option(
        None,
        "Make the number of microbatches a multiple of N. With --vpp, N is a multiple of --pp, "
        "and --pp is the default.",
        least=1,
        most=65_536,
    )
    max_sequences: int | None = option(
        None,
        "Largest number of sequences in one group, for example a CUDA graph's capacity.",
        least=1,
        most=MAX_SEQUENCES,
    )
    objective: str = option(
        "sync",
        "With sync, a microbatch ends for all ranks together. With async, only the ranks of a "
        "group wait for each other.",
        choices=("sync", "async"),
    )
    pp: int = option(1, "Number of pipeline stages.", least=1, most=1024)
    vpp: int = option(1, "Number of virtual stages on each pipeline stage.", least=1, most=128)
    tp: int = option(
        1,
        "Tensor parallel size. A rank stands for that many GPUs of a node.",
        least=1,
        most=1024,
    )
    cost: str = option(
        "full",
        "Cost measure. full counts computation, communication and launches. attention-only is "
        "upstream's measure, squared length over group size, and has no price for communication.",
        choices=("full", "attention-only"),
    )
    model: str = option(
        "llama3-8b",
        "Model whose cost is computed: a preset or a JSON file.",
        metavar="PRESET|FILE",
    )
    hardware: str = option(
        "h100",
        "Hardware whose speed is assumed: a100, h100, h200, b200, gb200, or a JSON file.",
        metavar="PRESET|FILE",
    )
    inner_size: int | None = option(
        None, "Number of ranks that exchange heads under --comm a2a+p2p."
    )
    graphs: bool = option(
        False, "Also compute what CUDA graphs need: capacity, slots, padding and bytes."
    )
    target: str = option(
        "dev",
        "Version of Megatron-LM whose flags are printed: dev, pull request 5618 (with graphs), "
        "or main and the releases.",
        choices=TARGETS,
    )
    force: bool = option(False, "Start even if the machine seems too small for it.")

    def __post_init__(self) -> None:
        check_options(self)
        given = given_options(self) if self.cost == "attention-only" else ()
        for name in _ONLY_FULL:
            if name in given:
                raise InputError(name, f"{name} has no effect with --cost attention-only")
        multiple = self.microbatch_multiple
        if self.vpp > 1 and multiple is not None and multiple % self.pp:
            sentence = f"{multiple} is not a multiple of --pp {self.pp}, which --vpp needs"
            raise InputError("--microbatch-multiple", f"{sentence}; choose one")
        if self.pp > 1 and self.pp * self.vpp * self.multiple > _MOST_STEPS:
            sentence = f"{self.pp} x {self.vpp} x {self.multiple} stages, virtual stages and"
            sentence += " microbatches are too many to simulate; lower one of them"
            raise InputError("--pp, --vpp, --microbatch-multiple", sentence)

    @property
    def multiple(self) -> int:
        """Divisor of the number of microbatches; interleaved stages need a multiple of --pp."""
        if self.microbatch_multiple is not None:
            return self.microbatch_multiple
        return self.pp if self.vpp > 1 else 1

    def domain(self, budget: int, cp_sizes: str) -> Domain:
        """The domain at a token budget with a set of group sizes."""
        ranks = self.ranks or 0
        return Domain(
            ranks=ranks,
            max_tokens_per_rank=budget,
            cp_sizes=choose_cp_sizes(cp_sizes, ranks, self.min_cp),
            max_sequences=self.max_sequences,
            microbatch_multiple=self.multiple,
            rank_multiple=ZIGZAG_CHUNKS * self.tp,
        )

    def cost_model(self, comm: str) -> CostModel:
        """The cost model with a type of communication."""
        return AttentionOnly() if self.cost == "attention-only" else self.step_cost(comm)

    def step_cost(self, comm: str) -> StepCost:
        """The model of time; under a2a+p2p the ranks of a node exchange, as far as heads allow."""
        shape, machine = self.shape(), self.machine()
        inner = 1 if self.inner_size is None else self.inner_size
        if comm == "a2a+p2p" and self.inner_size is None:
            node = max(1, machine.gpus_per_node // self.tp)
            inner = math.gcd(node, -(-shape.kv_heads // self.tp))
        elif self.ranks and inner > 0 and self.ranks % inner:
            sentence = f"{inner} does not divide the {self.ranks:,} ranks"
            remedy = "give the ranks of a node that exchange heads, such as 4"
            raise InputError("--inner-size", f"{sentence}; {remedy}")
        return StepCost(shape=shape, machine=machine, comm_type=comm, inner_size=inner, tp=self.tp)

    def shape(self) -> ModelShape:
        """The model: a preset or a file."""
        return preset(SHAPES, self.model, "model")

    def machine(self) -> Hardware:
        """The hardware: a preset or a file."""
        return preset(PRESETS, self.hardware, "hardware")

    def goal(self) -> Goal:
        """Objective and pipeline."""
        pipeline = Pipeline(stages=self.pp, virtual=self.vpp)
        objective: Any = self.objective
        return Goal(objective=objective, pipeline=pipeline)

    def read(self) -> Lengths:
        """The lengths."""
        return read_lengths(self.lengths, column=self.column)


@dataclass(frozen=True, kw_only=True)
class PlanOptions(SharedPlanOptions):
    """The options of one plan."""

    max_tokens_per_rank: int | None = option(
        None,
        "Largest number of tokens on a rank in one microbatch, padding included.",
        least=1,
        most=MAX_LENGTH,
    )
    memory_from: str = option(
        "",
        "Measurements of `fit --vary`, for the memory of a rank; the default budget then fits.",
        metavar="FIT.json",
    )
    cp_sizes: str = option(
        "pow2",
        "CP group sizes; a list is written as 1,2,3.",
        metavar="pow2|divisors|LIST",
    )
    comm: str = option("p2p", "Communication type.", choices=COMM_TYPES)
    static_cp: int | None = option(
        None,
        "CP size of the static baselines. The default is the smallest size that can hold every "
        "sequence.",
    )
    batches: int = option(
        1,
        "Draw N batches and size the graphs for the largest (with --graphs).",
        least=1,
        most=1000,
        needs="graphs",
    )


@dataclass(frozen=True, kw_only=True)
class SweepOptions(SharedPlanOptions):
    """The options of a sweep: several values of what one plan has one value of."""

    budgets: tuple[int, ...] = option(
        (),
        "Token budgets per rank to try, separated by commas.",
        "--max-tokens-per-rank",
        metavar="N,N,...",
    )
    size_sets: tuple[str, ...] = option(
        (),
        "Set of CP group sizes to try. Can be given several times; pow2 and divisors are tried "
        "when it is not given.",
        "--cp-sizes",
        metavar="pow2|divisors|LIST",
    )
    comm_types: str = option(
        ",".join(COMM_TYPES),
        "Communication types to try, separated by commas.",
        "--comm",
        metavar="TYPE,TYPE,...",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.types:
            check_name("--comm", name, COMM_TYPES)
        for budget in self.budgets:
            if not 0 < budget <= MAX_LENGTH:
                sentence = f"{budget} is not between 1 and {MAX_LENGTH:,}; correct it"
                raise InputError("--max-tokens-per-rank", sentence)
        if self.inner_size is not None and "a2a+p2p" not in self.types:
            raise InputError("--inner-size", "--inner-size needs --comm a2a+p2p")

    @property
    def types(self) -> tuple[str, ...]:
        """The communication types to try."""
        return tuple(dict.fromkeys(name.strip() for name in self.comm_types.split(",")))


def preset(presets: Sequence[Preset], name: str, what: str) -> Preset:
    """The preset of that name, or one from a JSON file; ``what`` is the option without its dashes.

    Raises:
        InputError: There is no such preset, or the file is not one; see `from_fields`.
    """
    if Path(name).suffix == ".json":
        return from_fields(type(presets[0]), read_json(name, f"--{what}"), what)
    for one in presets:
        if one.name == name:
            return one
    known = ", ".join(one.name for one in presets)
    remedy = f"use one of {known}, or a JSON file with its fields"
    raise InputError(f"--{what}", f"{shown(name)} is unknown; {remedy}")


def from_fields(kind: type[Preset], data: Any, what: str) -> Preset:
    """Build a preset from its fields in JSON; the name may be left out, and is ``custom`` then.

    Raises:
        InputError: Not an object, or a field that is missing, unknown or out of range.
    """
    listed = ", ".join(item.name for item in fields(kind) if item.name != "name")
    named = {"name": "custom", **data} if isinstance(data, Mapping) else data
    return built(kind, named, what, f"write an object with {listed}")


def sizes_that_hold(domain: Domain, longest: int) -> tuple[int, ...]:
    """Group sizes whose token budget holds a sequence."""
    return tuple(size for size in domain.cp_sizes if size * domain.rows_per_rank >= longest)


def static_size(asked: int | None, domain: Domain, longest: int) -> int:
    """CP size of the baselines: the one asked for, or the smallest that holds every sequence.

    Raises:
        InputError: The size asked for is not one of the domain, or it is too small.
    """
    enough = sizes_that_hold(domain, longest)
    if asked is None:
        return enough[0]
    if asked not in enough:
        sentence = f"groups of {asked} ranks cannot hold the longest sequence of {longest:,} tokens"
        if asked not in domain.cp_sizes:
            sentence = f"{asked} is not a group size of the domain"
        remedy = f"choose from {', '.join(map(str, enough))}"
        raise InputError("--static-cp", f"{sentence}; {remedy}")
    return asked


def read_json(path: str, field: str) -> Any:
    """Read a small JSON file; raises as `parse_json` and `read_bytes`."""
    return parse_json(read_bytes(path, field, _MAX_BYTES), path, field)


def parse_json(content: bytes, path: str, field: str) -> Any:
    """Parse the JSON of a file.

    Raises:
        InputError: It is not JSON; names the line.
    """
    try:
        return json.loads(content.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        place = f"{plain(path)}:{error.lineno}"
        raise InputError(place, f"this is not JSON: {error.msg}; correct {field}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(field, f"{shown(path)} is not JSON; name a JSON file") from error


def check_plan(sequences: int, ranks: int, batches: int) -> None:
    """Refuse a plan, and plans of further batches, that this machine cannot make in time.

    Raises:
        InputError: Names the option that decides it, the estimate and the limit.
    """
    parts = (
        EstimatePart("--lengths", f"{sequences:,} sequences", sequences * _SEQUENCE_BYTES),
        EstimatePart("--ranks", ranks, ranks * _RANK_BYTES),
    )
    Estimate(1, parts, "--ranks", ranks).check(Machine.here())
    one = sequences * _SEQUENCE_SECONDS + ranks * _RANK_SECONDS
    more = (batches - 1) * sequences * _PLAN_SECONDS
    option, value = ("--batches", f"{batches:,}") if more > one else ("--lengths", parts[0].value)
    check_seconds(option, value, one + more, _MOST_SECONDS)


def check_sweep(sequences: int, settings: int) -> None:
    """Refuse a sweep that this machine cannot make in time, or whose plans it cannot keep.

    Raises:
        InputError: Names the option that decides it, the estimate and the limit.
    """
    held = sequences * settings * _SETTING_BYTES
    value = f"{settings:,} settings of {sequences:,} sequences"
    part = EstimatePart("--max-tokens-per-rank", value, held)
    Estimate(1, (part,), "--max-tokens-per-rank", value).check(Machine.here())
    seconds = sequences * settings * _PLAN_SECONDS
    check_seconds("--max-tokens-per-rank", value, seconds, _MOST_SECONDS)
