"""The two programs of a smoke run: a launch of a skill made small, with its feature on and off."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from ringproof.cards import find_cards, load_card
from ringproof.errors import InputError, check_name
from ringproof.launch.flags import Flags
from ringproof.launch.options import options_of
from ringproof.launch.reading import Launch, read_command
from ringproof.launch.small.layout import DYNAMIC
from ringproof.launch.small.reference import BUDGET, SCHEDULER
from ringproof.launch.small.shrink import SmallProgram, shrink
from ringproof.logs.groups.decision import ParallelKind
from ringproof.logs.groups.expectation import Expectation
from ringproof.rehearsal.protocol.program import Upstream
from ringproof.rehearsal.protocol.trace import SMOKE
from ringproof.upstream.tree import FolderTree

SCRIPT = "pretrain_gpt.py"
FEWEST_RANKS, MOST_RANKS = 4, 64
SHRUNK_RANKS = 8  # up to which Dynamic CP keeps the size of its domain in a rehearsal
DISTURBED = "disturbed"
CONTEXT = "--context-parallel-size"
LEVELS = "--hierarchical-context-parallel-sizes"
EAGER = ("--cuda-graph-warmup-steps", 3)
"""Option of the steps before graphs are captured, and its default."""
SPOKEN = MappingProxyType(
    {"NVTE_DEBUG": "1", "NVTE_DEBUG_LEVEL": "2", "TORCH_CPP_LOG_LEVEL": "INFO"}
)
"""Variables with which Transformer Engine logs each attention call and PyTorch its groups."""


@dataclass(frozen=True)
class Feature:
    """Where the launch of a feature stands.

    Attributes:
        command: Identifier of the command in the card of the skill.
        option: Option of upstream without which a checkout does not have the feature.
        found: Checkouts that have it.
        marker: Identifier of a marker that only a run with the feature on logs; empty for none.
    """

    skill: str
    command: str
    option: str
    found: str
    marker: str = ""


FEATURES: Mapping[str, Feature] = MappingProxyType(
    {
        "hcp": Feature("hierarchical-context-parallel", "megatron-smoke", LEVELS, "main or dev"),
        "dynamic-cp": Feature("dynamic-context-parallel", "dev-train", DYNAMIC[0], "dev"),
        "graphs": Feature(
            "dynamic-cp-cuda-graphs", "pr6479-run", "--cuda-graph-dynamic-microbatches",
            "pull request 6479", "capture-time",
        ),
    }
)  # fmt: skip


@dataclass(frozen=True)
class PairProgram:
    """One of the two programs.

    Attributes:
        name: ``on`` or ``off``.
        arguments: Command line of the script.
        expected: What its logs are to show of process groups.
        marker: Pattern of a line that its logs must have; empty for none.
    """

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    expected: Expectation
    marker: str = ""


@dataclass(frozen=True)
class PairSetting:
    """Where both programs run.

    Attributes:
        ranks_per_node: Ranks on each node.
        upstream: Folders of upstream code; the engine's is empty where the installed one runs.
        cpu: Whether stand-ins take the place of GPUs, NCCL and compiled kernels.
        folder: Folder of logs, which every node sees.
        python: Interpreter of the ranks.
        traces: Folder in which ranks write traces, for which the program without the feature runs
            once more with disturbed weights; ``None`` for no traces.
    """

    ranks_per_node: int
    nodes: int
    upstream: Upstream
    cpu: bool
    folder: Path
    python: str = sys.executable
    traces: Path | None = None

    @property
    def ranks(self) -> int:
        """World size."""
        return self.ranks_per_node * self.nodes

    @property
    def dtype(self) -> str:
        """Dtype of the programs."""
        return "float32" if self.cpu else "bfloat16"


@dataclass(frozen=True)
class Pair:
    """A feature on and off, with everything else equal.

    Attributes:
        traced: Training steps that are traced: with graphs the last one without and the first
            one with replays.
    """

    feature: str
    setting: PairSetting
    on: PairProgram
    off: PairProgram
    traced: tuple[int, ...] = SMOKE.steps

    @property
    def programs(self) -> tuple[PairProgram, PairProgram]:
        """Both programs in the order in which they run."""
        return self.on, self.off

    @property
    def started(self) -> tuple[PairProgram, ...]:
        """All programs that run: with traces also the one whose weights are disturbed."""
        disturbed = dataclasses.replace(self.off, name=DISTURBED)
        return (*self.programs, *((disturbed,) if self.setting.traces else ()))

    def folder(self, program: PairProgram) -> Path:
        """Return the folder of a program's logs."""
        return self.setting.folder / program.name


