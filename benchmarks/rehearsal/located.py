"""Plant each defect of ``checks.faults``, and compare what `rehearse` names with what was planted.

Each program is compared with the one that ``rehearse`` would take. Where that has the defect of
upstream's own, or no context parallelism is in play, it is the same program without the planted
defect. Launches without a defect, of which none may be named, are those of ``ringproof conform``.

    python -m benchmarks.rehearsal.located planted|kinds|agreeing|cost --dev SPEC --json FILE
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.records import write_record
from benchmarks.rehearsal import seeds
from checks.faults import engine, programs
from checks.faults.defects import patched
from checks.faults.kinds import KINDS
from checks.faults.trials import FAULTS, TOLERANCE
from ringproof.cache import default_cache
from ringproof.launch.flags import Flags
from ringproof.launch.small.reference import BUDGET, SCHEDULER, reference
from ringproof.launch.small.shrink import SmallProgram
from ringproof.rehearsal.conform.cases import CASES
from ringproof.rehearsal.conform.matrix import script_of, training
from ringproof.rehearsal.locate import saying
from ringproof.rehearsal.locate.locating import AGREES, locate
from ringproof.rehearsal.locate.result import WrongPlace
from ringproof.rehearsal.protocol.program import Program, Upstream
from ringproof.rehearsal.protocol.trace import MOST_BYTES
from ringproof.rehearsal.runs.outcome import Outcome
from ringproof.rehearsal.runs.server import Servers
from ringproof.rehearsal.runs.upstreams import open_upstream
from ringproof.rehearsal.standins import conversations
from ringproof.rehearsal.verdict.agreement import differences

ROOT = Path(__file__).parents[2]  # from which ranks import the defects
ATTENTION = r"decoder\.layers\.0\.self_attention\.core_attention(\.\w+)?"
LAST = ATTENTION.replace("0", "1")
NORMS = r"decoder\.(final_layernorm|layers\.\d\..*(norm|linear_qkv|linear_fc1).*)"
PLANTED: Mapping[str, tuple[str, str]] = MappingProxyType({
    "group-kept": ("forward", ATTENTION),
    "rope-group-static": ("forward", r"decoder\.layers\.0\.self_attention"),
    "groups-halved": ("data", ""),
    "evaluation-keeps-group": ("forward", ATTENTION),
    "stale-boundaries": ("data", ""),
    "stale-lengths": ("forward", ATTENTION),
    "slices-contiguous": ("data", ""),
    "labels-of-next-rank": ("data", ""),
    "padding-counted": ("data", ""),
    "sample-given-twice": ("data", ""),
    "microbatch-dropped": ("data", ""),
    "tokens-counted-locally": ("scale", ".*"),
    "loss-scaled-by-microbatches": ("loss", ""),
    "schedule-differs": ("data", ""),
    "gradients-without-cp": ("reduction", ".*"),
    "levels-swapped": ("forward", ATTENTION),
    "chunks-unsorted": ("forward", ATTENTION),
    "ring-step-lost": ("forward", ATTENTION.replace("0", "[01]")),  # every second exchange
    "lse-merge-skipped": ("forward", ATTENTION),
    "second-half-merge-skipped": ("forward", ATTENTION),
    "diagonal-unmasked": ("forward", ATTENTION),
    "gathered-in-rank-order": ("forward", ATTENTION),
    "key-gradient-lost": ("backward", LAST),
    "positions-unsliced": ("data", ""),
    "embeddings-not-summed": ("reduction", r"embedding\.word_embeddings|output_layer"),
    "norm-of-one-stage": ("norm", ""),
    "stages-disagree": ("data", ""),
    "layernorms-not-summed": ("reduction", NORMS),
    "gather-rotated": ("gradient", r"embedding\.word_embeddings"),
    "router-loss-local": ("backward", r"decoder\.layers\.1\.mlp\.router"),
    "mtp-ignores-neighbours": ("forward", r"mtp\b.*"),
    "mtp-ignores-boundaries": ("forward", r"mtp\b.*"),
})  # fmt: skip
"""Phase and module (a regular expression) in which each defect is planted."""
STEPS = 2
"""Steps of a launch without a defect."""
CONTEXT = "--context-parallel-size"
SEEDS = (1, 2, 3)
"""Seeds of launches without a defect."""
WEIGHTS = (None, seeds.second, seeds.third)
"""What draws the weights of each seed; ``None`` for those of every rehearsal."""
MEANS = ("48", "40", "56")
"""Mean length of the sequences of each seed, where upstream's seed does not decide the data."""
CURED = MappingProxyType({"dynamic-cp-mla": "dynamic-mla-rotary"})
"""Trainings whose losses hide a defect of upstream, and the change that cures it."""
PATCHES = ROOT / "docs" / "patches"
COSTLY = ("lse-merge-skipped", "chunks-unsorted")
"""Defects, on two and on four ranks, of which the cost of locating is measured."""
MOST_TIMES = 3
"""Times of a plain rehearsal that one with a search may take."""
MOST_TRACED = 8
"""Runs of references, disturbed or not, whose traces are kept for other pairs."""
ITSELF = ("tied-pp", "mtp-cp2", "dynamic-mtp")
"""Trainings that are compared with themselves."""
ALONE = (
    ("p2p", engine.ring_step_lost), ("p2p", engine.lse_merge_skipped),
    ("p2p", engine.second_half_merge_skipped), ("p2p", engine.diagonal_unmasked),
    ("p2p", engine.key_gradient_lost), ("a2a", engine.chunks_unsorted),
    ("all_gather", engine.gathered_in_rank_order),
)  # fmt: skip
"""Defects that are planted in a release, too, by CP type, with CP 2."""


