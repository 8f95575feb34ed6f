"""Training launches read from shell scripts, command lines and upstream's test cases."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from ringproof.errors import InputError, shown
from ringproof.files import read_input
from ringproof.launch.flags import Flags, is_option
from ringproof.launch.left_out import DROPPED, ENVIRONMENT
from ringproof.launch.overrides import VERL_MODULES, is_model, is_unused, quoted
from ringproof.launch.shell.budget import ReadingBudget
from ringproof.launch.shell.expand import (
    END,
    PRIVATE,
    UNSET,
    UnknownValue,
    marks,
    readable,
    unset,
)
from ringproof.launch.shell.follow import FollowedScript, ScriptCommand, follow
from ringproof.launch.shell.parse import whole_number
from ringproof.parsing import yaml_size

CHOICE = "RINGPROOF_LAUNCH"
SBATCH = re.compile(r"^#SBATCH\s+(.*)$", re.MULTILINE)
ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
REFERENCE = re.compile(r"\$\{(\w+)\}|\$(\w+)")
CASE_RANKS = "8"
MAX_BYTES = 16 << 20
CASE_SCRIPTS: Mapping[str, str] = MappingProxyType(
    {
        "gpt": "pretrain_gpt.py",
        "moe": "pretrain_gpt.py",
        "hybrid": "pretrain_hybrid.py",
        "mamba": "pretrain_mamba.py",
        "bert": "pretrain_bert.py",
        "t5": "pretrain_t5.py",
        "mimo": "examples/mimo/train.py",
        "multimodal-llava": "pretrain_vlm.py",
    }
)
TORCHRUN = ("torchrun", "ft_launcher")
MODULES = ("torch.distributed.run", "torch.distributed.launch", "torch.distributed.elastic.run")
REFUSED = ("deepspeed", "accelerate", "ray", "mpirun", "mpiexec", "horovodrun", "colossalai")
SHELLS = ("bash", "sh", "zsh")
STARTERS = frozenset({*TORCHRUN, *REFUSED, *SHELLS, "env"})
SLURM = ("srun", "sbatch")
#: Commands whose words are text, and never a launch.
NOT_LAUNCHING = re.compile(
    "echo|printf|cat|tee|which|command|pip3?|kill|pkill|pgrep|grep|sed|awk|logger|mkdir|rm|cp|mv|ln"
    "|ls|cd|touch|chmod|test|export|curl|wget|tar|git|apt-get|module|conda|trap|ps"
)
FLAGS = (
    "--standalone", "--no-python", "--module", "-m", "--run-path", "--use-env",
    "--virtual-local-rank",
)  # fmt: skip
PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
TRAINING = re.compile(r"(pre)?train\w*\.py|finetune\w*\.py|sft\w*\.py|run_recipe\.py")


@dataclass(frozen=True)
class Launch:
    """One training program as somebody launches it.

    Attributes:
        script: Path of the training script as written.
        arguments: Command line of the script, after expansion.
        source: File, with the line where known, for messages.
        notes: Sentences about what was not read, for example a sourced file.
    """

    script: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    nodes: int
    ranks_per_node: int
    source: str
    notes: tuple[str, ...] = ()

    @property
    def ranks(self) -> int:
        """World size."""
        return self.nodes * self.ranks_per_node


def read_launch(path: Path, sets: Mapping[str, str] = MappingProxyType({})) -> Launch:
    """Read a launch from a file: a shell script, or one of upstream's test cases.

    Raises:
        InputError: The file cannot be read, or holds no launch that can be known.
    """
    if path.suffix in (".yaml", ".yml"):
        return read_test_case(path, sets)
    return read_script(path, sets)


def read_script(
    path: Path, sets: Mapping[str, str] = MappingProxyType({}), *, script: str | None = None
) -> Launch:
    """Read the training launch of a shell script; nothing of it is executed.

    Args:
        sets: Variables by name, which win over the script's own assignments. ``1``, ``2`` and so
            on are its arguments; ``RINGPROOF_LAUNCH`` chooses one of several launches, from 1.
        script: Text that is read in place of what the file holds.

    Raises:
        InputError: The script launches no training, launches several, or needs a value that only
            an execution would give.
    """
    script = read_text(path) if script is None else script
    given = {name: value for name, value in sets.items() if name != CHOICE}
    budget = ReadingBudget()
    sets_of_script = {**_scheduler(script), **given}
    name = called(path)
    followed = follow(script, name, sets_of_script, path.parent, budget)
    launches = _launches(followed, name, budget)
    if not launches:
        line, where = followed.exit_line, ""
        remedy = "give one that runs torchrun, srun or python with a training script"
        if line:
            where = f" before it exits in line {line}"
            remedy = "set what it asks for with --set NAME=VALUE (--set 1=VALUE is its argument)"
        raise InputError(name, f"the script launches no training{where}; {remedy}")
    command, found = _chosen(launches, name, sets.get(CHOICE))
    if command.condition:
        raise InputError(
            f"{name}:{command.line}",
            f"whether this launch runs depends on {command.condition}, which is not known; set the "
            "variables of that condition with --set NAME=VALUE, or give the launch itself after --",
        )
    source = f"{name}:{command.line}"
    return _launch(found, command.environment, source, followed.notes)


def read_command(
    words: Sequence[str], environment: Mapping[str, str] = MappingProxyType({})
) -> Launch:
    """Read a launch from the words of a command line.

    Args:
        words: For example ``torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 2``, with or
            without ``NAME=value`` before it.

    Raises:
        InputError: The command launches no training, or its launcher is not known.
    """
    given, rest = dict(environment), list(words)
    while rest and (assigned := ASSIGNED.fullmatch(rest[0])):
        given[assigned.group(1)] = assigned.group(2)
        rest = rest[1:]
    found = find(rest, given, "the command")
    if found is None:
        line = " ".join(rest[:6])
        remedy = "give torchrun, python -m torch.distributed.run, srun or python with a script"
        raise InputError("the command", f"{shown(line)} launches no training; {remedy}")
    return _launch(found, given, "the command", ())


def read_test_case(
    path: Path, sets: Mapping[str, str] = MappingProxyType({}), *, text: str | None = None
) -> Launch:
    """Read the launch of one of upstream's functional tests.

    The script follows from the folder of the test, and the number of ranks from its name where it
    names one (``dp8``), otherwise it is 8. ``text`` is read in place of what the file holds.

    Raises:
        InputError: The file is not such a test, or does not train.
    """
    text = read_text(path) if text is None else text
    reader = YAML(typ="safe", pure=True)
    reader.allow_duplicate_keys = True
    try:
        yaml_size(text)
        data = _strings(reader.compose(text))
    except (YAMLError, ValueError) as problem:
        said = str(problem).split("\n")[0]
        raise InputError(str(path), f"the file is not YAML ({said}); correct it") from problem
    arguments = data.get("MODEL_ARGS") if isinstance(data, dict) else None
    if not isinstance(data, dict) or not isinstance(arguments, dict):
        remedy = "give a model_config.yaml of upstream's functional tests"
        raise InputError(str(path), f"the file has no MODEL_ARGS; {remedy}")
    if data.get("MODE", "pretraining") != "pretraining":
        remedy = "give a test whose MODE is pretraining"
        raise InputError(f"{path.name}: MODE", f"{shown(data['MODE'])} does not train; {remedy}")
    other = next((str(name) for name in arguments if not is_option(str(name))), None)
    if other is not None:
        remedy = "give a test whose MODEL_ARGS are options of a Megatron-LM script"
        raise InputError(f"{path.name}: MODEL_ARGS", f"{shown(other)} is not an option; {remedy}")
    given = {"REPEAT": "1", **sets}
    words: list[str] = []
    for name, value in arguments.items():
        words += _case_words(str(name), _referred(str(value), given))
    variables = data.get("ENV_VARS") or {}
    if not isinstance(variables, dict):
        sentence = f"{shown(variables)} is not a mapping; give each variable a line of its own"
        raise InputError(f"{path.name}: ENV_VARS", sentence)
    environment = {str(k): _referred(str(v), given) for k, v in variables.items()}
    where = path.resolve().parent
    script = CASE_SCRIPTS.get(where.parent.name, "pretrain_gpt.py")
    nodes = ("NUM_NODES", sets.get("NUM_NODES", "1"))
    each = ("GPUS_PER_NODE", sets.get("GPUS_PER_NODE", CASE_RANKS))
    found = _sized((script, *words), nodes, each, "--set")
    return _launch(found, environment, f"{where.name}/{path.name}", ())


def called(path: Path) -> str:
    """Return what messages call a file: its name, or the whole path of a shell's pipe."""
    return str(path) if path.parent.name == "fd" else path.name


