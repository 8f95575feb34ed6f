"""The rehearsal of a launch of verl: compose, shrink, run, run it without CP, compare."""

from __future__ import annotations

import copy
import dataclasses
import re
import time
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ringproof.errors import InputError, shown
from ringproof.files import make_folder
from ringproof.launch.left_out import ENVIRONMENT as DECIDING
from ringproof.launch.overrides import PPO, SFT, VERL_MODULES, as_value
from ringproof.launch.small import verl as small_verl
from ringproof.launch.small.layout import Layout
from ringproof.launch.small.shrink import SmallProgram
from ringproof.launch.small.verl import OverrideDraft
from ringproof.rehearsal.protocol.program import Program, calling
from ringproof.rehearsal.protocol.reports import Failure
from ringproof.rehearsal.rehearsing import IMPORT_VARIABLES, Progress, Request, estimate
from ringproof.rehearsal.runs.outcome import Outcome, UpstreamFails
from ringproof.rehearsal.runs.server import ENVIRONMENT, Servers
from ringproof.rehearsal.runs.upstreams import open_upstream
from ringproof.rehearsal.verdict.agreement import Agreement, compare
from ringproof.rehearsal.verdict.path import RequestedPath, path_taken
from ringproof.rehearsal.verdict.refusal import refusal_of
from ringproof.rehearsal.verdict.variant import Rehearsal, Variant
from ringproof.rehearsal.verl import metrics
from ringproof.rehearsal.verl.config import composed, split_words
from ringproof.rehearsal.verl.model import Divisors, tiny_model
from ringproof.rehearsal.verl.upstreams import VerlStack, open_stack

RANKS = Path(__file__).parent / "ranks"
PRELOAD, ACTOR, SAMPLES = (str(RANKS / f"{name}.py") for name in ("preload", "actor", "samples"))
MAKE = "ringproof.rehearsal.verl.ranks.checkpoint:make"
HOOKS = "ringproof.rehearsal.verl.ranks.hooks"
TRAINER = Path("verl", "trainer", "sft_trainer.py")
PREPARE_SECONDS = 120.0
IMPORT_ERRORS = ("ImportError:", "ModuleNotFoundError:")
OWN_ERRORS = MappingProxyType({"HYDRA_FULL_ERROR": "1"})  # not hydra's exit in their place
ACTOR_NOTE = (
    "The actor of verl.trainer.main_ppo was trained by verl's TrainingWorker on made-up rollouts; "
    "rollouts, rewards, advantages, the reference model and the critic were not rehearsed."
)


@dataclass(frozen=True)
class VerlRequest:
    """What is to be rehearsed.

    Attributes:
        base: Launch and options that every rehearsal has.
        verl: verl, as `open_stack` takes it; empty for a release.
        bridge: Megatron-Bridge; the same.
    """

    base: Request
    verl: str = ""
    bridge: str = ""


@dataclass(frozen=True)
class _Launch:
    """A launch with its configuration.

    Attributes:
        config: Composed by hydra.
        name: Name of the configuration.
        world: Ranks of the launch.
    """

    module: str
    name: str
    overrides: tuple[str, ...]
    config: dict[str, Any]
    world: int


def rehearse_verl(request: VerlRequest, progress: Progress) -> Rehearsal:
    """Run a launch of verl in small, and with an override changed where one is asked for.

    Raises:
        InputError: The launch, an upstream or an option cannot be used.
    """
    started, base = time.monotonic(), request.base
    words = (base.launch.arguments, (*base.launch.arguments, base.against))
    if base.against and ("=" not in base.against or base.against.startswith("-")):
        sentence = f"{shown(base.against)} is not an override; write KEY=VALUE as hydra reads it"
        raise InputError("--against", sentence)
    progress("open", "verl, Megatron-LM and Transformer Engine")
    upstream = open_upstream(
        base.megatron, base.engine, cache=base.cache, offline=base.offline, option="--upstream"
    )
    make_folder(base.folder, field="--out")
    variants = []
    variables = {k: v for k, v in base.launch.environment.items() if k.startswith(IMPORT_VARIABLES)}
    with Servers(base.folder, environment={**ENVIRONMENT, **variables}) as servers:
        for index, name in enumerate(("launch", base.against)[: 2 if base.against else 1]):
            launch, stack = _read(request, upstream, words[index])
            runs = _Runs(base, servers, stack, launch, progress)
            folder = (base.folder / ("against" if index else "launch")).resolve()
            variants.append(runs.variant(name, folder))
    main, *rest = variants
    against, between = rest[0] if rest else None, None
    if against is not None and main.losses and against.losses:
        assert main.outcome is not None and against.outcome is not None
        between = compare(main.outcome, against.outcome, main.dtype)
    return Rehearsal(main, against, between, time.monotonic() - started)