@dataclass(frozen=True)
class Pair:
    """A program, and the one that it is compared with.

    Attributes:
        breaks: What the planted defect does; empty where a table elsewhere says it.
        reported: Issue in which others have reported such a defect.
    """

    name: str
    training: str
    program: Program
    reference: Program
    breaks: str = ""
    reported: str = ""


def without_context(program: Program) -> Program:
    """Return the program that ``rehearse`` compares with."""
    small = SmallProgram(program.script, program.arguments, {}, program.ranks, (), program.dtype)
    options = {*Flags(program.arguments).names(), SCHEDULER, BUDGET}
    found = reference(small, options)
    return replace(program, arguments=found.arguments, ranks=found.ranks)


def planted(dev: Upstream, release: Upstream) -> Iterator[Pair]:
    """Yield the programs with a defect."""
    for fault in FAULTS:
        made = programs.program(dev, fault.training, (fault.function,))
        same = replace(made, faults=())
        other = same if fault.training in ITSELF else without_context(same)
        yield Pair(fault.name, fault.training, made, other)
    for comm, function in ALONE:
        made = programs.program(release, "cp2", (f"{engine.__name__}:{function.__name__}",))
        made = replace(made, arguments=(*made.arguments, "--cp-comm-type", comm))
        name = function.__name__.replace("_", "-")
        yield Pair(
            f"{name}@release", f"cp2, {comm}", made, without_context(replace(made, faults=()))
        )


def kinds(dev: Upstream, engine: Callable[[str], Upstream]) -> Iterator[Pair]:
    """Yield programs with defects of other kinds: several at once, in one layer, in the data.

    Args:
        engine: Returns the same upstream with another version of Transformer Engine.
    """
    for kind in KINDS:
        upstream = engine(kind.engine) if kind.engine else dev
        made = programs.program(upstream, kind.training, kind.functions)
        arguments = (*made.arguments, *kind.arguments)
        made = replace(made, arguments=arguments, ranks=kind.ranks or made.ranks)
        other = without_context(replace(made, faults=()))
        yield Pair(kind.name, kind.training, made, other, kind.breaks, kind.reported)


