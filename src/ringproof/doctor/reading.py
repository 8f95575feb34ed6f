"""Settings from what people have: launches, YAML, overrides, recipes and logged arguments.

Nothing that is read is executed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from ringproof.doctor.settings import Settings
from ringproof.errors import InputError
from ringproof.files import read_input
from ringproof.rehearsal.launch.flags import Flags
from ringproof.rehearsal.launch.reading import Launch, read_command, read_launch

MAX_BYTES = 16 << 20
REMEDY = "give a script, a YAML file, a recipe, a log with arguments, overrides, or -- COMMAND"
OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_]\w*(?:\.\w+)+)=(.*)", re.DOTALL)
LOGGED = re.compile(r"^(?:.*?\s)?([a-z_]\w*) \.{2,} (.*)$", re.MULTILINE)
LOGGED_ENOUGH = 20
"""Lines of logged arguments that make a log."""
NAMES = MappingProxyType(
    {
        "num_moe_experts": "num_experts",
        "use_te_rng_tracker": "te_rng_tracker",
        "ddp_average_in_collective": "average_in_collective",
        "nproc": "ranks",
    }
)
"""Fields of the library and its users that Megatron's parser names otherwise."""
BRIDGE = ("model", "ddp", "train", "dataset", "dist", "checkpoint", "optimizer", "logger",
          "scheduler", "profiling", "rng", "tokenizer", "mixed_precision", "comm_overlap", "cfg",
          "config", "recipe", "validation")  # fmt: skip
YAML_CHECKS = "a YAML file passes upstream's validate_yaml, not validate_args"
RANKS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "verl": ("trainer.nnodes", "trainer.n_gpus_per_node"),
        "nemo-rl": ("cluster.num_nodes", "cluster.gpus_per_node"),
    }
)


def read_settings(
    words: Sequence[str], sets: Mapping[str, str], *, ranks: int | None = None
) -> Settings:
    """Return the settings of a file, of overrides, or of a command.

    Args:
        words: One path, ``NAME.NAME=VALUE`` overrides, a path and overrides, or a command.
        sets: Variables of a script by name.
        ranks: World size, where the configuration does not say it.

    Raises:
        InputError: It cannot be read, or holds no settings.
    """
    overrides = [word for word in words if OVERRIDE.fullmatch(word)]
    rest = [word for word in words if word not in overrides]
    if len(rest) > 1:
        settings = _with_yaml(of_launch(read_command(words)), Path())
    elif rest:
        settings = _of_file(Path(rest[0]), sets)
    elif overrides:
        settings = _of_fields({}, "the overrides")
    else:
        raise InputError("CONFIG", None, "nothing to examine", REMEDY)
    if overrides and len(rest) <= 1:
        settings = _with(settings, overrides)
    if ranks is not None:
        settings = replace(settings, ranks=ranks)
    return settings


# -- launches -------------------------------------------------------------------------------------


def of_launch(launch: Launch) -> Settings:
    """Return the settings of a launch of Megatron-LM's own scripts."""
    flags = Flags(launch.arguments)
    names = {name[2:].replace("-", "_"): name for name in flags.names() if name.startswith("--")}
    return Settings(
        values=MappingProxyType({key: flags.get(name) or () for key, name in names.items()}),
        names=MappingProxyType(names),
        ranks=launch.ranks,
        environment=launch.environment,
        program="megatron",
        source=launch.source,
        ranks_per_node=launch.ranks_per_node,
        notes=launch.notes,
        arguments=launch.arguments,
        script=launch.script,
    )


# -- files ----------------------------------------------------------------------------------------


