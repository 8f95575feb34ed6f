"""Read settings from launches, YAML, overrides, recipes and logged arguments.

Nothing that is read is executed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from ringproof.doctor.facts import facts_of
from ringproof.doctor.fields import DECIDES, YAML_CHECKS, of_fields, of_recipe, words_of
from ringproof.doctor.forms import program_of
from ringproof.doctor.settings import Settings
from ringproof.errors import InputError, shown
from ringproof.files import read_input
from ringproof.launch.flags import Flags
from ringproof.launch.reading import (
    MAX_BYTES,
    Launch,
    called,
    find,
    read_command,
    read_script,
    read_test_case,
    read_text,
)
from ringproof.launch.shell.budget import ReadingBudget
from ringproof.launch.shell.expand import marks
from ringproof.launch.shell.follow import follow
from ringproof.launch.shell.parse import whole_number
from ringproof.parsing import yaml_size
from ringproof.tables import parsed

SIZES = ("num_layers", "hidden_size", "tensor_model_parallel_size", "pipeline_model_parallel_size",
         "context_parallel_size")  # fmt: skip
"""Settings of which a launch of Megatron-LM's own programs has some."""
MOST_PARENTS = 8
"""Files that inherit from one another."""
REMEDY = "give a script, a YAML file, a recipe, a log with arguments, overrides, or -- COMMAND"
LOGGED = re.compile(r"^(?:.*?\s)?([a-z_]\w*) \.{2,} (.*)$", re.MULTILINE)
LOGGED_ENOUGH = 20
"""Lines of logged arguments that make a log."""
OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_]\w*(?:\.\w+)+|[a-z]\w*)=(.*)", re.DOTALL)
SWIFT = frozenset(product(("swift", "megatron"), ("sft", "pt", "rlhf")))
"""How commands of ms-swift begin."""
BLACKWELL = re.compile(r"(?<![a-z0-9])g?b[23]00(?![a-z0-9])", re.IGNORECASE)
AMPERE = re.compile(r"(?<![a-z0-9])a[18]00(?![a-z0-9])", re.IGNORECASE)
"""GPUs of Blackwell, and those before Hopper, in the name of a file or of its folder."""
ENOUGH = 2
"""Overrides that make a command one of a program that takes them; none if it names a recipe."""
RECIPES = "run_recipe.py"
"""Program of Megatron-Bridge that takes the name of a recipe."""


def read_settings(
    words: Sequence[str],
    sets: Mapping[str, str],
    *,
    ranks: int | None = None,
    blackwell: bool = False,
    ampere: bool = False,
) -> Settings:
    """Return the settings of a file, of overrides, or of a command.

    Args:
        words: One path, ``NAME.NAME=VALUE`` overrides, a path and overrides, or a command.
        sets: Variables of a script by name.
        ranks: World size, where the configuration does not say it.
        blackwell: Whether the GPUs are Blackwell or newer.
        ampere: Whether they are older than Hopper.

    Raises:
        InputError: It cannot be read, or holds no settings.
    """
    overrides = [word for word in words if OVERRIDE.fullmatch(word)]
    rest = [word for word in words if word not in overrides]
    if len(rest) > 1:
        launch = of_command(words, {}, "the command")
        settings = launch or _with_yaml(of_launch(read_command(words)), Path())
    elif rest:
        settings = _of_file(Path(rest[0]), sets)
    elif overrides:
        settings = of_fields(overrides_of(overrides), "the overrides")
        settings = replace(settings, arguments=tuple(overrides))
    else:
        raise InputError("CONFIG", f"there is nothing to examine; {REMEDY}")
    if overrides and len(rest) == 1:
        settings = _with(settings, overrides)
    if ranks is not None:
        settings = replace(settings, ranks=ranks)
    named = rest[0] if len(rest) == 1 else ""
    place = "/".join(Path(named).parts[-2:])
    newer, older = BLACKWELL.search(place), AMPERE.search(place)
    if not blackwell and not ampere and (newer or older):
        note = f"the GPUs are taken for {'Blackwell' if newer else 'Ampere'}, as the file is named"
        settings = replace(settings, notes=(*settings.notes, note))
        blackwell, ampere = bool(newer), not newer
    return replace(settings, blackwell=blackwell, ampere=ampere)


# -- launches -------------------------------------------------------------------------------------


