"""The rehearsal of a launch of Megatron-Bridge: read, shrink, run, run it without CP, compare.

The launch's script runs twice. In the first run it stops where Bridge's ``pretrain`` begins, and
the configuration that it made is read, with the recipe and the overrides of the launch in it. In
the second one that configuration is made small, and trains.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringproof.errors import InputError, shown
from ringproof.files import make_folder, make_new_folder
from ringproof.launch.left_out import ENVIRONMENT as DECIDING
from ringproof.launch.overrides import BRIDGE
from ringproof.launch.small import bridge as small_bridge
from ringproof.launch.small import verl as overrides
from ringproof.launch.small.layout import Layout
from ringproof.launch.small.shrink import SmallProgram
from ringproof.launch.small.verl import OverrideDraft
from ringproof.rehearsal.bridge.upstreams import is_bridge, open_pair
from ringproof.rehearsal.protocol.program import Program, Upstream
from ringproof.rehearsal.protocol.reports import Failure
from ringproof.rehearsal.rehearsing import (
    IMPORT_VARIABLES,
    Progress,
    Request,
    changed_by_override,
    estimate,
    find_script,
    open_other,
    rehearsal_of,
    stopped,
    traced,
)
from ringproof.rehearsal.runs.outcome import Outcome, UpstreamFails
from ringproof.rehearsal.runs.releases import choose_releases
from ringproof.rehearsal.runs.server import ENVIRONMENT, Servers
from ringproof.rehearsal.verdict.agreement import INCOMPARABLE, NO_STEPS, Agreement
from ringproof.rehearsal.verdict.path import RequestedPath, path_taken
from ringproof.rehearsal.verdict.refusal import refusal_of
from ringproof.rehearsal.verdict.variant import Rehearsal, Variant
from ringproof.rehearsal.verl import metrics
from ringproof.rehearsal.verl.upstreams import unfit

RANKS = Path(__file__).parent / "ranks"
START, PRELOAD = str(RANKS / "start.py"), str(RANKS / "preload.py")
SCRIPTS = ("", "scripts/training")
READ_SECONDS = 120.0
OF_THE_LAUNCH = ("OverridesError", "LookupError", "AttributeError: Recipe", "SystemExit: 2")
"""How errors begin that name what a launch asks for and Bridge does not have."""


@dataclass(frozen=True)
class BridgeRequest:
    """What is to be rehearsed.

    Attributes:
        base: Launch and options that every rehearsal has.
        bridge: Megatron-Bridge; empty where ``base.megatron`` names it, and Megatron-LM is to be
            the one that fits, and where the newest release that fits is to be taken.
    """

    base: Request
    bridge: str = ""


def rehearse_bridge(request: BridgeRequest, progress: Progress) -> Rehearsal:
    """Run a launch of Megatron-Bridge in small.

    Raises:
        InputError: The launch, an upstream or an option cannot be used.
    """
    started, base = time.monotonic(), request.base
    changed, words = changed_by_override(base, "Bridge")
    progress("open", "Megatron-Bridge, Megatron-LM and Transformer Engine")
    source: dict[str, Any] = {"cache": base.cache, "offline": base.offline}
    bridge, megatron = request.bridge, base.megatron
    if is_bridge(megatron) and not bridge:
        bridge, megatron = megatron, ""
    if not bridge:
        releases = choose_releases(megatron, "", **source)
        bridge, megatron = releases.bridge, releases.megatron
        progress("releases", f"runs {releases.said or bridge}")
    upstream, name = open_pair(bridge, megatron, base.engine, **source)
    other = open_other(upstream, base, changed)
    make_folder(base.folder, field="--out")
    if base.keeps is not None:
        make_new_folder(base.keeps, field="--keep-trace")
    variables = {k: v for k, v in base.launch.environment.items() if k.startswith(IMPORT_VARIABLES)}
    variants, programs = [], []
    with Servers(base.folder, environment={**ENVIRONMENT, **variables}) as servers:
        tasks = [("launch", upstream, base.launch.arguments, "launch")]
        if base.against:
            tasks.append((base.against, other, words, "against"))
        for title, on, given, place in tasks:
            runs = _Runs(base, servers, on, name, progress)
            variants.append(one := runs.variant(title, given, base.folder / place))
            programs += [runs.program(one.small)] if one.small else []
        return rehearsal_of(base, variants, started, runs.start, programs)


class _Runs:
    """Runs of a launch on one Megatron-Bridge."""

    def __init__(
        self, request: Request, servers: Servers, upstream: Upstream, name: str, progress: Progress
    ) -> None:
        self._request, self._servers, self._upstream = request, servers, upstream
        self._name, self._progress = name, progress
        self._script = _script(request, upstream)

    def variant(self, name: str, words: tuple[str, ...], folder: Path) -> Variant:
        """Read the configuration, shrink it, run it, and run its reference where it starts."""
        request = self._request
        make_folder(folder, field="--out")
        # A new one, since Bridge takes what it finds packed there.
        data = tempfile.mkdtemp(dir=folder.resolve(), prefix="data-")
        config, hub = self._read(words, data, folder / "read")
        draft = OverrideDraft(copy.deepcopy(config))
        asked = RequestedPath(*overrides.requested(draft, BRIDGE), _levels(draft))
        before = overrides.read_layout(draft, BRIDGE, request.launch.ranks)
        after = overrides.shrink_ranks(draft, BRIDGE, before, request.max_ranks)
        if request.machine is not None:
            estimate(after.world, request.max_ranks).check(request.machine)
        small_bridge.shrink_settings(draft, after, request.iterations, request.dtype)
        if hub:
            draft.changes = small_bridge.hide_made_up(draft.changes)
        small_bridge.put_tokens(draft, data)
        small = self._small(draft, words, after.world)
        outcome = self._run(small, name, folder / "program")
        failure = outcome.failure
        variant = Variant(
            name=name,
            launch=request.launch,
            megatron=self._name,
            engine=self._upstream.engine_version,
            dtype=request.dtype,
            path=path_taken(asked, outcome.ranks, finished=failure is None),
            small=small,
            outcome=outcome,
            doubles=metrics.doubles(outcome),
            does_without=True,
        )
        if failure is not None:
            refusal = refusal_of(failure, outcome.ranks, request.skills, asked.feature)
            variant = dataclasses.replace(variant, refusal=refusal)
            expected = functools.partial(self._reference, draft, words, after)
            return stopped(request, variant, self.start, self.program, folder, expected)
        return self._compared(variant, draft, words, after, folder)

    def _read(self, words: tuple[str, ...], data: str, folder: Path) -> tuple[dict[str, Any], bool]:
        """Run the script up to the beginning of the training.

        Args:
            data: Folder to which made-up conversations are written.

        Returns:
            Its configuration, and whether a model in the place of one of a hub is in it.

        Raises:
            InputError: It does not come so far.
        """
        self._progress("import", self._name)
        # Of a model of a hub nothing is known here: as many heads as all groups divide.
        asked = {
            "divisors": dict.fromkeys(("heads", "layers", "experts"), small_bridge.EVERY),
            "data": data, "vocabulary": small_bridge.VOCABULARY,
        }  # fmt: skip
        small = SmallProgram(START, (json.dumps(asked), self._script, *words), {}, 1, (), "float32")
        try:
            outcome = self._run(small, "read", folder, READ_SECONDS)
        except UpstreamFails as failed:
            raise unfit(self._name, failed.failure) from failed
        if outcome.failure is not None:
            raise self._unread(outcome.failure)
        results = outcome.ranks[0].results or {}
        config = results.get("config")
        if not isinstance(config, dict) or not isinstance(config.get("model"), dict):
            sentence = "trains without Megatron-Bridge; name a script that calls its pretrain"
            raise InputError("SCRIPT", f"{shown(self._request.launch.script)} {sentence}")
        small_bridge.check_config(config)
        return config, bool(results.get("hub"))

    def _unread(self, failure: Failure) -> InputError:
        said = " ".join(failure.message.split())
        if failure.kind == "import" or said.startswith(("ImportError", "ModuleNotFoundError")):
            return unfit(self._name, failure)
        at = f" at {failure.place}" if failure.place else ""
        if said.startswith(OF_THE_LAUNCH):
            return InputError("the launch", f"{said}; correct it")
        return InputError("SCRIPT", f"it ends before it trains: {said}{at}; correct the launch")

    def _small(self, draft: OverrideDraft, words: tuple[str, ...], ranks: int) -> SmallProgram:
        divisors = dict.fromkeys(("heads", "layers", "experts"), 1)
        asked = {"words": draft.words, "dtype": self._request.dtype, "divisors": divisors}
        variables = self._request.launch.environment.items()
        environment = {k: v for k, v in variables if k.startswith(DECIDING)}
        arguments = (json.dumps(asked), self._script, *words)
        changes = tuple(draft.changes)
        return SmallProgram(START, arguments, environment, ranks, changes, self._request.dtype)

    def _compared(
        self, variant: Variant, draft: OverrideDraft, words: tuple[str, ...], after: Layout,
        folder: Path,
    ) -> Variant:  # fmt: skip
        """Return a variant that ran to its end with the verdict against its reference."""
        if not variant.losses:
            return dataclasses.replace(variant, agreement=Agreement(False, NO_STEPS))
        if not variant.path.requested.parallel:
            return dataclasses.replace(variant, agreement=Agreement(None, INCOMPARABLE))
        small = self._reference(draft, words, after)
        expected = self._run(small, "reference", folder / "reference")
        judged = variant.compared(small, expected)
        return traced(self._request, judged, self.start, self.program, folder)

    def _reference(
        self, draft: OverrideDraft, words: tuple[str, ...], after: Layout
    ) -> SmallProgram:
        """Take CP out of a draft, and return its program."""
        draft.changes = []
        layout = overrides.put_reference(draft, BRIDGE, after)
        return self._small(draft, words, layout.world)

    def _run(
        self, small: SmallProgram, name: str, folder: Path, limit: float | None = None
    ) -> Outcome:
        return self.start(self.program(small), folder, name, limit)

    def start(
        self, program: Program, folder: Path, name: str = "trace", limit: float | None = None
    ) -> Outcome:
        """Run a program in a folder, by default one that is traced."""
        given = (name, program, PRELOAD, folder.resolve(), limit or self._request.timeout)
        return self._servers.announced(*given, self._progress)

    def program(self, small: SmallProgram) -> Program:
        """Return a program on this Bridge."""
        return Program(
            self._upstream, small.script, small.arguments, small.ranks, dict(small.environment),
            small.dtype,
        )  # fmt: skip


def _script(request: Request, upstream: Upstream) -> str:
    """Return the launch's script: of the checkout of Bridge, or as `find_script` finds it."""
    bridge, parts = upstream.extra[0], Path(request.launch.script).parts
    for start in range(len(parts)):
        inner = Path(*parts[start:])
        for folder in SCRIPTS if bridge.name == "src" and not inner.is_absolute() else ():
            if (bridge.parent / folder / inner).is_file():
                return str(bridge.parent / folder / inner)
    found = find_script(request.launch, upstream)
    return str(upstream.program(found) or found)


def _levels(draft: OverrideDraft) -> tuple[int, ...]:
    sizes = draft.get("model.hierarchical_context_parallel_sizes")
    return tuple(map(int, sizes)) if isinstance(sizes, list) else ()
