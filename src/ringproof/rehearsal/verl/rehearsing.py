"""The rehearsal of a launch of verl: compose, shrink, run, run it without CP, compare."""

from __future__ import annotations

import copy
import dataclasses
import functools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringproof.files import make_folder, make_new_folder
from ringproof.launch.overrides import PPO, VERL_MODULES
from ringproof.launch.small import verl as small_verl
from ringproof.launch.small.layout import Layout
from ringproof.launch.small.shrink import SmallProgram
from ringproof.launch.small.verl import OverrideDraft
from ringproof.rehearsal.rehearsing import (
    IMPORT_VARIABLES,
    Progress,
    Request,
    changed_by_override,
    estimate,
    open_other,
    rehearsal_of,
    stopped,
    traced,
)
from ringproof.rehearsal.runs.outcome import UpstreamFails
from ringproof.rehearsal.runs.releases import choose_releases
from ringproof.rehearsal.runs.server import ENVIRONMENT, Servers
from ringproof.rehearsal.runs.upstreams import open_upstream
from ringproof.rehearsal.verdict.agreement import INCOMPARABLE, Agreement
from ringproof.rehearsal.verdict.path import RequestedPath, path_taken
from ringproof.rehearsal.verdict.refusal import refusal_of
from ringproof.rehearsal.verdict.variant import Rehearsal, Variant
from ringproof.rehearsal.verl import metrics
from ringproof.rehearsal.verl.model import Divisors
from ringproof.rehearsal.verl.running import VerlLaunch, VerlRuns, read_verl
from ringproof.rehearsal.verl.upstreams import open_stack, open_verl

ACTOR_NOTE = (
    "The actor of verl.trainer.main_ppo was trained by verl's TrainingWorker on made-up rollouts; "
    "rollouts, rewards, advantages, the reference model and the critic were not rehearsed."
)


@dataclass(frozen=True)
class VerlRequest:
    """What is to be rehearsed.

    Attributes:
        base: Launch and options that every rehearsal has.
        verl: verl, as `open_verl` takes it; empty for a release.
        bridge: Megatron-Bridge, as `choose_releases` takes it and Megatron-LM.
    """

    base: Request
    verl: str = ""
    bridge: str = ""


def rehearse_verl(request: VerlRequest, progress: Progress) -> Rehearsal:
    """Run a launch of verl in small, and with an override changed where one is asked for.

    Raises:
        InputError: The launch, an upstream or an option cannot be used.
    """
    started, base = time.monotonic(), request.base
    changed, words = changed_by_override(base, "hydra")
    progress("open", "verl, Megatron-LM and Transformer Engine")
    source: dict[str, Any] = {"cache": base.cache, "offline": base.offline}
    assert base.launch.script in VERL_MODULES
    verl = open_verl(request.verl, **source)
    launches = [
        read_verl(verl[0], base.launch.script, each, base.launch.ranks)
        for each in (base.launch.arguments, words)[: 2 if base.against else 1]
    ]
    releases = choose_releases(base.megatron, request.bridge, vanilla=launches[0].vanilla, **source)
    if releases.said:
        progress("releases", f"runs {releases.said}")
    upstream = open_upstream(releases.megatron, base.engine, **source, option="--upstream")
    upstreams = upstream, open_other(upstream, base, changed)
    make_folder(base.folder, field="--out")
    if base.keeps is not None:
        make_new_folder(base.keeps, field="--keep-trace")
    variants, programs = [], []
    variables = {k: v for k, v in base.launch.environment.items() if k.startswith(IMPORT_VARIABLES)}
    environment = {**ENVIRONMENT, **variables}
    with Servers(base.folder, environment=environment, import_seconds=base.timeout) as servers:
        for index, launch in enumerate(launches):
            stack = open_stack(
                upstreams[index], verl, releases.bridge, vanilla=launch.vanilla, **source
            )
            folder = (base.folder / ("against" if index else "launch")).resolve()
            runs = VerlRuns(
                servers, stack, base.folder, base.iterations, base.dtype, base.timeout, progress,
                base.launch.environment,
            )  # fmt: skip
            name = base.against if index else "launch"
            variants.append(one := _Variants(base, runs, launch).variant(name, folder))
            programs += [runs.program(one.small)] if one.small else []
        return rehearsal_of(base, variants, started, runs.start, programs)