def of_launch(launch: Launch) -> Settings:
    """Return the settings of a launch of Megatron-LM's own scripts."""
    flags = Flags(launch.arguments)
    names = {name[2:].replace("-", "_"): name for name in flags.names() if name.startswith("--")}
    notes = launch.notes
    if names.keys().isdisjoint(SIZES):
        notes += (f"{launch.script} gets none of Megatron-LM's sizes: its own were not examined",)
    settings = Settings(
        values={key: flags.get(name) or () for key, name in names.items()},
        names=names,
        program="megatron",
        source=launch.source,
        ranks=launch.ranks,
        environment=launch.environment,
        ranks_per_node=launch.ranks_per_node,
        notes=notes,
        arguments=launch.arguments,
        script=launch.script,
    )
    return _actors(settings, flags) if "--actor-num-gpus-per-node" in names.values() else settings


def _actors(settings: Settings, flags: Flags) -> Settings:
    """Take the ranks from the options of slime, whose program is started on one process.

    Its actors have an environment of their own, so that of this process says nothing.
    """
    nodes = whole_number(flags.one("--actor-num-nodes") or "1") or 0
    each = whole_number(flags.one("--actor-num-gpus-per-node") or "") or 0
    known = nodes * each > 0
    return replace(
        settings,
        ranks=nodes * each if known else None,
        ranks_per_node=each if known else None,
        environment=settings.environment or None,
    )


# -- commands with overrides, and slime's ----------------------------------------------------------


def overrides_of(words: Sequence[str]) -> dict[str, str]:
    """Return the overrides ``NAME.NAME=VALUE`` among the words of a command, the last of each."""
    return {match[1]: match[2] for word in words if (match := OVERRIDE.fullmatch(word))}


def of_command(
    words: Sequence[str], environment: Mapping[str, str], source: str
) -> Settings | None:
    """Return the settings of a command that starts another program; ``None`` for any other.

    Args:
        environment: Variables that hold where it runs.

    Raises:
        InputError: It is one of LLaMA-Factory, whose settings stand in another file.
    """
    starts = [word.rpartition("/")[2] for word in words[:1]] + list(words[1:2])
    if starts[:1] == ["ray"] and "--" in words:
        return _of_ray(words, environment, source)
    if tuple(starts) in SWIFT:
        return _of_swift(words, environment, source)
    if starts == ["llamafactory-cli", "train"]:
        remedy = "give the file that follows llamafactory-cli train"
        raise InputError(source, f"LLaMA-Factory is read from its YAML file; {remedy}")
    fields = overrides_of(words)
    recipe = Flags(tuple(words)).one("--recipe")
    bridge = recipe and any(word.rpartition("/")[2] == RECIPES for word in words)
    program = program_of(fields) or ("bridge" if bridge else "")
    if not program or (len(fields) < ENOUGH and not recipe):
        return None
    unknown = [name for name, value in fields.items() if marks(value)]
    known: dict[str, str] = {name: fields[name] for name in fields if name not in unknown}
    settings = of_fields({"recipe": recipe, **known} if recipe else known, source, program)
    notes = [f"the value of {name} is not known without running the script"
             for name in unknown if DECIDES.search(name)]  # fmt: skip
    if any(marks(word) and not OVERRIDE.fullmatch(word) for word in words):
        notes.append("some words of the command are not known without running the script")
    launch = _launcher(words, environment, source)
    if launch is not None and settings.ranks is None:
        settings = replace(settings, ranks=launch[0] * launch[1], ranks_per_node=launch[1])
    return replace(settings, notes=(*settings.notes, *notes), arguments=tuple(words))


def of_script(text: str, path: Path, sets: Mapping[str, str]) -> Settings | None:
    """Return the settings of the one command of a script that starts another program.

    Raises:
        InputError: There are several, and ``RINGPROOF_LAUNCH`` chooses none.
    """
    choice = sets.get("RINGPROOF_LAUNCH", "")
    given = {name: value for name, value in sets.items() if name != "RINGPROOF_LAUNCH"}
    name = called(path)
    commands = follow(text, name, given, path.parent).commands
    found = [settings for command in commands
             if (settings := of_command(command.words, command.environment,
                                        f"{name}:{command.line}"))]  # fmt: skip
    number = whole_number(choice) or 0
    if len(found) > 1 and not 1 <= number <= len(found):
        problem = f"the script starts {len(found)} programs"
        wrong = f", and {shown(choice)} is not one of their numbers" if choice else ""
        remedy = f"choose one with --set RINGPROOF_LAUNCH=1 to {len(found)}"
        raise InputError(name, f"{problem}{wrong}; {remedy}")
    return found[number - 1 if len(found) > 1 else 0] if found else None