def _read(request: VerlRequest, upstream: Any, words: tuple[str, ...]) -> tuple[_Launch, VerlStack]:
    """Return a launch with its configuration, and verl with what it imports.

    Raises:
        InputError: The launch does not train with Megatron, or an override does not exist.
    """
    base = request.base
    module = base.launch.script
    assert module in VERL_MODULES
    given = [word.lower() for word in words if "vanilla_mbridge=" in word]  # the last one counts
    vanilla = bool(given) and given[-1].endswith("=true")
    stack = open_stack(
        upstream, request.verl, request.bridge, vanilla=vanilla, cache=base.cache,
        offline=base.offline,
    )  # fmt: skip
    name, overrides = split_words(words, module)
    config = composed(stack.configurations, name, overrides)
    problem = small_verl.unsupported(config, module)
    if problem:
        raise InputError("the launch", problem)
    world = base.launch.ranks
    if module == PPO:
        draft = OverrideDraft(config)
        world = draft.integer("trainer.nnodes") * draft.integer("trainer.n_gpus_per_node")
    return _Launch(module, name, overrides, config, world), stack


class _Runs:
    """Runs of one launch on one stack."""

    def __init__(
        self,
        request: Request,
        servers: Servers,
        stack: VerlStack,
        launch: _Launch,
        progress: Progress,
    ) -> None:
        self._request, self._servers, self._stack = request, servers, stack
        self._launch, self._progress = launch, progress

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
            raise self._unfit(failed.failure) from failed
        small = self._small(draft, after)
        outcome = self._run(small, name, folder / "program")
        failure = outcome.failure
        if failure is not None and failure.message.startswith(IMPORT_ERRORS):
            raise self._unfit(failure)
        path = path_taken(asked, outcome.ranks, finished=failure is None)
        departures = (*metrics.lacking(outcome), *path.departures)
        path = dataclasses.replace(path, departures=departures)
        variant = dataclasses.replace(
            variant, small=small, outcome=outcome, path=path, doubles=metrics.doubles(outcome)
        )
        if failure is not None:
            refusal = refusal_of(failure, outcome.ranks, self._request.skills, asked.feature)
            return dataclasses.replace(variant, refusal=refusal)
        return self._compared(variant, draft, after, folder)

    def _unfit(self, failure: Failure) -> InputError:
        """Return the error for versions of which one lacks what another one imports."""
        versions = re.sub(r"#[^,]*", "", self._stack.name)
        at = f" at {failure.place}" if failure.place else ""
        sentence = f"{versions} do not fit together: {failure.message}{at}; name other versions"
        return InputError("--upstream", " ".join(sentence.split()))

    def _blank(self, name: str, asked: RequestedPath) -> Variant:
        launch = self._request.launch
        notes = (*launch.notes, ACTOR_NOTE) if self._launch.module == PPO else launch.notes
        sized = dataclasses.replace(launch, nodes=1, ranks_per_node=self._launch.world, notes=notes)
        return Variant(
            name=name,
            launch=sized,
            megatron=self._stack.name,
            engine=self._stack.upstream.engine_version,
            dtype=self._request.dtype,
            path=path_taken(asked, (), finished=False),
            agreement=Agreement(None, "It did not start, so no reference was run."),
        )

    def _put_model(
        self, draft: OverrideDraft, asked: RequestedPath, after: Layout, folder: Path
    ) -> None:
        """Write the tiny model and put it in the place of the launch's.

        Raises:
            InputError: Its family or an algorithm is not known.
            UpstreamFails: verl cannot be imported with these versions.
        """
        places = small_verl.PLACES[self._launch.module]
        virtual = draft.integer(f"{places.engine}.virtual_pipeline_model_parallel_size")
        heads = after.tensor
        if any(kind.startswith("a2a") for kind in asked.comm_types) and not asked.dynamic:
            heads *= after.context
        divisors = Divisors(heads, after.pipeline * virtual, after.expert)
        path = draft.get(f"{places.model}.hf_config_path") or draft.get(f"{places.model}.path")
        tiny = tiny_model(str(path or ""), divisors)
        known = ("algorithm.adv_estimator", "actor_rollout_ref.actor.policy_loss.loss_mode")
        checks = [(key, draft.get(key)) for key in known if draft.get(key)]
        request = {
            "config": dict(tiny.config),
            "to": str(folder / "model"),
            "known": checks if self._launch.module == PPO else [],
        }
        self._progress("import", self._stack.name)
        program = calling(self._stack.upstream, MAKE, request, dtype=self._request.dtype)
        outcome = self._servers.run(
            program, PRELOAD, folder / "model-maker", limit_seconds=PREPARE_SECONDS
        )
        if outcome.failure is not None:
            raise UpstreamFails(outcome.failure)
        problem = (outcome.ranks[0].results or {}).get("problem")
        if problem:
            raise InputError("the launch", f"verl refuses it: {problem}; correct it")
        small_verl.put_model(draft, self._launch.module, str(folder / "model"), tiny.left_out)

    def _small(self, draft: OverrideDraft, after: Layout) -> SmallProgram:
        """Return the program of a draft."""
        own = tuple(word for word in self._launch.overrides if not word.startswith("hydra"))
        if self._launch.module == SFT:
            words = (*own, *draft.words, *self._placed(after.world))
            script = str(self._stack.verl / TRAINER)
        else:
            steps, dtype = str(self._request.iterations), self._request.dtype
            words = (steps, dtype, self._launch.name, *own, *draft.words)
            script = ACTOR
        variables = self._request.launch.environment.items()
        environment = {k: v for k, v in variables if k.startswith(DECIDING)} | OWN_ERRORS
        changes = tuple(draft.changes)
        return SmallProgram(script, words, environment, after.world, changes, self._request.dtype)

    def _placed(self, ranks: int) -> tuple[str, ...]:
        """Return overrides that say where files of the run are, and how many ranks there are."""
        folder = as_value(str(self._request.folder.resolve() / "hydra"))
        return (
            f"++trainer.n_gpus_per_node={ranks}",
            "++trainer.nnodes=1",
            f"++data.custom_cls.path={as_value(SAMPLES)}",
            "++data.custom_cls.name=MadeUpConversations",
            f"++data.rehearsed_steps={self._request.iterations}",
            f"++trainer.default_local_dir={folder}",
            f"hydra.run.dir={folder}",
            "hydra.output_subdir=null",
            "hydra/job_logging=disabled",
            "hydra/hydra_logging=disabled",
        )

    def _compared(
        self, variant: Variant, draft: OverrideDraft, after: Layout, folder: Path
    ) -> Variant:
        """Return a variant that ran to its end with the verdict against its reference."""
        if not variant.path.requested.parallel:
            nothing = "It uses no context parallelism, so there is nothing to compare with."
            return dataclasses.replace(variant, agreement=Agreement(None, nothing))
        draft.changes = []
        layout = small_verl.put_reference(draft, self._launch.module, after)
        small = self._small(draft, layout)
        expected = self._run(small, "reference", folder / "reference")
        assert variant.outcome is not None
        if expected.failure is not None:
            said = refusal_of(expected.failure, expected.ranks).message
            agreement = Agreement(False, f"The reference without CP did not run: {said}")
        else:
            agreement = compare(variant.outcome, expected, variant.dtype)
        told = tuple(metrics.differing(variant.outcome, expected)) if agreement.agrees else ()
        return dataclasses.replace(
            variant, reference=small, reference_outcome=expected, agreement=agreement, metrics=told
        )

    def _run(self, small: SmallProgram, name: str, folder: Path) -> Outcome:
        phase = f"{name}, {small.ranks} ranks"
        self._progress(phase, "starts")
        hook = f"{HOOKS}:install_{small.dtype}"
        program = Program(
            self._stack.upstream, small.script, small.arguments, small.ranks,
            dict(small.environment), small.dtype,
            (hook,) if self._launch.module == SFT else (), same_weights=False,
        )  # fmt: skip
        return self._servers.run(
            program, PRELOAD, folder, limit_seconds=self._request.timeout,
            progress=lambda line: self._progress(phase, line),
        )  # fmt: skip
