"""Settings of the programs that use Megatron-LM as a library, from their fields ``NAME.NAME``.

A configuration holds them, or a recipe of Megatron-Bridge assigns them in Python.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ringproof.doctor.forms import BRIDGE, not_examined, program_of
from ringproof.doctor.models import settings_of_model
from ringproof.doctor.settings import FALSE, NOTHING, PREFIXES, Settings
from ringproof.errors import InputError, shown
from ringproof.launch.shell.parse import whole_number
from ringproof.parsing import parsed_python

NAMES = MappingProxyType({
    "num_moe_experts": "num_experts",
    "use_te_rng_tracker": "te_rng_tracker",
    "ddp_average_in_collective": "average_in_collective",
    **dict.fromkeys(("cp_size", "context_parallel_degree"), "context_parallel_size"),
    **dict.fromkeys(("tp_size", "tensor_parallel_degree"), "tensor_model_parallel_size"),
    **dict.fromkeys(("pp_size", "pipeline_parallel_degree"), "pipeline_model_parallel_size"),
})  # fmt: skip
"""Fields of the library and its users that Megatron's parser names otherwise."""
YAML_CHECKS = "a YAML file passes upstream's validate_yaml, not validate_args"
REFERENCE = re.compile(r"\$\{([\w.]+)\}")
DECIDES = re.compile(r"parallel|cp_comm_type|cuda_graph|seq")
"""Names whose values matter enough to say that they were not read."""
CHOICE = "RINGPROOF_RECIPE"
GPUS = re.compile(r"_(\d+)gpu_")
"""World size in the name of a recipe."""
MODEL: Mapping[str, str] = MappingProxyType(
    {
        "bridge": r"recipe|hf_path"
        r"|(\w*(cfg|config)\.)?model\.(hf_path|hf_model_id|model_id|model_name|path)",
        "verl": r"(actor_rollout_ref\.)?model\.path",
        "nemo-rl": r"policy\.model_name",
        "skyrl": r"(trainer\.policy\.)?model\.path",
        "roll": r"pretrain|actor_train\.model_args\.model_name_or_path",
        "llama-factory": r"model_name_or_path",
        "ms-swift": r"model|model_id|load",
    }
)
"""By program, fields that name the model that trains: rewards, judges, teachers have others."""
MOST_CALLS = 10
"""Recipes of one file that build on one another."""


def of_fields(fields: Mapping[str, Any], source: str, program: str = "") -> Settings:
    """Return settings from fields by their full names.

    Args:
        program: What reads them; recognised by the names where it is not given.

    Raises:
        InputError: No program is known that has fields of these names.
    """
    program = program or program_of(fields)
    if not program:
        raise not_examined(fields, source)
    enabled = str(fields.get("policy.megatron_cfg.enabled", "true")) not in FALSE
    values: dict[str, tuple[str, ...]] = {}
    names: dict[str, str] = {}
    notes: list[str] = []
    for field, given in fields.items():
        if not enabled or not _belongs(field, program):
            continue
        last = field.rpartition(".")[2]
        found = REFERENCE.fullmatch(str(given))
        value = fields.get(found[1], given) if found else given
        if not str(value).startswith("${"):
            key = NAMES.get(last, last)
            if ".model." in f".{names.get(key, '')}" and ".model." not in f".{field}":
                continue  # of a dataset, for example, whose length is the model's
            values[key], names[key] = words_of(value), field
        elif DECIDES.search(last):
            notes.append(f"{field} is {given}, which was not resolved")
    if program == "megatron":
        notes.append(YAML_CHECKS)
    if not enabled:
        notes.append("policy.megatron_cfg is not enabled: Megatron-LM does not train here")
    nodes, each = _nodes(fields, program)
    ranks = nodes * each if nodes and each else None
    texts = {name: " ".join(words_of(value)) for name, value in fields.items()}
    if enabled:
        notes += _complete(values, names, texts, program)
    return Settings(values, names, program, source, ranks, ranks_per_node=each, notes=tuple(notes),
                    fields=texts)  # fmt: skip


def _complete(
    values: dict[str, tuple[str, ...]],
    names: dict[str, str],
    texts: Mapping[str, str],
    program: str,
) -> list[str]:
    """Add what the named model brings along, where the configuration does not say otherwise."""
    named = MODEL.get(program)
    given = (texts[name] for name in texts if named and re.fullmatch(named, name))
    brought = settings_of_model(" ".join(given))
    added = [name for name in brought if name not in values]
    values |= {name: (brought[name],) for name in added}
    names |= {name: f"the model's {name}" for name in added}
    return [f"the model brings {', '.join(added)}"] if added else []


def words_of(value: Any) -> tuple[str, ...]:
    """Return the words of a value as a command line would have them."""
    if isinstance(value, (list, tuple)):
        return tuple(str(item) for item in value)
    return (str(value),)


def _belongs(field: str, program: str) -> bool:
    if program in ("llama-factory", "ms-swift"):
        return field.endswith("_size") and "parallel" in field
    if program not in ("bridge", "megatron"):
        return field.startswith(PREFIXES[program])
    parts = field.split(".")
    if program == "bridge" and parts[0] not in BRIDGE:
        parts = parts[1:]  # the variable of a recipe, such as cfg
    # deeper ones belong to another model, such as model.vision_config.num_layers
    return program != "bridge" or (len(parts) == 2 and parts[0] in BRIDGE)


# -- world sizes ----------------------------------------------------------------------------------