def _launcher(
    words: Sequence[str], environment: Mapping[str, str], source: str
) -> tuple[int, int] | None:
    """Nodes and ranks of a node, where torchrun or srun in the command says them."""
    if not any("torchrun" in word or "torch.distributed" in word for word in words):
        return None
    kept = [word for word, following in zip(words, [*words[1:], ""], strict=True)
            if word != "-m" or following.startswith("torch.")]  # fmt: skip
    try:  # a module in the place of a script, which torchrun's own options do not depend on
        found = find(kept, environment, source)
    except InputError:
        return None
    return None if found is None or found.unknown else (found.nodes, found.ranks_per_node)


def _of_swift(words: Sequence[str], environment: Mapping[str, str], source: str) -> Settings:
    """Settings of ``megatron sft --NAME VALUE ...``, as ms-swift is started."""
    flags = Flags(tuple(words[2:]))
    given = {name.lstrip("-"): flags.get(name) or ("true",) for name in flags.names()}
    known = {name: " ".join(value) for name, value in given.items() if not any(map(marks, value))}
    settings = of_fields(known, source, "ms-swift")
    notes = [f"the value of {name} is not known without running the script"
             for name in given if name not in known and DECIDES.search(name)]  # fmt: skip
    each = whole_number(environment.get("NPROC_PER_NODE", ""))
    nodes = whole_number(environment.get("NNODES", "1"))
    ranks = nodes * each if nodes and each else None
    return replace(settings, ranks=ranks, ranks_per_node=each, notes=(*settings.notes, *notes))


def _of_ray(words: Sequence[str], environment: Mapping[str, str], source: str) -> Settings | None:
    """Settings of ``ray job submit ... -- python train.py ...``, as slime starts Megatron-LM."""
    at = words.index("--")
    program = [word for word in words[at + 1 :] if not marks(word)]
    script = next((i for i, word in enumerate(program) if word.endswith(".py")), None)
    if script is None or len(overrides_of(program)) >= ENOUGH:
        return of_command(program, environment, source)
    flags = Flags(tuple(program[script + 1 :]))
    sizes = [flags.one(f"--actor-num-{name}") or "" for name in ("nodes", "gpus-per-node")]
    nodes, each = (whole_number(size) or 0 for size in sizes)
    runtime = Flags(tuple(words[:at])).one("--runtime-env-json") or "{}"
    try:
        variables = json.loads(runtime)["env_vars"].items()
    except (ValueError, AttributeError, KeyError, TypeError):
        variables = ()
    given = {**environment, **{str(name): str(value) for name, value in variables}}
    launch = Launch(program[script], flags.words, MappingProxyType(given), nodes, each, source)
    settings = replace(
        of_launch(launch), environment=MappingProxyType(given) if variables else None
    )
    return settings if nodes * each else replace(settings, ranks=None, ranks_per_node=None)


# -- files ----------------------------------------------------------------------------------------


def _of_file(path: Path, sets: Mapping[str, str]) -> Settings:
    text = read_text(path, REMEDY)
    if path.suffix in (".yaml", ".yml"):
        return _of_yaml(path, text, sets)
    if path.suffix == ".toml":
        try:
            table = parsed(text)
        except ValueError as error:
            sentence = f"the file is not TOML ({shown(str(error))}); correct it"
            raise InputError(str(path), sentence) from error
        return of_fields(dict(_flat(table)), path.name)
    if path.suffix == ".py":
        return of_recipe(path, text, sets)
    logged = {found[1]: found[2].strip() for found in LOGGED.finditer(text)}
    if len(logged) >= LOGGED_ENOUGH:
        return _of_log(logged, called(path))
    other = of_script(text, path, sets)
    return other or _with_yaml(of_launch(read_script(path, sets, script=text)), path.parent)


def _with_yaml(settings: Settings, folder: Path) -> Settings:
    """Return what ``--yaml-cfg`` says, if a launch gives it: upstream ignores its other options.

    Raises:
        InputError: The file is not there, or is no YAML.
    """
    if "yaml_cfg" not in settings.values:
        return settings
    name = settings.text("yaml_cfg")
    path = folder / name
    if not name or not path.is_file():
        problem = "was not found, so that no setting was read; upstream ignores the other options"
        raise InputError(
            "--yaml-cfg", f"{shown(name)} {problem}; put it there, or examine it alone"
        )
    text = read_input(path, MAX_BYTES, remedy=REMEDY).decode("utf-8", errors="replace")
    found = _of_yaml(path, text, {})
    ignored = f"{settings.source} gives --yaml-cfg {name}; upstream ignores its other options"
    return replace(
        found,
        ranks=settings.ranks,
        environment=settings.environment,
        ranks_per_node=settings.ranks_per_node,
        program="megatron",
        notes=(ignored, YAML_CHECKS),
    )


