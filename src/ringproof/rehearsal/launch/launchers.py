"""What launches a training: torchrun and its relatives, srun, and Python itself."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from types import MappingProxyType

from ringproof.errors import InputError
from ringproof.rehearsal.launch.shell.expand import Mark, marks, readable
from ringproof.rehearsal.launch.shell.follow import follow

TORCHRUN = ("torchrun", "ft_launcher")
MODULES = ("torch.distributed.run", "torch.distributed.launch", "torch.distributed.elastic.run")
REFUSED = ("deepspeed", "accelerate", "ray", "mpirun", "mpiexec", "horovodrun", "colossalai")
SHELLS = ("bash", "sh", "zsh")
SLURM = ("srun", "sbatch")
#: Commands whose words are text, and never a launch.
NOT_LAUNCHING = frozenset(
    re.findall(
        r"\S+",
        """
    echo printf cat tee which command pip pip3 kill pkill pgrep grep sed awk logger mkdir rm cp mv
    ln ls cd touch chmod test export curl wget tar git apt-get module conda trap ps
    """,
    )
)
FLAGS = frozenset(
    re.findall(
        r"\S+",
        """
    --standalone --no-python --module -m --run-path --use-env --virtual-local-rank
    """,
    )
)
ASSIGNED = re.compile(r"[A-Za-z_]\w*=")
PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
TRAINING = re.compile(r"(pre)?train\w*\.py|finetune\w*\.py|sft\w*\.py")


@dataclass(frozen=True)
class Found:
    """A launch among the words of a command.

    Attributes:
        words: The training script and its arguments.
        nodes: Number of nodes.
        ranks_per_node: Number of ranks on each node.
        unknown: A size that is not known, with its option; ``None`` where all are.
        environment: Variables that the words themselves set.
    """

    words: tuple[str, ...]
    nodes: int
    ranks_per_node: int
    unknown: tuple[Mark, str] | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def find(
    words: Sequence[str],
    environment: Mapping[str, str],
    source: str,
    slurm: tuple[str, str] | None = None,
) -> Found | None:
    """Find a training launch in the words of a command.

    Args:
        words: Words of the command, expanded.
        environment: Variables that it receives.
        source: Place of the command, for messages.
        slurm: Nodes and tasks per node of the srun around the command, empty where not given.

    Returns:
        ``None`` where the command launches no training.

    Raises:
        InputError: The launcher is not supported, or a size is not a number.
    """
    slurm = _slurm(words) or slurm
    for index, word in enumerate(words):
        name = PurePosixPath(readable(word)).name
        following = words[index + 1 :]
        if name in REFUSED and index <= 1 and any(".py" in word for word in following):
            remedy = "give the torchrun line that starts the same ranks"
            raise InputError(source, name, "this launcher is not known", remedy)
        if name == "env":
            given = dict(word.split("=", 1) for word in following if ASSIGNED.match(word))
            found = find(following, {**environment, **given}, source, slurm)
            return None if found is None else replace(found, environment=MappingProxyType(given))
        if name in TORCHRUN:
            return _torchrun(following, source)
        if name in SHELLS and "-c" in following[:3]:
            scripts = following[following.index("-c") + 1 :]
            return _inside(scripts[0], environment, source, slurm) if scripts else None
        if PYTHON.fullmatch(name):
            found = _python(following, environment, source, slurm)
            if found is not None:
                return found
    return None


def _inside(
    script: str, environment: Mapping[str, str], source: str, slurm: tuple[str, str] | None
) -> Found | None:
    for command in follow(script, source, dict(environment)).commands:
        if command.words and PurePosixPath(command.words[0]).name not in NOT_LAUNCHING:
            found = find(command.words, command.environment, source, slurm)
            if found is not None:
                given = {**command.environment, **found.environment}
                return replace(found, environment=MappingProxyType(given))
    return None


def _torchrun(words: Sequence[str], source: str) -> Found | None:
    """Read torchrun's own options, the script and its arguments."""
    sizes = {"--nnodes": "1", "--nproc-per-node": "1"}
    index, module = 0, False
    while index < len(words) and words[index].startswith("-"):
        name, equals, value = words[index].partition("=")
        name = name.replace("_", "-")
        module = module or name in ("-m", "--module")
        if name not in FLAGS and not equals:
            index += 1
            value = words[index] if index < len(words) else ""
        if name in sizes:
            sizes[name] = value
        index += 1
    if index >= len(words):
        return None
    if module:
        remedy = "give the path of the training script"
        raise InputError(source, words[index], "a module is launched, not a script", remedy)
    rest = tuple(words[index:])
    if PYTHON.fullmatch(PurePosixPath(rest[0]).name):  # --no-python python script.py
        rest = rest[1:]
    for name, value in sizes.items():
        if found := marks(value):
            return Found(rest, 1, 1, (found[0], name))
    nodes = _count(sizes["--nnodes"].rpartition(":")[2], "--nnodes", source)
    return Found(rest, nodes, _count(sizes["--nproc-per-node"], "--nproc-per-node", source))