def agreeing(dev: Upstream, folder: Path, numbers: Sequence[int]) -> Iterator[Pair]:
    """Yield the cases of ``ringproof conform``, in which no defect is planted, for each seed."""
    folder.mkdir(exist_ok=True)
    conversations.write(folder / "conversations.jsonl")
    for seed, case in itertools.product(numbers, CASES):
        script = script_of(dev, case.script)
        if script is not None:
            made = seeded(training(dev, case, script, STEPS, folder), seed)
            yield Pair(f"{case.id}, seed {seed}", case.group, made, without_context(made))


def seeded(program: Program, seed: int) -> Program:
    """Return a program with the weights, the order of samples and the lengths of a seed."""
    draw, mean = WEIGHTS[seed - 1], f'"mean_seq_len":{MEANS[seed - 1]}'
    words = (word.replace('"mean_seq_len":48', mean) for word in program.arguments)
    faults = (f"{draw.__module__}:{draw.__name__}",) if draw else ()
    return replace(
        program, arguments=(*words, "--seed", str(seed)), faults=(*program.faults, *faults)
    )


class Locating:
    """Runs pairs; a reference runs once for all pairs that have it, with and without traces."""

    def __init__(self, servers: Servers, folder: Path, seconds: float) -> None:
        self._servers, self._folder, self._seconds = servers, folder, seconds
        self._before: Outcome | None = None
        self._clean: dict[tuple[Upstream, tuple[str, ...], int], Outcome] = {}
        self._traced: dict[tuple[object, ...], Outcome] = {}

    def run(self, program: Program, folder: Path) -> Outcome:
        """Run a program in a folder."""
        return self._servers.run(program, program.script, folder, limit_seconds=self._seconds)

    def first(self, pair: Pair) -> int | None:
        """Return the step in which a program parts from its reference, or does not end.

        Returns:
            The negative index of an evaluation; ``None`` where nothing differs.
        """
        made = self._before = self.run(pair.program, self._folder / "run")
        key = (pair.reference.upstream, pair.reference.arguments, pair.reference.ranks)
        if key not in self._clean:
            self._clean[key] = self.run(pair.reference, self._folder / "reference")
        for one in differences(made, self._clean[key]):
            evaluation = one.kind == "evaluation"
            if evaluation and "--sft" in pair.program.arguments:
                continue  # upstream averages over microbatches, which depend on the packing
            known = made.failure is None or (not evaluation and one.step in made.losses)
            if known and one.reference is not None and one.relative > TOLERANCE:
                return -one.step if one.kind == "evaluation" else one.step
        if made.failure is None:
            return None
        ended = len(made.losses) == programs.STEPS
        return -len(made.evaluations) - 1 if ended else len(made.losses) + 1

    def planted(self, pair: Pair) -> dict[str, Any]:
        """Return what is named beside what was planted."""
        started = time.monotonic()
        step = self.first(pair)
        found = None if step is None else self._locate(pair, step)
        return row_of(pair, step, found, time.monotonic() - started)

    def clean(self, pair: Pair) -> dict[str, Any]:
        """Return what is named where nothing is wrong."""
        started = time.monotonic()
        self._before = None
        found = self._locate(pair, STEPS)
        row = clean_row(pair, found, time.monotonic() - started)
        # Where losses differ, too, or nothing does with a patch, upstream is wrong.
        wrong = row["verdict"] == "alarm" and (self.first(pair) is not None or self._cured(pair))
        return row | ({"verdict": "differs"} if wrong else {})

    def _cured(self, pair: Pair) -> bool:
        """Whether all tensors agree with the change that is proposed to upstream."""
        name = CURED.get(pair.name.partition(",")[0])
        if name is None:
            return False
        folder = Path(tempfile.mkdtemp(dir=self._folder)) / "patched"
        upstream = patched(pair.program.upstream, PATCHES / f"{name}.patch", folder)
        both = (replace(one, upstream=upstream) for one in (pair.program, pair.reference))
        found = locate(self.run, *both, STEPS, self._folder / "trace")
        return found.reason.startswith(AGREES)

    def _locate(self, pair: Pair, step: int) -> WrongPlace:
        def run(program: Program, folder: Path) -> Outcome:
            own = replace(program, trace=None) == pair.program
            return (self.run if own else self._shared)(program, folder)

        folder, before = self._folder / "trace", self._before
        return locate(run, pair.program, pair.reference, step, folder, before=before)

    def cost(self, pair: Pair) -> dict[str, Any]:
        """Return what a search costs beside the run and its reference, each run by itself."""
        self.run(pair.program, self._folder / "run")  # starts the server
        written = 0

        def run(program: Program, folder: Path) -> Outcome:
            nonlocal written
            outcome = self.run(program, folder)
            written += sum(path.stat().st_size for path in folder.glob("trace*.*"))
            return outcome

        started = time.monotonic()
        step = self.first(pair)
        plain = time.monotonic() - started
        place = self._folder / "trace"
        found = locate(run, pair.program, pair.reference, step or 1, place, before=self._before)
        whole = time.monotonic() - started
        return {
            "name": pair.name,
            "training": pair.training,
            "megatron": pair.program.upstream.megatron_name,
            "ranks": pair.program.ranks,
            "plain_seconds": round(plain, 1),
            "located_seconds": round(whole, 1),
            "trace_bytes": written,
            "said": saying.sentence(found),
            "verdict": within(plain, whole, written, left=place.exists()),
        }

    def _shared(self, program: Program, folder: Path) -> Outcome:
        """Return the run of a reference, with its traces in a folder that may be removed."""
        key = identity(program)
        if key not in self._traced:
            if len(self._traced) == MOST_TRACED:
                shutil.rmtree(self._traced.pop(next(iter(self._traced))).folder)
            self._traced[key] = self.run(program, Path(tempfile.mkdtemp(dir=self._folder)))
        folder.mkdir(parents=True)
        for path in self._traced[key].folder.glob("trace*.*"):
            os.link(path, folder / path.name)
        return self._traced[key]


