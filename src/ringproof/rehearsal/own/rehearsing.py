"""The rehearsal of a user's program on megatron-core: run it, run it with CP 1, compare."""

from __future__ import annotations

import dataclasses
import functools
import re
import time
from collections.abc import Sequence
from pathlib import Path

from ringproof.errors import InputError, shown
from ringproof.files import make_folder
from ringproof.launch.imports import imports_of
from ringproof.launch.left_out import ENVIRONMENT as DECIDING
from ringproof.launch.reading import Launch
from ringproof.launch.small.draft import Change
from ringproof.launch.small.shrink import SmallProgram
from ringproof.rehearsal.locate.factors import named
from ringproof.rehearsal.own.report import (
    STEPS,
    WITHOUT_CP,
    AskedLayout,
    combined,
    layout_of,
    repeats,
    reported,
    undrawn,
    without_tokens,
)
from ringproof.rehearsal.protocol.program import Program, Upstream
from ringproof.rehearsal.rehearsing import (
    IMPORT_VARIABLES,
    Progress,
    Request,
    changed_by_against,
    estimate,
    open_one,
    open_other,
    rehearsal_of,
)
from ringproof.rehearsal.runs.outcome import Outcome, UpstreamFails
from ringproof.rehearsal.runs.releases import choose_releases
from ringproof.rehearsal.runs.server import ENVIRONMENT, NO_BYTECODE, Servers
from ringproof.rehearsal.verdict.agreement import INCOMPARABLE, Agreement, compare
from ringproof.rehearsal.verdict.path import RequestedPath, path_taken
from ringproof.rehearsal.verdict.refusal import refusal_of
from ringproof.rehearsal.verdict.variant import Rehearsal, Variant
from ringproof.rehearsal.verl.metrics import moved

RANKS = Path(__file__).parent / "ranks"
PRELOAD = str(RANKS / "preload.py")
HOOK = "ringproof.rehearsal.own.ranks.hooks:install"
LOOP = "megatron.training"
OF_LOOPS = (
    *(f"{LOOP}.{name}" for name in ("pretrain", "training", "initialize", "arguments", "get_args")),
    "megatron.training.global_vars.get_args",
    "megatron.bridge",
    "megatron.post_training",
)
"""Names of Megatron's own training loop and of its command line, and of Megatron-Bridge."""
CP_OPTION = re.compile(r"--(context[-_]parallel([-_]size)?|cp([-_]size)?)(=.*)?")
NOTE = (
    "It is a program on megatron-core's library without Megatron's command line, so it ran as it "
    "is and was not shrunk."
)
WHOLE_ON_EACH = (
    " Each rank of a CP group had the whole sequence: together they trained on each token of the "
    "reference as many times as the group has ranks."
)
WRITTEN_SIZE = " A CP size that is written in the program itself is not taken out of it."
UNDRAWN = (
    "Its weights could not be drawn by their place ({}), so each number of ranks starts from those "
    "of the program itself."
)
UNKNOWN = RequestedPath(False, 1, ("p2p",), ())


def is_own_program(launch: Launch) -> bool:
    """Return whether a launch starts a file of the user's that uses megatron-core alone.

    Megatron's own training loop and Megatron-Bridge have command lines and recipes, which are
    shrunk in other ways. What the file imports is read, and nothing of it is executed.
    """
    names = imports_of(launch.script)
    loops = any(name == LOOP or name.startswith(OF_LOOPS) for name in names)
    return not loops and any(name.startswith("megatron.core") for name in names)


