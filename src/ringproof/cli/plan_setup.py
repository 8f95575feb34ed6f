"""What the options of ``ringproof plan`` stand for: domain, cost model and goal."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from ringproof.budget import Estimate, EstimatePart, Machine, check_seconds
from ringproof.cli.lengths import read_bytes, read_lengths
from ringproof.cli.plan import SharedPlanOptions
from ringproof.errors import InputError
from ringproof.reference.planning.costs import AttentionOnly, CostModel
from ringproof.reference.planning.domain import MAX_RANKS, ZIGZAG_CHUNKS, Domain, choose_cp_sizes
from ringproof.reference.planning.forms import built
from ringproof.reference.planning.hardware import PRESETS, Hardware
from ringproof.reference.planning.lengths import MAX_LENGTH, Lengths, plain
from ringproof.reference.planning.planner import MAX_SEQUENCES
from ringproof.reference.planning.shapes import SHAPES, ModelShape
from ringproof.reference.planning.simulate import Goal, Pipeline
from ringproof.reference.planning.timing import StepCost

DEFAULT_MODEL, DEFAULT_HARDWARE, DEFAULT_COMM = "llama3-8b", "h100", "p2p"
_ONLY_FULL = ("model", "hardware", "comm", "inner_size")
_MOST = MappingProxyType(
    {
        "ranks": MAX_RANKS,
        "max_tokens_per_rank": MAX_LENGTH,
        "max_sequences": MAX_SEQUENCES,
        "tp": 1024,
        "pp": 1024,
        "vpp": 128,
        "microbatch_multiple": 65_536,
        "batches": 1000,
    }
)
"""Larger values are slips: no run has them, and stages and batches are simulated one by one."""
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


@dataclass(frozen=True)
class PlanOptions(SharedPlanOptions):
    """The options of `SharedPlanOptions`, and those that a sweep varies or does not have."""

    max_tokens_per_rank: int | None = None
    cp_sizes: str = "pow2"
    comm: str = ""
    static_cp: int | None = None
    batches: int = 1

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> PlanOptions:
        """Those among all parameters of a command."""
        names = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in given.items() if name in names})

    def refuse_contradictions(self) -> None:
        """Refuse options that cannot hold together.

        Raises:
            InputError: Names two of them.
        """
        for name in ("lengths", "ranks"):
            if getattr(self, name) in (None, ""):
                raise InputError(_spelled(name), None, "is missing", "see ringproof plan --help")
        if self.cost not in ("full", "attention-only"):
            raise InputError("--cost", plain(self.cost), "is unknown", "use full or attention-only")
        for name in _ONLY_FULL if self.cost == "attention-only" else ():
            if getattr(self, name):
                problem = "has no meaning under --cost attention-only"
                value = plain(str(getattr(self, name)))
                raise InputError(_spelled(name), value, problem, "drop it")
        for name, most in _MOST.items():
            value = getattr(self, name)
            if value is not None and not 1 <= value <= most:
                problem = f"is not between 1 and {most:,}"
                raise InputError(_spelled(name), value, problem, "correct it")
        if self.batches > 1 and not self.graphs:
            raise InputError("--batches", self.batches, "is for --graphs", "add it")
        multiple = self.microbatch_multiple
        if self.vpp > 1 and multiple is not None and multiple % self.pp:
            problem = f"interleaved stages need a multiple of --pp {self.pp}"
            raise InputError("--microbatch-multiple", multiple, problem, "choose one")
        if self.pp > 1 and self.pp * self.vpp * self.multiple > _MOST_STEPS:
            steps = f"{self.pp} x {self.vpp} x {self.multiple}"
            problem = "stages x virtual stages x microbatches are too many to simulate"
            raise InputError("--pp, --vpp, --microbatch-multiple", steps, problem, "lower one")

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
            problem = f"does not divide the {self.ranks:,} ranks"
            remedy = "give the ranks of a node that exchange heads, such as 4"
            raise InputError("--inner-size", inner, problem, remedy)
        return StepCost(shape=shape, machine=machine, comm_type=comm, inner_size=inner, tp=self.tp)

    def shape(self) -> ModelShape:
        """The model: a preset or a file."""
        return preset(SHAPES, self.model or DEFAULT_MODEL, "model")

    def machine(self) -> Hardware:
        """The hardware: a preset or a file."""
        return preset(PRESETS, self.hardware or DEFAULT_HARDWARE, "hardware")

    def goal(self) -> Goal:
        """Objective and pipeline."""
        pipeline = Pipeline(stages=self.pp, virtual=self.vpp)
        objective: Any = self.objective  # `Goal` refuses what is neither sync nor async
        return Goal(objective=objective, pipeline=pipeline)

    def read(self) -> Lengths:
        """The lengths."""
        return read_lengths(self.lengths, column=self.column)


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
    raise InputError(what, name, f"unknown {what}", remedy)


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


def static_size(options: PlanOptions, domain: Domain, longest: int) -> int:
    """CP size of the baselines: the one asked for, or the smallest that holds every sequence.

    Raises:
        InputError: The size asked for is not one of the domain, or it is too small.
    """
    enough = sizes_that_hold(domain, longest)
    asked = options.static_cp
    if asked is None:
        return enough[0]
    if asked not in enough:
        problem = f"cannot hold the longest sequence of {longest:,} tokens"
        if asked not in domain.cp_sizes:
            problem = "is not a group size of the domain"
        raise InputError("--static-cp", asked, problem, f"choose from {enough}")
    return asked


def positive_numbers(text: str, option: str, *, digits: int, what: str) -> list[int]:
    """Numbers that are separated by commas, each with at most so many digits.

    Raises:
        InputError: Something else; ``what`` names what they are.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) <= digits and int(part) for part in parts):
        remedy = "write positive numbers such as 2048,4096"
        raise InputError(option, text or None, f"is not a list of {what}", remedy)
    return list(map(int, parts))


@contextlib.contextmanager
def as_options() -> Iterator[None]:
    """Spell the planner's fields as the options they came from."""
    names = ("comm_type", *(field.name for field in fields(PlanOptions)))
    spellings = {spelling for name in names for spelling in (name, name.replace("_", "-"))}
    try:
        yield
    except InputError as error:
        if error.field not in spellings:
            raise
        raise InputError(_spelled(error.field), error.sentence) from None


def _spelled(name: str) -> str:
    dashed = name.replace("_", "-")
    return "--comm" if dashed == "comm-type" else f"--{dashed}"


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
        raise InputError(place, None, f"is not JSON: {error.msg}", f"correct {field}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(field, plain(path), "is not JSON", "name a JSON file") from error


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