def read_text(path: Path, remedy: str = "give a shell script or a model_config.yaml") -> str:
    """Return the text of a configuration.

    Raises:
        InputError: It cannot be read, is too large, or is not text; with this remedy.
    """
    try:
        return PRIVATE.sub("?", read_input(path, MAX_BYTES, remedy=remedy).decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(str(path), f"the file is not text; {remedy}") from error


# -- scripts ------------------------------------------------------------------------------------


def _scheduler(script: str) -> dict[str, str]:
    """Variables that Slurm sets for a script, as far as its ``#SBATCH`` lines say."""
    words = [word for line in SBATCH.findall(script) for word in _split(line)]
    flags = Flags(tuple(words))
    nodes = flags.one("--nodes") or flags.one("-N")
    tasks = flags.one("--ntasks-per-node")
    gpus = flags.one("--gpus-per-node") or (flags.one("--gres") or "").rpartition(":")[2]
    found = {
        "SLURM_NNODES": nodes,
        "SLURM_JOB_NUM_NODES": nodes,
        "SLURM_NTASKS_PER_NODE": tasks,
        "SLURM_GPUS_PER_NODE": gpus,
        "SLURM_GPUS_ON_NODE": gpus,
    }
    known = {n: value for n, value in found.items() if value and whole_number(value) is not None}
    if {"SLURM_NNODES", "SLURM_NTASKS_PER_NODE"} <= set(known):
        known["SLURM_NTASKS"] = str(int(nodes or 0) * int(tasks or 0))
    return known


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return text.split()


def _launches(
    followed: FollowedScript, source: str, budget: ReadingBudget
) -> list[tuple[ScriptCommand, FoundLaunch]]:
    launches = []
    for command in followed.commands:
        if not _may_launch(command):
            continue
        found = find(command.words, command.environment, f"{source}:{command.line}", budget=budget)
        if found is not None:
            launches.append((command, found))
        elif marks(command.words[0]):
            launches.append((command, FoundLaunch(command.words, 0, 0)))
    certain = [launch for launch in launches if launch[1].nodes]
    return certain or launches


def _may_launch(command: ScriptCommand) -> bool:
    name = PurePosixPath(command.words[0]).name if command.words else "echo"
    return NOT_LAUNCHING.fullmatch(name) is None


def _chosen(
    launches: Sequence[tuple[ScriptCommand, FoundLaunch]], source: str, choice: str | None
) -> tuple[ScriptCommand, FoundLaunch]:
    if choice is not None:
        if not 1 <= (whole_number(choice) or 0) <= len(launches):
            remedy = f"give a number from 1 to {len(launches)}"
            raise InputError(
                f"--set {CHOICE}", f"{shown(choice)} is not the number of a launch; {remedy}"
            )
        return launches[int(choice) - 1]
    if len(launches) > 1:
        lines = ", ".join(str(command.line) for command, _ in launches)
        raise InputError(
            source,
            f"the script launches {len(launches)} trainings (lines {lines}); choose one with "
            f"--set {CHOICE}=1 to {len(launches)}",
        )
    return launches[0]


# -- from words to a launch ---------------------------------------------------------------------


def _launch(
    found: FoundLaunch, environment: Mapping[str, str], source: str, notes: tuple[str, ...]
) -> Launch:
    if not found.nodes:
        raise _needed(marks(found.words[0])[0], "the launcher", source)
    if found.unknown:
        raise _needed(*found.unknown, source)
    script, arguments = found.words[0], found.words[1:]
    known = _known_overrides if script in VERL_MODULES else _known
    words, more = known(arguments, source)
    kept = {}
    for name, value in {**environment, **found.environment}.items():
        if not marks(value):
            kept[name] = value
        elif name.startswith(ENVIRONMENT):
            raise _needed(marks(value)[0], f"the variable {name}", source)
    return Launch(
        script=_script(script, source),
        arguments=tuple(words),
        environment=MappingProxyType(kept),
        nodes=found.nodes,
        ranks_per_node=found.ranks_per_node,
        source=source,
        notes=(*notes, *more),
    )


def _script(word: str, source: str) -> str:
    """The script's path; an unknown folder before it is left out."""
    if not marks(word):
        return word
    last = word.rpartition(END)[2].lstrip("/")
    if not last.endswith(".py"):
        raise _needed(marks(word)[0], "the training script", source)
    return last


def _known(words: Sequence[str], source: str) -> tuple[list[str], list[str]]:
    """Words whose unknown values do not matter; a note for each that was taken as empty."""
    known: list[str] = []
    notes: list[str] = []
    option = ""
    for word in words:
        found = marks(word)
        if not found:
            option = word.partition("=")[0] if is_option(word) else option
            known.append(word)
            continue
        name = word.partition("=")[0] if is_option(word) else option
        alone = word.startswith(UNSET) and readable(word) == found[0].text
        if alone and not (known and known[-1] == option):
            notes.append(f"{found[0].name} is not set and was taken as empty")
        elif name in DROPPED:  # a rehearsal replaces it or leaves it out, whatever its value
            known.append(readable(word))
        else:
            raise _needed(found[0], (readable(name).split() or ["an argument"])[0], source)
    return known, notes


def _known_overrides(words: Sequence[str], source: str) -> tuple[list[str], list[str]]:
    """Return overrides whose unknown values do not matter; see `_known`."""
    known: list[str] = []
    notes: list[str] = []
    for word in words:
        found = marks(word)
        if not found:
            known += [quoted(word)] if word else []
        elif is_unused(word):
            continue  # hydra could not read the mark of an unknown value
        elif is_model(word) and (last := word.rpartition(END)[2].strip("/")):
            known.append(f"{word.partition('=')[0]}={last}")
        elif word.startswith(UNSET) and readable(word) == found[0].text:
            notes.append(f"{found[0].name} is not set and was taken as empty")
        else:
            raise _needed(found[0], word.partition("=")[0], source)
    return known, notes


def _needed(mark: UnknownValue, use: str, source: str) -> InputError:
    name = mark.name or "NAME"
    problem = f"the value of {use} is not known without running the script"
    remedy = f"give it with --set {name}=VALUE"
    if not mark.name:
        remedy = "write the value into the script"
    return InputError(source, f"{problem}, which is {shown(PRIVATE.sub('', mark.text))}; {remedy}")


# -- upstream's test cases ----------------------------------------------------------------------


def _strings(node: object) -> object:
    """A YAML node with every scalar as it is written."""
    value = getattr(node, "value", None)
    if isinstance(value, str) or node is None:
        return value
    if not isinstance(value, list):
        return ""
    if not value or isinstance(value[0], tuple):
        found: dict[str, object] = {}
        for key, item in value:
            name = str(_strings(key))
            merged = _strings(item)
            found.update(merged if name == "<<" and isinstance(merged, dict) else {name: merged})
        return found
    return [_strings(item) for item in value]


def _referred(text: str, given: Mapping[str, str]) -> str:
    """A text with its variables replaced; those not given are marked."""

    def put(found: re.Match[str]) -> str:
        name = found.group(1) or found.group(2)
        return given[name] if name in given else unset(found.group(), name)

    return REFERENCE.sub(put, text)


def _case_words(name: str, value: str) -> list[str]:
    """The words that upstream's test runner makes of one entry of ``MODEL_ARGS``."""
    trimmed = " ".join(_split(value))
    if not trimmed:
        return []
    if trimmed == "true":
        return [name]
    if re.fullmatch(r"\[[^\]]+\]", trimmed):
        return [name, *_split(trimmed[1:-1])]
    if re.fullmatch(r"\([^)]+\)", trimmed) or re.search(r"[ |()]", trimmed):
        return [name, *_split(f'"{trimmed}"')]
    return [name, *_split(trimmed)]


# -- launchers ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class FoundLaunch:
    """A launch among the words of a command.

    Attributes:
        unknown: A size that is not known, with its option; ``None`` where all are.
        environment: Variables that the words themselves set.
    """

    words: tuple[str, ...]
    nodes: int
    ranks_per_node: int
    unknown: tuple[UnknownValue, str] | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def find(
    words: Sequence[str],
    environment: Mapping[str, str],
    source: str,
    slurm: tuple[str, str] | None = None,
    budget: ReadingBudget | None = None,
) -> FoundLaunch | None:
    """Find a training launch in the words of a command.

    Args:
        slurm: Nodes and tasks per node of the srun around the command, empty where not given.
        budget: What the reading that this is a part of may still take; a new one by default.

    Returns:
        ``None`` where the command launches no training.

    Raises:
        InputError: The launcher is not supported, a size is not a number, or commands start each
            other for too long.
    """
    budget = budget or ReadingBudget(source)
    budget.spend(steps=1, characters=sum(map(len, words)))
    slurm = _slurm(words) or slurm
    for index, word in enumerate(words):
        name = PurePosixPath(readable(word)).name
        if name not in STARTERS and not PYTHON.fullmatch(name):
            continue
        if name == "env" and words[index + 1 : index + 2] == [word]:
            continue  # the last one counts
        budget.spend(steps=len(words) // 100)  # each start reads all the words behind it
        following = words[index + 1 :]
        if name in REFUSED and index <= 1 and any(".py" in word for word in following):
            if any(module in word for word in following for module in VERL_MODULES):
                continue  # the words behind `ray job submit --` start one of them
            remedy = "give the torchrun line that starts the same ranks"
            raise InputError(source, f"{shown(name)} is a launcher that is not known; {remedy}")
        if name == "env":
            given = {match[1]: match[2] for w in following if (match := ASSIGNED.fullmatch(w))}
            found = find(following, {**environment, **given}, source, slurm, budget)
            return None if found is None else replace(found, environment=MappingProxyType(given))
        if name in TORCHRUN:
            return _torchrun(following, source)
        if name in SHELLS and "-c" in following[:3]:
            scripts = following[following.index("-c") + 1 :]
            inner = (environment, source, slurm, budget)
            return _inside(scripts[0], *inner) if scripts else None
        if PYTHON.fullmatch(name):
            found = _python(following, environment, source, slurm)
            if found is not None:
                return found
    return None


def _inside(
    script: str,
    environment: Mapping[str, str],
    source: str,
    slurm: tuple[str, str] | None,
    budget: ReadingBudget,
) -> FoundLaunch | None:
    for command in follow(script, source, dict(environment), None, budget).commands:
        if _may_launch(command):
            found = find(command.words, command.environment, source, slurm, budget)
            if found is not None:
                given = {**command.environment, **found.environment}
                return replace(found, environment=MappingProxyType(given))
    return None


def _torchrun(words: Sequence[str], source: str) -> FoundLaunch | None:
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
    if module and words[index] not in VERL_MODULES:
        remedy = "give the path of the training script"
        raise InputError(source, f"{shown(words[index])} is a module, and not a script; {remedy}")
    rest = tuple(words[index:])
    if PYTHON.fullmatch(PurePosixPath(rest[0]).name):  # --no-python python script.py
        rest = rest[1:]
    if not marks(sizes["--nnodes"]):
        sizes["--nnodes"] = sizes["--nnodes"].rpartition(":")[2]  # the most of an elastic launch
    nodes, each = sizes.items()
    return _sized(rest, nodes, each, source)


def _python(
    words: Sequence[str], environment: Mapping[str, str], source: str, slurm: tuple[str, str] | None
) -> FoundLaunch | None:
    rest = list(words)
    while rest and (rest[0] == "" or rest[0].startswith("-")):
        if rest[0] == "-m":
            name, following = rest[1] if len(rest) > 1 else "", tuple(rest[2:])
            if name in VERL_MODULES:  # verl's own settings give the number of ranks
                return FoundLaunch((name, *following), 1, 1)
            return _torchrun(following, source) if name in MODULES else None
        rest = rest[2 if rest[0] in ("-W", "-X") else 1 :]
    if not rest or not TRAINING.fullmatch(PurePosixPath(readable(rest[0])).name):
        return None
    if slurm is not None:
        return _tasks(tuple(rest), environment, source, slurm)
    world = environment.get("WORLD_SIZE", "1")
    return _sized(tuple(rest), ("", "1"), ("WORLD_SIZE", world), source)


def _slurm(words: Sequence[str]) -> tuple[str, str] | None:
    """Number of nodes and of tasks on each, as srun's own options say; empty where they do not."""
    if not words or PurePosixPath(words[0]).name not in SLURM:
        return None
    flags = Flags(tuple(words))
    nodes = flags.one("--nodes") or flags.one("-N") or ""
    tasks = flags.one("--ntasks") or flags.one("-n") or ""
    each = flags.one("--ntasks-per-node") or ""
    if not each and whole_number(tasks):
        count = whole_number(nodes) or 1
        return str(count), str(max(int(tasks) // count, 1))
    return nodes, each


def _tasks(
    words: tuple[str, ...], environment: Mapping[str, str], source: str, slurm: tuple[str, str]
) -> FoundLaunch:
    """Return a launch whose ranks are Slurm's tasks."""
    nodes = slurm[0] or environment.get("SLURM_NNODES", "1")
    tasks = slurm[1] or environment.get("SLURM_NTASKS_PER_NODE", "")
    if not tasks:
        remedy = "give --set SLURM_NNODES=NUMBER --set SLURM_NTASKS_PER_NODE=NUMBER"
        raise InputError(source, f"the number of Slurm's tasks is not known; {remedy}")
    return _sized(words, ("--nodes", nodes), ("--ntasks-per-node", tasks), source)


def _sized(
    words: tuple[str, ...], nodes: tuple[str, str], each: tuple[str, str], source: str
) -> FoundLaunch:
    """Return a launch with its number of nodes and of ranks on each, given by name and value."""
    for name, value in (nodes, each):
        if found := marks(value):
            return FoundLaunch(words, 1, 1, (found[0], name))
        if not whole_number(value):
            problem = "is not a number"
            raise InputError(f"{source}: {name}", f"{shown(value)} {problem}; give a number")
    return FoundLaunch(words, int(nodes[1]), int(each[1]))