def _python(
    words: Sequence[str],
    environment: Mapping[str, str],
    source: str,
    slurm: tuple[str, str] | None,
) -> Found | None:
    rest = list(words)
    while rest and (rest[0] == "" or rest[0].startswith("-")):
        if rest[0] == "-m":
            launches = len(rest) > 1 and rest[1] in MODULES
            return _torchrun(rest[2:], source) if launches else None
        rest = rest[2 if rest[0] in ("-W", "-X") else 1 :]
    if not rest or not TRAINING.fullmatch(PurePosixPath(readable(rest[0])).name):
        return None
    if slurm is not None:
        return _tasks(tuple(rest), environment, source, slurm)
    world = environment.get("WORLD_SIZE", "1")
    if marks(world):
        return Found(tuple(rest), 1, 1, (marks(world)[0], "WORLD_SIZE"))
    return Found(tuple(rest), 1, _count(world, "WORLD_SIZE", source))


def _slurm(words: Sequence[str]) -> tuple[str, str] | None:
    """Number of nodes and of tasks on each, as srun's own options say; empty where they do not."""
    if not words or PurePosixPath(words[0]).name not in SLURM:
        return None
    found = {"nodes": "", "ntasks": "", "ntasks-per-node": ""}
    short = {"-N": "nodes", "-n": "ntasks"}
    for index, word in enumerate(words[1:], 1):
        name, equals, value = word.partition("=")
        key = short.get(name, name.removeprefix("--"))
        if key in found and name.startswith("-"):
            found[key] = value if equals else next(iter(words[index + 1 : index + 2]), "")
    nodes, tasks, each = found["nodes"], found["ntasks"], found["ntasks-per-node"]
    if not each and tasks.isdigit():
        count = int(nodes) if nodes.isdigit() else 1
        return str(count), str(max(int(tasks) // count, 1))
    return nodes, each


def _tasks(
    words: tuple[str, ...], environment: Mapping[str, str], source: str, slurm: tuple[str, str]
) -> Found:
    """Return a launch whose ranks are Slurm's tasks."""
    nodes = slurm[0] or environment.get("SLURM_NNODES", "1")
    tasks = slurm[1] or environment.get("SLURM_NTASKS_PER_NODE", "")
    for value, name in ((nodes, "--nodes"), (tasks, "--ntasks-per-node")):
        if found := marks(value):
            return Found(words, 1, 1, (found[0], name))
    if not tasks:
        remedy = "give --set SLURM_NNODES=NUMBER --set SLURM_NTASKS_PER_NODE=NUMBER"
        raise InputError(source, None, "the number of Slurm's tasks is not known", remedy)
    return Found(
        words, _count(nodes, "--nodes", source), _count(tasks, "--ntasks-per-node", source)
    )


def _count(text: str, name: str, source: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise InputError(f"{source}: {name}", text, "this is not a number", "give a number")
    return int(text)