def rehearse_own(request: Request, progress: Progress) -> Rehearsal:
    """Run a user's program for some steps, and with CP 1.

    Raises:
        InputError: The launch has too many ranks, or an upstream or an option cannot be used.
    """
    started = time.monotonic()
    if request.launch.ranks > request.max_ranks:
        sentence = (
            f"{request.launch.ranks} ranks are launched, more than {request.max_ranks}; a program "
            "of your own is not shrunk: launch it on fewer ranks, or give --max-ranks"
        )
        raise InputError("the launch", sentence)
    if request.machine is not None:
        estimate(request.launch.ranks, request.max_ranks).check(request.machine)
    progress("open", "Megatron-Core and Transformer Engine")
    if not request.megatron:
        newest = choose_releases("", "", cache=request.cache, offline=request.offline, alone=True)
        progress("releases", f"runs {newest.said}")
        request = dataclasses.replace(request, megatron=newest.megatron)
    changed, _ = changed_by_against(request)
    upstream = open_one(request, "--upstream")
    tasks = [("launch", request.launch, upstream)]
    if request.against:
        other = open_other(upstream, request, changed)
        tasks.append((request.against, changed.launch, other))
    make_folder(request.folder, field="--out")
    variables = {
        **ENVIRONMENT,
        NO_BYTECODE: "1",  # the program's modules lie in a folder of the user
        **{k: v for k, v in request.launch.environment.items() if k.startswith(IMPORT_VARIABLES)},
    }
    with Servers(request.folder, environment=variables, import_seconds=request.timeout) as servers:
        runs = _OwnRuns(request, servers, progress)
        folders = (request.folder / name for name in ("launch", "against"))
        variants = [runs.variant(*one, at) for one, at in zip(tasks, folders, strict=False)]
    return rehearsal_of(request, variants, started)


class _OwnRuns:
    """Runs of one request."""

    def __init__(self, request: Request, servers: Servers, progress: Progress) -> None:
        self._request, self._servers, self._progress = request, servers, progress

    def variant(self, name: str, launch: Launch, upstream: Upstream, folder: Path) -> Variant:
        """Run the program, and its reference where it starts."""
        launch = dataclasses.replace(
            launch, script=str(Path(launch.script).resolve()), notes=(*launch.notes, NOTE)
        )
        small = self._small(launch, launch.arguments, launch.ranks)
        variant = Variant(
            name=name,
            launch=launch,
            megatron=upstream.megatron_name,
            engine=upstream.engine_version,
            dtype=self._request.dtype,
            path=path_taken(UNKNOWN, (), finished=False),
        )
        try:
            outcome = self._run(upstream, small, name, folder / "program")
        except UpstreamFails as failed:
            refusal = refusal_of(failed.failure, (), self._request.skills)
            return dataclasses.replace(variant, refusal=refusal)
        layout = layout_of(outcome)
        asked = layout.path if layout else UNKNOWN
        path = path_taken(asked, outcome.ranks, finished=outcome.failure is None)
        dtype = "bfloat16" if layout and layout.bf16 else "float32"
        why = undrawn(outcome)
        if why:
            launch = dataclasses.replace(launch, notes=(*launch.notes, UNDRAWN.format(why)))
        variant = dataclasses.replace(
            variant, launch=launch, small=small, outcome=outcome, path=path, dtype=dtype
        )
        if outcome.failure is not None:
            skills = self._request.skills
            refusal = refusal_of(outcome.failure, outcome.ranks, skills, asked.feature)
            return dataclasses.replace(variant, refusal=refusal)
        return self._compared(variant, layout, upstream, folder / "reference")

    def _compared(
        self, variant: Variant, layout: AskedLayout | None, upstream: Upstream, folder: Path
    ) -> Variant:
        """Return a variant that ran to its end with the verdict against the program with CP 1."""
        assert variant.outcome is not None and variant.small is not None
        why = _incomparable(variant.outcome, layout)
        if layout is None or why is not None:
            return dataclasses.replace(variant, agreement=why or Agreement(None, ""))
        launch = variant.launch
        words, changes = _with_cp_1(launch.arguments, layout)
        ranks = launch.ranks // layout.ranks_of_reference
        small = dataclasses.replace(
            self._small(launch, words, ranks, without_cp=True), changes=changes
        )
        expected = self._run(upstream, small, "reference", folder)
        judged = variant.compared(small, expected, functools.partial(_agreement, layout=layout))
        both = reported(variant.outcome), reported(expected)
        told = moved(*both, shown) if judged.agreement.agrees else ()
        return dataclasses.replace(judged, metrics=tuple(told))

    def _small(
        self, launch: Launch, words: Sequence[str], ranks: int, *, without_cp: bool = False
    ) -> SmallProgram:
        given = {k: v for k, v in launch.environment.items() if k.startswith(DECIDING)}
        steps = str(self._request.iterations)
        environment = {**given, STEPS: steps, WITHOUT_CP: "1" if without_cp else ""}
        changes = (
            Change("steps", "its own", f"at most {steps}", "What happens later."),
            Change("dropout", "its own", "0", "A seed of dropout that differs between CP ranks."),
            Change(
                "weights", "its own", "drawn by name and place",
                "Its own initialisation; a checkpoint that it loads is loaded.",
            ),
        )  # fmt: skip
        return SmallProgram(
            launch.script, tuple(words), environment, ranks, changes, self._request.dtype
        )

    def _run(self, upstream: Upstream, small: SmallProgram, name: str, folder: Path) -> Outcome:
        program = Program(
            upstream, small.script, small.arguments, small.ranks, dict(small.environment),
            small.dtype, (HOOK,), same_weights=False,
        )  # fmt: skip
        given = (name, program, PRELOAD, folder, self._request.timeout, self._progress)
        return combined(self._servers.announced(*given))


