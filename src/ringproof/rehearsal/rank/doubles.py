"""Packages that verl or Megatron-Bridge import and a rehearsal never uses, as empty doubles."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from typing import Any

from ringproof.rehearsal.standins.guard import StandInFinder

# Ray starts verl's workers on a cluster, the next two serve inference, and energon reads data sets
# of pictures and video.
OF_VERL = ("ray", "fastapi", "uvicorn", "megatron.energon")
# The first restarts ranks, wandb logs on a server, and the others read pictures and video.
OF_BRIDGE = ("nvidia_resiliency_ext", "wandb", "megatron.energon", "qwen_vl_utils", "decord")


class _Double:
    """A decorator, class or function of a package that is not here; it does nothing."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __init_subclass__(cls, **__: object) -> None:
        super().__init_subclass__()

    def __class_getitem__(cls, _: object) -> type:
        return cls

    def __call__(self, *arguments: Any, **__: object) -> Any:
        """Return a decorated function as it is."""
        return arguments[0] if arguments and callable(arguments[0]) else _Double()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _named(name)


def _named(symbol: str) -> Any:
    """Return a class for a symbol with a capital letter, otherwise an object."""
    name = symbol.rpartition(".")[2]
    if name == "is_initialized":
        return lambda: False
    return type(name, (_Double,), {}) if name[:1].isupper() else _Double()


class DoublesFinder(StandInFinder):
    """Finds the doubles of packages."""


def install(names: Sequence[str]) -> None:
    """Put a double in the place of each of these packages that is not installed."""
    absent = [name for name in names if not _present(name)]
    sys.meta_path.insert(0, DoublesFinder(absent, _named, "2.50.0"))


def installed() -> list[str]:
    """Return the packages that have a double in this process."""
    finders = [one for one in sys.meta_path if isinstance(one, DoublesFinder)]
    return sorted(name for finder in finders for name in finder.names)


def _present(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False
