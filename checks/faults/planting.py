"""How a planted defect takes the place of a function of upstream, in one rank's memory."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

from ringproof.rehearsal.standins.guard import replace_everywhere, wrapped

PACKAGES = ("megatron", "transformer_engine", "transformer_engine_torch")


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


def around(target: str, call: Callable[..., Any]) -> None:
    """Wrap a function of upstream: ``call`` gets the original and then a call's arguments."""
    swap(target, lambda original: lambda *given, **named: call(original, *given, **named))


def planted(target: str) -> Callable[[Callable[..., Any]], Callable[[], None]]:
    """Turn a function as `around` takes it into one that puts it in place."""

    def decorate(call: Callable[..., Any]) -> Callable[[], None]:
        @functools.wraps(call)
        def plant() -> None:
            around(target, call)

        return plant

    return decorate


def with_argument(name: str, change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a maker of functions that get one argument changed.

    Args:
        name: Parameter, whether it is given by name or by place; its default counts as given.
    """

    def call(given: inspect.BoundArguments, run: Callable[[], Any]) -> Any:
        given.apply_defaults()
        given.arguments[name] = change(given.arguments[name])
        return run()

    return lambda original: wrapped(original, call)


def with_result(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a maker of functions whose result is changed."""

    return lambda original: lambda *given, **named: change(original(*given, **named))


def skipped(result: Any = None) -> Callable[[Any], Any]:
    """Return a maker of functions that do nothing and return ``result``."""
    return lambda _: lambda *_, **__: result