def make_pair(feature: str, setting: PairSetting, *, skills: Path, steps: int) -> Pair:
    """Make both programs from the launch in the card of the feature's skill.

    Options of the checkout decide what can be added.

    Raises:
        InputError: The feature or the number of ranks cannot be used.
    """
    check_name("--feature", feature, FEATURES)
    _check_size(setting)
    options = options_of(FolderTree(setting.upstream.megatron))
    option = FEATURES[feature].option
    if option not in options:
        found = FEATURES[feature].found
        sentence = f"the checkout has no option {option}; name a checkout of {found}"
        raise InputError("--upstream", sentence)
    launch, marker = _launch(FEATURES[feature], skills)
    launch = dataclasses.replace(launch, nodes=1, ranks_per_node=setting.ranks)
    small = _shrunk(_sized(feature, launch, setting), options, setting, steps)
    environment = MappingProxyType({**small.environment, **SPOKEN})
    flags = Flags(small.arguments)
    if marker:  # it is logged at this level
        flags = flags.with_("--logging-level", "20")
    expected = _expected(feature, flags, setting)
    on = PairProgram("on", flags.words, environment, expected[0], marker)
    off = PairProgram("off", _without(feature, flags).words, environment, expected[1])
    if not (feature == "graphs" and setting.traces):
        return Pair(feature, setting, on, off)
    eager = flags.integer(*EAGER)
    if steps <= eager:
        sentence = f"graphs are replayed from step {eager + 1} on; give --trace as many steps"
        raise InputError("--steps", sentence)
    return Pair(feature, setting, on, off, (eager, eager + 1))


def _check_size(setting: PairSetting) -> None:
    ranks = setting.ranks
    if ranks & (ranks - 1) or not FEWEST_RANKS <= ranks <= MOST_RANKS:
        sentence = (
            f"{setting.ranks_per_node} ranks on {setting.nodes} nodes are {ranks}; give a power "
            f"of two from {FEWEST_RANKS} to {MOST_RANKS}, such as --ranks-per-node 8 --nodes 1"
        )
        raise InputError("--ranks-per-node", sentence)


def _launch(feature: Feature, skills: Path) -> tuple[Launch, str]:
    """Return the launch of a feature, and the pattern of its marker."""
    card = load_card(find_cards(skills, (feature.skill,))[feature.skill])
    run = next((command.run for command in card.commands if command.id == feature.command), None)
    if run is None:
        there = f"the card of {feature.skill} has no command {feature.command}"
        raise InputError("--skills", f"{there}; take the skills of this version")
    launch = read_command(shlex.split(run.replace("\\\n", " ")))
    marker = next((m.pattern for m in card.markers if m.id == feature.marker), "")
    return launch, marker


def _sized(feature: str, launch: Launch, setting: PairSetting) -> Launch:
    """Give a launch the CP size, levels and token budget that fit the ranks."""
    flags = Flags(launch.arguments)
    longest = flags.integer("--seq-length", 0)
    if feature == "hcp":
        # The inner level stays inside of a node, as it is meant; on one node it is a pair.
        inner = setting.ranks_per_node if setting.nodes > 1 else 2
        flags = flags.with_(CONTEXT, str(setting.ranks))
        flags = flags.with_(LEVELS, str(inner), str(setting.ranks // inner))
    elif feature == "dynamic-cp":
        # Half of the domain: Dynamic CP then has sizes below and above the static one.
        context = min(setting.ranks, SHRUNK_RANKS) // 2
        flags = flags.with_(CONTEXT, str(context)).with_(BUDGET, str(longest // context))
    else:
        flags = flags.with_(BUDGET, str(longest // min(setting.ranks, SHRUNK_RANKS)))
    return dataclasses.replace(launch, arguments=flags.words)


def _shrunk(
    launch: Launch, options: Collection[str], setting: PairSetting, steps: int
) -> SmallProgram:
    """Make a launch small on all of its ranks: a rehearsal would drop DP replicas."""
    ranks, dtype = setting.ranks, setting.dtype
    small = shrink(launch, options=options, max_ranks=ranks, iterations=steps, dtype=dtype)
    if small.ranks == ranks:
        return small
    flags = Flags(small.arguments)
    batch = flags.integer("--global-batch-size", 1) * ranks // small.ranks
    flags = flags.with_("--global-batch-size", str(batch))
    return dataclasses.replace(small, arguments=flags.words, ranks=ranks)


def _without(feature: str, flags: Flags) -> Flags:
    """Return the command line with the feature off."""
    if feature == "hcp":
        return flags.without(LEVELS).with_("--cp-comm-type", "p2p")
    if feature == "dynamic-cp":
        dynamic = (*DYNAMIC, "--min-dynamic-context-parallel-size")
        return flags.without(*dynamic).with_(SCHEDULER, "dp_balanced")
    return flags.with_("--cuda-graph-impl", "none")


def _expected(feature: str, flags: Flags, setting: PairSetting) -> tuple[Expectation, Expectation]:
    """Return what the logs of both programs are to show of process groups."""
    flat = Expectation(ParallelKind.FLAT)
    if feature == "hcp":
        levels = tuple(map(int, flags.get(LEVELS) or ()))
        return Expectation(ParallelKind.HIERARCHICAL, levels), flat
    sizes = tuple(1 << power for power in range(setting.ranks.bit_length()))
    dynamic = Expectation(dynamic_sizes=sizes)
    return dynamic, flat if feature == "dynamic-cp" else dynamic