class _Variants:
    """Rehearsals of one launch on one stack."""

    def __init__(self, request: Request, runs: VerlRuns, launch: VerlLaunch) -> None:
        self._request, self._runs, self._launch = request, runs, launch

    def variant(self, name: str, folder: Path) -> Variant:
        """Shrink the launch, run it, and run its reference where it starts."""
        launch = self._launch
        draft = OverrideDraft(copy.deepcopy(launch.config))
        asked = RequestedPath(*small_verl.requested(draft, launch.module), ())
        before = small_verl.read_layout(draft, launch.module, launch.world)
        after = small_verl.shrink_ranks(draft, launch.module, before, self._request.max_ranks)
        if self._request.machine is not None:
            estimate(after.world, self._request.max_ranks).check(self._request.machine)
        small_verl.shrink_settings(draft, launch.module, before, after, self._request.iterations)
        variant = self._blank(name, asked)
        try:
            self._put_model(draft, asked, after, folder)
        except UpstreamFails as failed:
            raise self._runs.unfit(failed.failure) from failed
        small = self._runs.small(launch, draft, after.world)
        outcome = self._runs.run(small, name, folder / "program")
        failure = outcome.failure
        path = path_taken(asked, outcome.ranks, finished=failure is None)
        departures = (*metrics.lacking(outcome), *path.departures)
        path = dataclasses.replace(path, departures=departures)
        variant = dataclasses.replace(
            variant, small=small, outcome=outcome, path=path, doubles=metrics.doubles(outcome)
        )
        if failure is not None:
            refusal = refusal_of(failure, outcome.ranks, self._request.skills, asked.feature)
            variant = dataclasses.replace(variant, refusal=refusal)
            expected = functools.partial(self._reference, draft, after)
            given = (self._runs.start, self._runs.program, folder, expected)
            return stopped(self._request, variant, *given)
        return self._compared(variant, draft, after, folder)

    def _blank(self, name: str, asked: RequestedPath) -> Variant:
        launch, stack = self._request.launch, self._runs.stack
        notes = (*launch.notes, ACTOR_NOTE) if self._launch.module == PPO else launch.notes
        sized = dataclasses.replace(launch, nodes=1, ranks_per_node=self._launch.world, notes=notes)
        return Variant(
            name=name,
            launch=sized,
            megatron=stack.name,
            engine=stack.upstream.engine_version,
            dtype=self._request.dtype,
            path=path_taken(asked, (), finished=False),
            does_without=True,
        )

    def _put_model(
        self, draft: OverrideDraft, asked: RequestedPath, after: Layout, folder: Path
    ) -> None:
        """Write the tiny model and put it in the place of the launch's."""
        module = self._launch.module
        at = small_verl.PLACES[module].engine
        virtual = draft.integer(f"{at}.virtual_pipeline_model_parallel_size")
        heads = after.tensor
        if any(kind.startswith("a2a") for kind in asked.comm_types) and not asked.dynamic:
            heads *= after.context
        divisors = Divisors(heads, after.pipeline * virtual, after.expert)
        tiny = self._runs.make_model(draft, module, divisors, folder / "model")
        small_verl.put_model(draft, module, str(folder / "model"), tiny.left_out)

    def _compared(
        self, variant: Variant, draft: OverrideDraft, after: Layout, folder: Path
    ) -> Variant:
        """Return a variant that ran to its end with the verdict against its reference."""
        if not variant.path.requested.parallel:
            return dataclasses.replace(variant, agreement=Agreement(None, INCOMPARABLE))
        small = self._reference(draft, after)
        expected = self._runs.run(small, "reference", folder / "reference")
        assert variant.outcome is not None
        judged = variant.compared(small, expected)
        told = metrics.differing(variant.outcome, expected) if judged.agreement.agrees else ()
        judged = dataclasses.replace(judged, metrics=tuple(told))
        return traced(self._request, judged, self._runs.start, self._runs.program, folder)

    def _reference(self, draft: OverrideDraft, after: Layout) -> SmallProgram:
        """Take CP out of a draft, and return its program."""
        draft.changes = []
        layout = small_verl.put_reference(draft, self._launch.module, after)
        return self._runs.small(self._launch, draft, layout.world)
