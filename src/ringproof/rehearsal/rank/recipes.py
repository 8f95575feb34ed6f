"""Build a recipe of Megatron-Bridge without a hub, and let Bridge's own checks judge it.

Nothing of a hub is read: a recipe that takes its model from one gets a model whose numbers of
layers and heads every size divides, with the settings that the caller knows of that model.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.machinery
import math
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ringproof.rehearsal.rank import doubles

LAYERS, HEADS, WIDTH = 5040, 5040, 128
"""Numbers that the sizes of groups up to 10 divide, and most above."""
RECIPE = re.compile(r"^(?:def |    \w+ as )([A-Za-z]\w*_config)\b", re.MULTILINE)
RECIPES = "megatron.bridge.recipes"
BASES = ("_pretrain_common", "_sft_common")
"""Functions that recipes build on."""
FROM_HUB = ("from_hf_pretrained", "from_hf_config", "from_auto_config")


def validated(asked: dict[str, Any]) -> dict[str, Any]:
    """Build a recipe, change it as asked, and validate it.

    Args:
        asked: ``recipe``, the name of a function, or empty for Bridge's base of all recipes, to
            fine-tune where ``tunes`` is true; ``overrides``, words ``NAME.NAME=VALUE``;
            ``model``, fields of the model that a hub would tell; ``world``, the number of ranks,
            or 0 for as few as the sizes need.

    Returns:
        ``recipe``: the module of the recipe; ``hub``: whether it asked for a model of a hub.

    Raises:
        Exception: What Bridge raises.
    """
    doubles.install(doubles.OF_BRIDGE)
    bridge = importlib.import_module("megatron.bridge")
    hub = without_hub(vars(bridge)["AutoBridge"], lambda _: of_no_family(asked["model"]))
    base = "" if asked["recipe"] else BASES[asked["tunes"]]
    recipe = recipe_of(asked["recipe"] or base)
    container = recipe()
    if base:
        container.model = of_no_family(asked["model"]).to_megatron_provider()
    config = importlib.import_module("megatron.bridge.training.config")
    vars(config)["get_world_size_safe"] = lambda: asked["world"] or _fewest(container.model)
    changes = importlib.import_module("megatron.bridge.training.utils.omegaconf_utils")
    refused: tuple[type[Exception], ...] = (changes.OverridesError,) if base else ()
    for words in [[word] for word in asked["overrides"]] if base else [asked["overrides"]]:
        with contextlib.suppress(*refused):  # settings that the base lacks, and other recipes have
            changes.process_config_with_overrides(container, cli_overrides=words)
    config.runtime_config_update(container)
    return {"recipe": recipe.__module__, "hub": bool(hub)}


def _fewest(model: Any) -> int:
    """Ranks of one copy of a model, experts included."""
    tp, pp = model.tensor_model_parallel_size, model.pipeline_model_parallel_size
    split = model.expert_tensor_parallel_size or tp
    experts = (model.expert_model_parallel_size or 1) * split * pp
    return math.lcm(tp * pp * model.context_parallel_size, experts)


def without_hub(bridge: Any, build: Callable[[str], Any]) -> list[str]:
    """Let ``AutoBridge`` ask ``build`` where it would ask a hub, with the name of a model.

    Returns:
        The names that are asked for; empty so far.
    """
    asked: list[str] = []

    def from_hub(name: object, *_: object, **__: object) -> Any:
        asked.append(str(getattr(name, "name_or_path", name)))
        return build(asked[-1])

    for name in FROM_HUB:
        if hasattr(bridge, name):
            setattr(bridge, name, staticmethod(from_hub))
    return asked


def of_no_family(fields: dict[str, Any]) -> Any:
    """Return what ``AutoBridge`` returns, for a model of which only some fields are known."""
    provider = importlib.import_module("megatron.bridge.models.gpt_provider").GPTModelProvider
    sizes = {"num_layers": LAYERS, "num_attention_heads": HEADS, "hidden_size": HEADS * WIDTH}
    model = provider(**sizes, kv_channels=WIDTH, vocab_size=128000)
    for key, value in fields.items():
        setattr(model, key, value)
    return types.SimpleNamespace(to_megatron_provider=lambda *_, **__: model)


def recipe_of(name: str) -> Any:
    """Return the function that makes a recipe; packages beside its module are not imported.

    Raises:
        LookupError: Bridge has no such recipe.
    """
    folder, known = _recipes()
    if name in BASES:
        known[name] = ("common",)
    elif name not in known:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        raise LookupError(f"Megatron-Bridge has no recipe {name}; near it are {', '.join(near)}")
    parts = known[name]
    for length in range(len(parts)):
        package_name = ".".join((RECIPES, *parts[:length]))
        package = types.ModuleType(package_name)
        vars(package)["__path__"] = [str(folder.joinpath(*parts[:length]))]
        sys.modules.setdefault(package_name, package)
    return getattr(importlib.import_module(".".join((RECIPES, *parts))), name)


def import_by_family() -> None:
    """Let Bridge's package of recipes import a family when one of it is asked for.

    It imports all of them, and those of pictures and video need packages that text does not.
    """
    package = _Families(RECIPES)
    package.__path__ = [str(_recipes()[0])]
    package.__spec__ = importlib.machinery.ModuleSpec(RECIPES, None, is_package=True)
    sys.modules[RECIPES] = package
    # What `from megatron.bridge import recipes` reads; a module takes any attribute.
    importlib.import_module("megatron.bridge").recipes = package  # type: ignore[attr-defined]


class _Families(types.ModuleType):
    """The package of recipes, with a recipe by its name."""

    def __getattr__(self, name: str) -> Any:
        parts = () if name.startswith("__") else _recipes()[1].get(name, ())
        if not parts:
            raise AttributeError(f"module {RECIPES!r} has no attribute {name!r}")
        return getattr(importlib.import_module(".".join((RECIPES, *parts))), name)


def _recipes() -> tuple[Path, dict[str, tuple[str, ...]]]:
    """Return the folder of the recipes, and by name the module in it, as parts of its name."""
    bridge = importlib.import_module("megatron.bridge")
    folder, found = Path(str(bridge.__file__)).parent / "recipes", {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        if parts[-1] != "__init__":
            found.update(dict.fromkeys(RECIPE.findall(path.read_text()), parts))
    return folder, found
