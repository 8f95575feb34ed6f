"""The conformance matrix of verl: each case with CP on several ranks, and on one rank without."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from ringproof.errors import InputError
from ringproof.launch.overrides import CRITIC, PPO, REFERENCE, SFT
from ringproof.launch.small import verl as small_verl
from ringproof.launch.small.layout import Layout
from ringproof.launch.small.verl import OverrideDraft
from ringproof.rehearsal.conform.cases import VERL, Case
from ringproof.rehearsal.conform.matrix import LIMIT_SECONDS, Progress, judge, recorded, with_place
from ringproof.rehearsal.conform.record import CaseResult, ConformanceRecord, Status
from ringproof.rehearsal.locate.locating import locate
from ringproof.rehearsal.locate.result import WrongPlace
from ringproof.rehearsal.runs.outcome import Outcome, UpstreamFails
from ringproof.rehearsal.runs.server import Servers
from ringproof.rehearsal.verdict.agreement import compare
from ringproof.rehearsal.verl import metrics
from ringproof.rehearsal.verl.config import REFUSED
from ringproof.rehearsal.verl.model import Divisors
from ringproof.rehearsal.verl.running import VerlLaunch, VerlRuns, read_verl
from ringproof.rehearsal.verl.upstreams import VerlStack

MODULES = MappingProxyType({"sft": SFT, "ppo": PPO, "critic": CRITIC, "reference": REFERENCE})
DIVISORS = Divisors(heads=4, layers=4, experts=4)  # what all layouts of the cases divide


@dataclass
class VerlMatrix:
    """Cases on one stack, with models and references kept between them.

    Attributes:
        vanilla: Whether mbridge takes the place of Megatron-Bridge.
        locates: Whether the first wrong tensor of a case that differs is looked for.
    """

    runs: VerlRuns
    folder: Path
    vanilla: bool
    locates: bool = False

    def __post_init__(self) -> None:
        self._models: dict[str, Path] = {}
        self._references: dict[tuple[str, ...], Outcome] = {}

    def run(self, case: Case, faults: Sequence[str] = ()) -> CaseResult:
        """Run a case, and its reference if that has not run yet.

        Args:
            faults: Planted defects, as `Program` has them.

        Raises:
            InputError: Versions do not fit together.
        """
        try:
            outcome = self._trained(case, case.arguments, case.ranks, case.id, faults)
        except InputError as error:
            if not error.sentence.startswith(REFUSED):
                raise
            return CaseResult(case.id, Status.NOT_OFFERED, error.sentence)
        lacking = metrics.lacking(outcome)
        if lacking:
            return CaseResult(case.id, Status.OTHER_PATH, lacking[0])
        if outcome.failure is not None:
            return judge(case, outcome, None, self.runs.iterations)
        reference = self._reference(case)
        found = judge(case, outcome, reference, self.runs.iterations)
        first = compare(outcome, reference, case.dtype, evaluated=case.evaluates).first
        if self.locates and found.status is Status.DIFFERS and first is not None:
            return with_place(found, self.located(case, faults, first.moment, outcome))
        told = metrics.differing(outcome, reference) if found.status is Status.AGREES else ()
        return replace(found, message=" ".join(told) or found.message)

    def located(
        self, case: Case, faults: Sequence[str], step: int, before: Outcome | None = None
    ) -> WrongPlace:
        """Find the first wrong tensor of a case, against the same layout of ranks without CP."""
        launch, draft, layout = self._draft(case, case.arguments, case.ranks)
        program = self.runs.program(self.runs.small(launch, draft, case.ranks), faults)
        layout = small_verl.put_reference(draft, launch.module, layout)
        expected = self.runs.program(self.runs.small(launch, draft, layout.world))
        folder = self.folder / f"{case.id}-trace"
        return locate(self.runs.start, program, expected, step, folder, before=before)

    def _reference(self, case: Case) -> Outcome:
        key = (case.model, case.data, case.both)
        if key not in self._references:
            name = f"reference-{len(self._references)}-{case.model}-{case.data}"
            self._references[key] = self._trained(case, "", 1, name)
        return self._references[key]

    def _trained(
        self, case: Case, arguments: str, ranks: int, name: str, faults: Sequence[str] = ()
    ) -> Outcome:
        launch, draft, _ = self._draft(case, arguments, ranks)
        small = self.runs.small(launch, draft, ranks)
        return self.runs.run(small, name, self.folder / name, faults)

    def _draft(
        self, case: Case, arguments: str, ranks: int
    ) -> tuple[VerlLaunch, OverrideDraft, Layout]:
        """Return the launch of a case, its overrides in small and its layout of ranks."""
        module = MODULES[case.data]
        program, own = words_of(case, arguments, ranks, vanilla=self.vanilla)
        launch = read_verl(self.runs.stack.verl, module, (*program, *own), ranks)
        draft = OverrideDraft(copy.deepcopy(launch.config))
        layout = small_verl.read_layout(draft, module, ranks)
        small_verl.shrink_settings(draft, module, layout, layout, self.runs.iterations)
        if case.model not in self._models:
            folder = self.folder / f"model-{case.model}"
            try:
                self.runs.make_model(draft, module, DIVISORS, folder)
            except UpstreamFails as failed:
                raise self.runs.unfit(failed.failure) from failed
            self._models[case.model] = folder
        small_verl.put_model(draft, module, str(self._models[case.model]))
        draft.words.extend(own)  # what a case asks for is not left out
        return launch, draft, layout


def words_of(
    case: Case, arguments: str, ranks: int, *, vanilla: bool
) -> tuple[list[str], list[str]]:
    """Return the overrides of a case's program, and those of the case with these arguments."""
    places = small_verl.PLACES[MODULES[case.data]]
    values: Mapping[str, str] = {
        "{engine}": places.engine,
        "{actor}": places.actor,
        "{limit}": f"{places.actor}.{places.limit}",
        "{config}": f"{places.engine}.override_transformer_config",
        "{path}": VERL["models"][case.model],
        "{ranks}": str(ranks),
        "{vanilla}": str(vanilla),
    }
    texts = f"{VERL['programs'][case.data]} {VERL['base']}", f"{case.both} {arguments}"
    for name, value in values.items():
        texts = texts[0].replace(name, value), texts[1].replace(name, value)
    return texts[0].split(), texts[1].split()


def run_verl_matrix(
    stack: VerlStack, cases: Sequence[Case], folder: Path, *, vanilla: bool, iterations: int,
    name: str, locates: bool, progress: Progress,
) -> ConformanceRecord:  # fmt: skip
    """Run cases one after the other; one that hangs or fails does not stop the others."""
    with Servers(folder) as servers:
        runs = VerlRuns(
            servers, stack, folder, iterations, "float32", LIMIT_SECONDS, lambda *_: None
        )
        matrix = VerlMatrix(runs, folder, vanilla, locates)
        return recorded(
            stack.upstream, cases, matrix.run, origin=stack.name, iterations=iterations,
            name=name or stack.short, progress=progress,
        )  # fmt: skip