def within(plain: float, whole: float, written: int, *, left: bool) -> str:
    """Return ``within`` where a search keeps its limits of time and disk, and ``over`` elsewhere.

    Args:
        left: Whether files are left.
    """
    good = whole <= MOST_TIMES * plain and written <= MOST_BYTES and not left
    return "within" if good else "over"


def identity(program: Program) -> tuple[object, ...]:
    """Return what decides what a program computes; CP of size 1 is the same as no option."""
    flags = Flags(program.arguments)
    flags = flags.without(CONTEXT) if flags.one(CONTEXT) == "1" else flags
    options = frozenset((name, flags.get(name)) for name in flags.names())
    others = tuple(sorted(program.environment.items()))
    return repr(replace(program, arguments=(), environment={})), options, others


def clean_row(pair: Pair, found: WrongPlace, seconds: float) -> dict[str, Any]:
    """Return what was named where nothing is wrong."""
    one = found.culprit
    # What ends with an error of its own says nothing about false alarms.
    stopped = one is not None and one.tensor.startswith("no output")
    alarm = "alarm" if one and not stopped else "not run"
    return {
        "name": pair.name,
        "megatron": pair.program.upstream.megatron_name,
        "group": pair.training,
        "said": saying.sentence(found),
        "compared": found.compared,
        "left_out": [f"{what} ({count})" for what, count in found.left_out],
        "seconds": round(seconds, 1),
        "verdict": "agrees" if found.reason.startswith(AGREES) else alarm,
    }


def row_of(
    pair: Pair, step: int | None, found: WrongPlace | None, seconds: float
) -> dict[str, Any]:
    """Return what was named beside what was planted."""
    one = found.culprit if found else None
    phase, module = expected(pair.name)
    said = {"breaks": pair.breaks, "reported": pair.reported} if pair.breaks else {}
    row = {
        "name": pair.name,
        **said,
        "megatron": pair.program.upstream.megatron_name,
        "transformer_engine": pair.program.upstream.engine_version,
        "training": pair.training,
        "step": step,
        "planted": phase,
        "phase": one.phase if one else "",
        "module": one.module if one else "",
        "computed_at": one.computed_at if one else "",
        "said": saying.sentence(found) if found else "",
        "compared": found.compared if found else 0,
        "seconds": round(seconds, 1),
    }
    return row | {"verdict": judged(row, module)}