def _of_yaml(path: Path, text: str, sets: Mapping[str, str]) -> Settings:
    if re.search(r"^MODEL_ARGS:", text, re.MULTILINE):
        return _with_ranks(of_launch(read_test_case(path, sets, text=text)), sets)
    fields, missing = _inherited(path, text, _Parents(ReadingBudget(str(path))))
    settings = of_fields(fields, path.name)
    notes = tuple(f"{name}, from which it inherits, was not read" for name in missing)
    return replace(settings, notes=(*settings.notes, *notes))


def _with_ranks(settings: Settings, sets: Mapping[str, str]) -> Settings:
    """Settings of a functional test, whose number of ranks stands in another file."""
    if not {"GPUS_PER_NODE", "NUM_NODES"}.isdisjoint(sets):
        return settings
    facts = facts_of(settings)
    samples = settings.number("micro_batch_size", 1) * (facts.dp or 1)
    remainders = (
        (settings.ranks or 0) % facts.model_size,
        (settings.ranks or 0) % facts.expert_size,
        settings.number("global_batch_size", 0) % max(samples, 1),
    )
    known = not any(remainders)
    rest = f"{settings.ranks} are assumed" if known else "give it with --ranks"
    notes = (*settings.notes, f"the file does not say the number of ranks: {rest}")
    if known:
        return replace(settings, notes=notes)
    return replace(settings, ranks=None, ranks_per_node=None, notes=notes)


@dataclass(frozen=True)
class _Parents:
    """Files that one configuration inherits from, each read once, and what reading them took."""

    budget: ReadingBudget
    read: dict[Path, tuple[dict[str, Any], dict[str, None]]] = field(default_factory=dict)


def _inherited(
    path: Path, text: str, parents: _Parents, children: tuple[Path, ...] = ()
) -> tuple[dict[str, Any], dict[str, None]]:
    """Fields of a YAML file over those of the files that its ``defaults`` name, as in NeMo-RL.

    Returns:
        The fields, and names of files that could not be read.
    """
    parents.budget.spend(files=1, characters=len(text))
    try:
        parents.budget.spend(steps=yaml_size(text))
        data = YAML(typ="safe", pure=True).load(text)
    except InputError:
        raise
    except (YAMLError, RecursionError, ValueError, LookupError, AttributeError, TypeError) as error:
        said = str(error).splitlines()[0]  # 'abc' for `!!bool abc`
        raise InputError(str(path), f"the file is not YAML ({said}); correct it") from error
    if not isinstance(data, dict):
        raise InputError(str(path), f"the file holds no settings; {REMEDY}")
    named = data.pop("defaults", None)
    names = named if isinstance(named, list) else [named]
    fields: dict[str, Any] = {}
    missing: dict[str, None] = {}
    for name in (name for name in names if isinstance(name, str)):
        parent = path.parent / name
        if len(children) > MOST_PARENTS or parent in (path, *children) or not parent.is_file():
            missing[name] = None
            continue
        if parent not in parents.read:
            given = read_input(parent, MAX_BYTES, remedy=REMEDY).decode("utf-8", "replace")
            parents.read[parent] = _inherited(parent, given, parents, (*children, path))
        more, unread = parents.read[parent]
        fields |= more
        missing |= unread
    return {**fields, **dict(_flat(data))}, missing


def _flat(data: Mapping[Any, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    if depth > 20:
        return
    for key, value in data.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, dict):
            yield from _flat(value, name, depth + 1)
        else:
            yield name, value


def _of_log(logged: Mapping[str, str], source: str) -> Settings:
    """Settings of the arguments that Megatron-LM prints when it starts."""
    values = {name: words_of(value) for name, value in logged.items()}
    ranks = whole_number(logged.get("world_size", ""))
    note = "these are the values after upstream's own checks and defaults"
    return Settings(
        values, {name: name for name in values}, "megatron", source, ranks, notes=(note,)
    )


# -- overrides ------------------------------------------------------------------------------------


def _with(settings: Settings, overrides: Sequence[str]) -> Settings:
    program = "" if settings.program == "megatron" else settings.program
    given = of_fields(overrides_of(overrides), settings.source, program)
    return replace(
        settings,
        values={**settings.values, **given.values},
        names={**settings.names, **given.names},
        fields={**settings.fields, **given.fields},
        arguments=(*settings.arguments, *overrides),
        ranks=given.ranks or settings.ranks,
        script="",  # the launch without the overrides is not what is meant
    )
