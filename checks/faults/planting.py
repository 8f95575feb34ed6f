"""How a planted defect takes the place of a function of upstream, in one rank's memory."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

from ringproof.rehearsal.standins.guard import replace_everywhere, wrapped

PACKAGES = ("megatron", "transformer_engine", "transformer_engine_torch")
Run = Callable[[], Any]
"""Calls upstream's own function with the arguments as they are by then."""


def swap(target: str, make: Callable[[Any], Any]) -> None:
    """Put ``make(original)`` in the place of an attribute of an imported upstream module.

    A function is replaced in every loaded module of upstream that has imported it by name.

    Args:
        target: ``module:function`` or ``module:Class.method``.
        make: Gets the original and returns what takes its place.

    Raises:
        AttributeError: Upstream has no such attribute.
    """
    module_name, _, path = target.partition(":")
    holder: Any = import_module(module_name)
    *outer, name = path.split(".")
    for part in outer:
        holder = getattr(holder, part)
    original = getattr(holder, name)
    replacement = make(original)
    if outer:
        static = isinstance(inspect.getattr_static(holder, name), staticmethod)
        setattr(holder, name, staticmethod(replacement) if static else replacement)
        return
    setattr(holder, name, replacement)
    replace_everywhere({original: replacement}, PACKAGES.__contains__)


def planted(
    *targets: str,
) -> Callable[[Callable[[dict[str, Any], Run], Any]], Callable[[], None]]:
    """Turn a defect into a function that plants it in the place of the targets.

    A defect gets the arguments of a call by the names of upstream's parameters, defaults included,
    and changes them, does something round the call, or leaves it out.
    """

    def decorate(defect: Callable[[dict[str, Any], Run], Any]) -> Callable[[], None]:
        def call(given: inspect.BoundArguments, run: Run) -> Any:
            given.apply_defaults()
            return defect(given.arguments, run)

        @functools.wraps(defect)
        def plant() -> None:
            for target in targets:
                swap(target, lambda original: wrapped(original, call))

        return plant

    return decorate


def remembering(defect: Callable[[dict[str, Any], Run, dict[str, Any]], Any]) -> Any:
    """Hand a defect what it kept at earlier calls of this rank."""
    kept: dict[str, Any] = {}

    @functools.wraps(defect)
    def call(given: dict[str, Any], run: Run) -> Any:
        return defect(given, run, kept)

    return call