def _nodes(fields: Mapping[str, Any], program: str) -> tuple[int | None, int | None]:
    """Nodes that train and ranks of each, where the fields of a program say them."""
    if program == "verl":
        return _whole(fields, "trainer.nnodes"), _whole(fields, "trainer.n_gpus_per_node")
    if program in ("nemo", "skyrl", "roll"):
        nodes = _whole(fields, "trainer.num_nodes" if program == "nemo" else "num_nodes")
        each = _whole(fields, "trainer.devices" if program == "nemo" else "num_gpus_per_node")
        for placed in ("trainer.placement.policy_num_", "placement.num_"):  # the latter in SFT
            nodes = nodes or _whole(fields, f"{placed}nodes")
            each = each or _whole(fields, f"{placed}gpus_per_node")
        return nodes, each
    if program != "nemo-rl":
        return None, None
    nodes, each = _whole(fields, "cluster.num_nodes"), _whole(fields, "cluster.gpus_per_node")
    if any(_needs_ranks(name, str(value)) for name, value in fields.items()):
        return None, each
    colocated = "policy.generation.colocated."
    if nodes and each and str(fields.get(f"{colocated}enabled", "true")) in FALSE:
        if nodes == 1:  # ranks that only generate do not train
            each -= _whole(fields, f"{colocated}resources.gpus_per_node") or each
        else:
            nodes -= _whole(fields, f"{colocated}resources.num_nodes") or nodes
    return nodes, each


def _needs_ranks(name: str, value: str) -> bool:
    """Whether a field of NeMo-RL gives ranks to something besides training and generation."""
    return (
        name.startswith("on_policy_distillation.non_colocated")
        or (name.endswith("env_name") and "reward_model" in value)
        or (name.endswith("num_gpu_nodes") and value not in NOTHING + FALSE)
    )


def _whole(fields: Mapping[str, Any], name: str) -> int | None:
    return whole_number(str(fields.get(name)))


# -- recipes ---------------------------------------------------------------------------------------


def of_recipe(path: Path, text: str, sets: Mapping[str, str]) -> Settings:
    """Return what a recipe assigns, or passes by name, where the value stands there.

    Of a file with several recipes, ``RINGPROOF_RECIPE`` chooses one. Recipes of the same file that
    it calls come first.

    Raises:
        InputError: It is not Python, sets nothing, or holds several recipes.
    """
    try:
        tree = parsed_python(text)
    except ValueError as error:
        raise InputError(str(path), f"the file is not Python ({error}); correct it") from error
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    public = {name: node for name, node in functions.items() if not name.startswith("_")}
    recipes = [
        name
        for name, node in public.items()
        if any(field.endswith("_parallel_size") for field, _ in _assigned(node))
    ]
    chosen = sets.get(CHOICE, recipes[0] if len(recipes) == 1 else "")
    if recipes and chosen not in recipes:
        found = f"holds {len(recipes)} recipes" + (f" and not {shown(chosen)}" if chosen else "")
        remedy = f"choose one with --set {CHOICE}=NAME, such as {recipes[0]}"
        raise InputError(str(path), f"the file {found}; {remedy}")
    assigned = list(_followed(functions[chosen], functions) if chosen else _assigned(tree))
    if not assigned:
        remedy = "give a recipe that assigns fields, such as cfg.model.context_parallel_size"
        raise InputError(str(path), f"the file sets nothing; {remedy}")
    fields: dict[str, Any] = {"recipe": _imported(tree)} if _imported(tree) else {}
    notes = []
    for name, value in assigned:
        try:
            fields[name] = ast.literal_eval(value)
        except (ValueError, TypeError):
            fields.pop(name, None)
            if DECIDES.search(name.rpartition(".")[2]):
                notes.append(f"{name} is computed and was not read")
    settings = of_fields(fields, path.name, program="bridge")
    gpus = GPUS.search(chosen)
    return replace(settings, notes=(*settings.notes, *notes), ranks=int(gpus[1]) if gpus else None)


def _imported(tree: ast.Module) -> str:
    """Name of the recipe of Bridge that a file calls; empty without one."""
    imports = (node for node in tree.body if isinstance(node, ast.ImportFrom))
    names = [
        f"{node.module}.{alias.name}"
        for node in imports if (node.module or "").startswith("megatron.bridge.recipes.")
        for alias in node.names
    ]  # fmt: skip
    called = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    used = [name for name in names if name.rpartition(".")[2] in called]
    return used[0] if len(used) == 1 else ""


def _followed(
    node: ast.FunctionDef, functions: Mapping[str, ast.FunctionDef], depth: int = 0
) -> Iterator[tuple[str, ast.expr]]:
    """Assignments of the functions that a function calls, then its own."""
    for call in (inner for inner in ast.walk(node) if isinstance(inner, ast.Call)):
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        if name in functions and functions[name] is not node and depth < MOST_CALLS:
            yield from _followed(functions[name], functions, depth + 1)
    yield from _assigned(node)


def _assigned(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Fields with their values, as they stand in the text from top to bottom."""
    nodes = (node for node in ast.walk(tree) if isinstance(node, (ast.Assign, ast.Call)))
    for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset)):
        if isinstance(node, ast.Call):
            passed = (keyword for keyword in node.keywords if keyword.arg is not None)
            yield from ((f"model.{keyword.arg}", keyword.value) for keyword in passed)
        elif len(node.targets) == 1 and isinstance(node.targets[0], ast.Attribute):
            yield ast.unparse(node.targets[0]), node.value