def expected(name: str) -> tuple[str, str]:
    """Return the phase and the module in which a defect is planted."""
    others = {kind.name: (kind.phase, kind.module) for kind in KINDS}
    return others[name] if name in others else PLANTED[name.removesuffix("@release")]


def judged(row: Mapping[str, Any], module: str) -> str:
    """Return ``exact``, ``phase``, ``near`` (only one of two), ``other``, ``none`` or ``control``.

    A defect that is in no module of its own (``.*``) is ``phase`` where its phase is named.
    Where no phase is planted, nothing is to be wrong, and ``control`` is an answer without one.

    Args:
        module: In which the defect is planted, as a regular expression.
    """
    if not row["phase"]:
        return "none" if row["planted"] else "control"
    right = bool(re.fullmatch(module, row["module"]))
    if row["phase"] == row["planted"] and module == ".*":
        return "phase"
    if row["phase"] == row["planted"]:
        return "exact" if right else "near"
    return "near" if right and module not in ("", ".*") else "other"


def summary(rows: list[dict[str, Any]]) -> dict[str, int]:
    """Return how many rows have each verdict."""
    return dict(sorted(Counter(row["verdict"] for row in rows).items()))


def main() -> None:
    """Run what is not in the record yet, and write it after each row."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dev", required=True)
    parser.add_argument("--release", default="pip:megatron-core==0.19.2")
    parser.add_argument("--te", default="pip:transformer-engine==2.20.2")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[], help="names of defects")
    parser.add_argument("--seed", type=int, choices=SEEDS, help="only trainings with this seed")
    parser.add_argument("--most", type=int, default=1_000_000, help="most rows of this call")
    parser.add_argument("--again", action="store_true", help="also those that are in the file")
    parser.add_argument("--timeout", type=float, default=180.0, help="longest time of a program")
    parser.add_argument("what", choices=("planted", "kinds", "agreeing", "cost"))
    given = parser.parse_args()
    cache = default_cache()
    dev, release = (open_upstream(at, given.te, cache=cache) for at in (given.dev, given.release))

    def engine(version: str) -> Upstream:
        return open_upstream(given.dev, f"pip:transformer-engine=={version}", cache=cache)

    record = json.loads(given.json.read_text()) if given.json.is_file() else {}
    rows: dict[str, dict[str, Any]] = {row["name"]: row for row in record.get("rows", [])}
    with tempfile.TemporaryDirectory() as name, Servers(Path(name), path=ROOT) as servers:
        locating = Locating(servers, Path(name), given.timeout)

        def cost(pair: Pair) -> dict[str, Any]:
            alone = Locating(servers, Path(tempfile.mkdtemp(dir=name)), given.timeout)
            return alone.cost(pair)

        pairs = list(
            agreeing(dev, Path(name) / "cases", SEEDS) if given.what == "agreeing"
            else kinds(dev, engine) if given.what == "kinds" else planted(dev, release)
        )  # fmt: skip
        if given.what == "cost":
            pairs = [pair for pair in pairs if pair.name in COSTLY]
        make = {"agreeing": locating.clean, "cost": cost}.get(given.what, locating.planted)
        made = 0
        for pair in pairs:
            wanted = pair.name in given.only if given.only else True
            wanted &= not given.seed or pair.name.endswith(f"seed {given.seed}")
            if not wanted or (pair.name in rows and not given.again):
                continue
            if made == given.most:
                break
            made += 1
            row = rows[pair.name] = make(pair)
            sys.stderr.write(f"{row['verdict']:<8}{pair.name}: {row['said']}\n")
            listed = [rows[pair.name] for pair in pairs if pair.name in rows]
            content = {
                "transformer_engine": dev.engine_version,
                "summary": summary(listed),
                "not_run": [pair.name for pair in pairs if pair.name not in rows],
                "rows": listed,
            }
            write_record(given.json, content)


if __name__ == "__main__":
    main()
