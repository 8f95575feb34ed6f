"""Programs of one launch of verl: its tiny model, its command line, and its runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ringproof.errors import InputError
from ringproof.launch.left_out import ENVIRONMENT as DECIDING
from ringproof.launch.overrides import SFT, as_value
from ringproof.launch.small import verl as small_verl
from ringproof.launch.small.shrink import SmallProgram
from ringproof.launch.small.verl import OverrideDraft
from ringproof.rehearsal.protocol.program import Program, calling
from ringproof.rehearsal.protocol.reports import Failure
from ringproof.rehearsal.runs.outcome import Outcome, UpstreamFails
from ringproof.rehearsal.runs.server import Servers
from ringproof.rehearsal.verl.config import composed, split_words
from ringproof.rehearsal.verl.model import Divisors, TinyModel, tiny_model
from ringproof.rehearsal.verl.upstreams import VerlStack, unfit

RANKS = Path(__file__).parent / "ranks"
PRELOAD, ACTOR, SAMPLES = (str(RANKS / f"{name}.py") for name in ("preload", "actor", "samples"))
MAKE = "ringproof.rehearsal.verl.ranks.checkpoint:make"
HOOKS = "ringproof.rehearsal.verl.ranks.hooks"
TRAINER = Path("verl", "trainer", "sft_trainer.py")
CONFIGURATIONS = Path("verl", "trainer", "config")
PREPARE_SECONDS = 120.0
IMPORT_ERRORS = ("ImportError:", "ModuleNotFoundError:")
OWN_ERRORS = MappingProxyType({"HYDRA_FULL_ERROR": "1"})  # not hydra's exit in their place
ALGORITHMS = ("algorithm.adv_estimator", "actor_rollout_ref.actor.policy_loss.loss_mode")


@dataclass(frozen=True)
class VerlLaunch:
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

    @property
    def vanilla(self) -> bool:
        """Whether mbridge takes the place of Megatron-Bridge."""
        at = small_verl.PLACES[self.module].engine
        return bool(OverrideDraft(self.config).get(f"{at}.vanilla_mbridge"))


def read_verl(verl: Path, module: str, words: Sequence[str], ranks: int) -> VerlLaunch:
    """Return a launch with the configuration that hydra composes from its words.

    Args:
        verl: Folder that holds ``verl``.
        ranks: Ranks of torchrun; a launch of PPO says in its overrides how many it has.

    Raises:
        InputError: The launch does not train with Megatron, or an override does not exist.
    """
    name, overrides = split_words(words, module)
    config = composed(verl / CONFIGURATIONS, name, overrides)
    problem = small_verl.unsupported(config, module)
    if problem:
        raise InputError("the launch", problem)
    if module != SFT:
        draft = OverrideDraft(config)
        ranks = draft.integer("trainer.nnodes") * draft.integer("trainer.n_gpus_per_node")
    return VerlLaunch(module, name, overrides, config, ranks)


@dataclass(frozen=True)
class VerlRuns:
    """Runs of launches on one stack.

    Attributes:
        folder: Where hydra writes.
        environment: Variables of the launch.
        timeout: Longest time of one program, in seconds.
        progress: Called with a phase and a line of text now and then.
    """

    servers: Servers
    stack: VerlStack
    folder: Path
    iterations: int
    dtype: str
    timeout: float
    progress: Callable[[str, str], None]
    environment: Mapping[str, str] = field(default_factory=dict)

    def make_model(
        self, draft: OverrideDraft, module: str, divisors: Divisors, folder: Path
    ) -> TinyModel:
        """Write a tiny model of the family of the launch's model.

        Raises:
            InputError: Its family or an algorithm is not known.
            UpstreamFails: verl cannot be imported with these versions.
        """
        at = small_verl.PLACES[module].model
        path = draft.get(f"{at}.hf_config_path") or draft.get(f"{at}.path")
        tiny = tiny_model(str(path or ""), divisors)
        checks = [(key, draft.get(key)) for key in ALGORITHMS if draft.get(key)]
        request = {
            "config": dict(tiny.config),
            "to": str(folder),
            "known": checks if module != SFT else [],
        }
        self.progress("import", self.stack.name)
        program = calling(self.stack.upstream, MAKE, request, dtype=self.dtype)
        outcome = self.servers.run(
            program, PRELOAD, folder.parent / "model-maker", limit_seconds=PREPARE_SECONDS
        )
        if outcome.failure is not None:
            raise UpstreamFails(outcome.failure)
        problem = (outcome.ranks[0].results or {}).get("problem")
        if problem:
            raise InputError("the launch", f"verl refuses it: {problem}; correct it")
        return tiny

    def small(self, launch: VerlLaunch, draft: OverrideDraft, ranks: int) -> SmallProgram:
        """Return the program of a draft."""
        own = tuple(word for word in launch.overrides if not word.startswith("hydra"))
        if launch.module == SFT:
            words = (*own, *draft.words, *self._placed(ranks))
            script = str(self.stack.verl / TRAINER)
        else:
            role = launch.module.partition(":")[2] or "actor"
            words = (str(self.iterations), self.dtype, role, launch.name, *own, *draft.words)
            script = ACTOR
        environment = {k: v for k, v in self.environment.items() if k.startswith(DECIDING)}
        changes = tuple(draft.changes)
        return SmallProgram(script, words, environment | OWN_ERRORS, ranks, changes, self.dtype)

    def _placed(self, ranks: int) -> tuple[str, ...]:
        """Return overrides that say where files of the run are, and how many ranks there are."""
        folder = as_value(str(self.folder.resolve() / "hydra"))
        return (
            f"++trainer.n_gpus_per_node={ranks}",
            "++trainer.nnodes=1",
            f"++data.custom_cls.path={as_value(SAMPLES)}",
            "++data.custom_cls.name=MadeUpConversations",
            f"++data.rehearsed_steps={self.iterations}",
            f"++trainer.default_local_dir={folder}",
            f"hydra.run.dir={folder}",
            "hydra.output_subdir=null",
            "hydra/job_logging=disabled",
            "hydra/hydra_logging=disabled",
        )

    def run(
        self, small: SmallProgram, name: str, folder: Path, faults: Sequence[str] = ()
    ) -> Outcome:
        """Run a program, and return what its ranks report.

        Args:
            faults: Planted defects, as `Program` has them.

        Raises:
            InputError: Versions do not fit together: one lacks what another one imports.
        """
        outcome = self.start(self.program(small, faults), folder, name)
        if outcome.failure is not None and outcome.failure.message.startswith(IMPORT_ERRORS):
            raise self.unfit(outcome.failure)
        return outcome

    def program(self, small: SmallProgram, faults: Sequence[str] = ()) -> Program:
        """Return a program with what a rank changes round verl's code before it starts."""
        hooks = () if small.script == ACTOR else (f"{HOOKS}:install_{small.dtype}",)
        return Program(
            self.stack.upstream, small.script, small.arguments, small.ranks,
            dict(small.environment), small.dtype, (*hooks, *faults), same_weights=False,
        )  # fmt: skip

    def start(self, program: Program, folder: Path, name: str = "trace") -> Outcome:
        """Run a program in a folder, by default one that is traced."""
        given = (name, program, PRELOAD, folder, self.timeout, self.progress)
        return self.servers.announced(*given)

    def unfit(self, failure: Failure) -> InputError:
        """Return the error for versions of which one lacks what another one imports."""
        return unfit(self.stack.name, failure)