def _incomparable(outcome: Outcome, layout: AskedLayout | None) -> Agreement | None:
    """Return why no reference can be run; ``None`` where one can."""
    if not outcome.ranks[0].iterations:
        nothing = "No call of an optimizer was seen, so nothing is known of its training."
        return Agreement(False, nothing)
    if layout is None:
        text = (
            "It did not call initialize_model_parallel, so that CP cannot be taken out of it; "
            "compare it with a launch without CP of your own."
        )
        return Agreement(False, text)
    if layout.path.dynamic:
        text = "It asks for Dynamic CP, for which no reference of an own program is made."
        return Agreement(False, text)
    if not layout.path.parallel:
        return Agreement(None, INCOMPARABLE)
    return None


def _agreement(outcome: Outcome, expected: Outcome, dtype: str, layout: AskedLayout) -> Agreement:
    """Compare a program with itself at CP 1, and say what its tokens or a factor tell."""
    by_norms = not (outcome.losses or expected.losses)
    agreement = compare(outcome, expected, dtype, by_norms=by_norms)
    meant = _factor(agreement, layout)
    if agreement.other_tokens and repeats(outcome, expected, layout.path.size):
        agreement = compare(without_tokens(outcome), without_tokens(expected), dtype)
        meant = WHOLE_ON_EACH
    elif agreement.other_tokens:
        meant = WRITTEN_SIZE
    return dataclasses.replace(agreement, reason=f"{agreement.reason}{meant}")


def _factor(agreement: Agreement, layout: AskedLayout) -> str:
    """Say which parallel size the first difference is a factor of; empty where it is of none."""
    first = agreement.first
    if first is None or not first.value or not first.reference:
        return ""
    sizes = {"CP": layout.path.size, "TP": layout.tensor, "PP": layout.pipeline}
    said = named(first.value / first.reference, sizes)
    return f" That is the value without CP multiplied by {said}." if "(" in said else ""


def _with_cp_1(
    words: Sequence[str], layout: AskedLayout
) -> tuple[tuple[str, ...], tuple[Change, ...]]:
    """Return a command line in which options that look like the CP size are 1, and the changes."""
    size, found, follows = str(layout.path.size), list(words), False
    changes = [Change("context_parallel_size", size, "1", "")]
    for index, word in enumerate(words):
        if follows and word == size:
            found[index] = "1"
            changes.append(Change(words[index - 1], size, "1", ""))
        match = CP_OPTION.fullmatch(word)
        follows = match is not None and match[4] is None
        if match is not None and match[4] == f"={size}":
            found[index] = f"{word.partition('=')[0]}=1"
            changes.append(Change(word.partition("=")[0], size, "1", ""))
    return tuple(found), tuple(changes)
