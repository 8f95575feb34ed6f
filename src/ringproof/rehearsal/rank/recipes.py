"""Build a recipe of Megatron-Bridge without a hub, and let Bridge's own checks judge it.

Nothing of a hub is read: a recipe that takes its model from one gets a model whose numbers of
layers and heads every size divides, with the settings that the caller knows of that model.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import math
import re
import sys
import types
from pathlib import Path
from typing import Any

LAYERS, HEADS, WIDTH = 5040, 5040, 128
"""Numbers that the sizes of groups up to 10 divide, and most above."""
RECIPES = "megatron.bridge.recipes"
NOT_CALLED = ("megatron.energon", "nvidia_resiliency_ext", "wandb", "qwen_vl_utils", "decord")
"""Packages that Bridge imports, where they are not installed."""


def validated(asked: dict[str, Any]) -> dict[str, Any]:
    """Build a recipe, change it as asked, and validate it.

    Args:
        asked: ``recipe``, the name of a function; ``overrides``, words ``NAME.NAME=VALUE``;
            ``model``, fields of the model that a hub would tell; ``world``, the number of ranks,
            or 0 for as few as the sizes need.

    Returns:
        ``recipe``: the module of the recipe; ``hub``: whether it asked for a model of a hub.

    Raises:
        Exception: What Bridge raises.
    """
    sys.meta_path.append(_Finder())
    bridge = importlib.import_module("megatron.bridge")
    asks = _without_hub(vars(bridge)["AutoBridge"], asked["model"])
    module = _module_of(Path(str(bridge.__file__)).parent / "recipes", asked["recipe"])
    container = getattr(importlib.import_module(module), asked["recipe"])()
    config = importlib.import_module("megatron.bridge.training.config")
    vars(config)["get_world_size_safe"] = lambda: asked["world"] or _fewest(container.model)
    changes = importlib.import_module("megatron.bridge.training.utils.omegaconf_utils")
    changes.process_config_with_overrides(container, cli_overrides=asked["overrides"])
    config.runtime_config_update(container)
    return {"recipe": module, "hub": bool(asks)}


def _fewest(model: Any) -> int:
    """Ranks of one copy of a model, experts included."""
    tp, pp = model.tensor_model_parallel_size, model.pipeline_model_parallel_size
    split = model.expert_tensor_parallel_size or tp
    experts = (model.expert_model_parallel_size or 1) * split * pp
    return math.lcm(tp * pp * model.context_parallel_size, experts)


class _Absent(types.ModuleType):
    """A package that is not installed, each of whose names is an empty class."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {})
        setattr(self, name, made)
        return made


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds packages that Bridge imports for their classes, and that its checks do not call."""

    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        if not any(name == one or name.startswith(f"{one}.") for one in NOT_CALLED):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Absent(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Leave the module as it is."""


def _without_hub(bridge: Any, fields: dict[str, Any]) -> list[str]:
    """Let ``AutoBridge`` return a model without a hub; returns the names that are asked for."""
    provider = importlib.import_module("megatron.bridge.models.gpt_provider").GPTModelProvider
    asked: list[str] = []

    def from_hub(name: object, *_: object, **__: object) -> Any:
        asked.append(str(name))
        sizes = {"num_layers": LAYERS, "num_attention_heads": HEADS, "hidden_size": HEADS * WIDTH}
        model = provider(**sizes, kv_channels=WIDTH, vocab_size=128000)
        for key, value in fields.items():
            setattr(model, key, value)
        return types.SimpleNamespace(to_megatron_provider=lambda *_, **__: model)

    for name in ("from_hf_pretrained", "from_hf_config", "from_auto_config"):
        if hasattr(bridge, name):
            setattr(bridge, name, staticmethod(from_hub))
    return asked


def _module_of(folder: Path, recipe: str) -> str:
    """Name of the module that defines a recipe, whose packages are not imported beside it."""
    defines = re.compile(rf"^def {re.escape(recipe)}\(", re.MULTILINE)
    found = (path for path in sorted(folder.rglob("*.py")) if defines.search(path.read_text()))
    path = next(found, None)
    if path is None:
        raise LookupError(f"Megatron-Bridge has no recipe {recipe}")
    parts = path.relative_to(folder).with_suffix("").parts
    for length in range(len(parts)):
        name = ".".join((RECIPES, *parts[:length]))
        package = types.ModuleType(name)
        vars(package)["__path__"] = [str(folder.joinpath(*parts[:length]))]
        sys.modules.setdefault(name, package)
    return ".".join((RECIPES, *parts))