def _of_file(path: Path, sets: Mapping[str, str]) -> Settings:
    try:
        text = read_input(path, MAX_BYTES, remedy=REMEDY).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(str(path), None, "the file is not text", REMEDY) from error
    if path.suffix in (".yaml", ".yml"):
        return _of_yaml(path, text, sets)
    if path.suffix == ".py":
        return _of_recipe(path, text)
    logged = {found[1]: found[2].strip() for found in LOGGED.finditer(text)}
    if len(logged) >= LOGGED_ENOUGH:
        return _of_log(logged, path.name)
    return _with_yaml(of_launch(read_launch(path, sets)), path.parent)


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
        raise InputError("--yaml-cfg", name or None, problem, "put it there, or examine it alone")
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
        return of_launch(read_launch(path, sets))
    try:
        data = YAML(typ="safe", pure=True).load(text)
    except (YAMLError, RecursionError, ValueError) as error:
        raise InputError(
            str(path), str(error).split("\n")[0], "is not YAML", "correct it"
        ) from error
    if not isinstance(data, dict):
        raise InputError(str(path), None, "holds no settings", REMEDY)
    return _of_fields(dict(_flat(data)), path.name)


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
    fields = {name: _words(value) for name, value in logged.items()}
    world = logged.get("world_size", "")
    return Settings(
        values=MappingProxyType(fields),
        names=MappingProxyType({name: name for name in fields}),
        ranks=int(world) if world.isdigit() else None,
        environment=None,
        program="megatron",
        source=source,
        notes=("these are the values after upstream's own checks and defaults",),
    )


def _of_recipe(path: Path, text: str) -> Settings:
    """Settings that a Python recipe assigns or passes by name, where the value stands there."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(str(path), str(error), "is not Python", "correct it") from error
    fields: dict[str, Any] = {}
    unknown: list[str] = []
    for node in ast.walk(tree):
        for name, value in _assigned(node):
            try:
                fields[name] = ast.literal_eval(value)
            except ValueError:
                unknown.append(name)
    if not fields:
        raise InputError(str(path), None, "sets nothing", REMEDY)
    settings = _of_fields(fields, path.name, program="bridge")
    told = [name for name in unknown if "parallel" in name or name.endswith("cp_comm_type")]
    notes = tuple(f"{name} is computed and was not read" for name in told)
    return replace(settings, notes=notes)


def _assigned(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target = node.targets[0]
        if isinstance(target, ast.Attribute):
            yield ast.unparse(target), node.value
    elif isinstance(node, ast.Call):
        for keyword in node.keywords:
            if keyword.arg is not None:
                yield f"model.{keyword.arg}", keyword.value


# -- fields ---------------------------------------------------------------------------------------


def _with(settings: Settings, overrides: Sequence[str]) -> Settings:
    matches = [match for word in overrides if (match := OVERRIDE.fullmatch(word))]
    fields = {match[1]: match[2] for match in matches}
    given = _of_fields(fields, settings.source)
    return replace(
        settings,
        values=MappingProxyType({**settings.values, **given.values}),
        names=MappingProxyType({**settings.names, **given.names}),
        ranks=given.ranks or settings.ranks,
        program=given.program if not settings.values else settings.program,
        script="",  # the launch without the overrides is not what is meant
    )


def _program(fields: Mapping[str, Any]) -> str:
    first = {name.partition(".")[0] for name in fields}
    if first & {"actor_rollout_ref", "critic"}:
        return "verl"
    if any(name.startswith("policy.megatron_cfg") for name in fields):
        return "nemo-rl"
    if first & {"language_model", "model_parallel"}:
        return "megatron"
    return "bridge"


def _of_fields(fields: Mapping[str, Any], source: str, program: str = "") -> Settings:
    program = program or _program(fields)
    values: dict[str, tuple[str, ...]] = {}
    names: dict[str, str] = {}
    for field, value in fields.items():
        if not _belongs(field, program):
            continue
        last = field.rpartition(".")[2]
        key = NAMES.get(last, last)
        values[key], names[key] = _words(value), field
    nodes, each = (_whole(fields.get(name)) for name in RANKS.get(program, ("", "")))
    notes: tuple[str, ...] = ()
    if program == "megatron":
        notes = (YAML_CHECKS,)
    return Settings(
        values=MappingProxyType(values),
        names=MappingProxyType(names),
        ranks=nodes * each if nodes and each else None,
        environment=None,
        program=program,
        source=source,
        ranks_per_node=each,
        notes=notes,
    )


def _belongs(field: str, program: str) -> bool:
    """Whether a field is the model's that trains; verl has further ones, of the reference."""
    if program == "verl":
        return field.startswith("actor_rollout_ref.actor.megatron.")
    if program == "nemo-rl":
        return field.startswith("policy.megatron_cfg.")
    return True


def _whole(value: Any) -> int | None:
    text = str(value)
    return int(text) if text.isdigit() else None


def _words(value: Any) -> tuple[str, ...]:
    if isinstance(value, (list, tuple)):
        return tuple(str(item) for item in value)
    return (str(value),)
