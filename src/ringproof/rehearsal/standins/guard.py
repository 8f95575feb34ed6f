"""How functions of upstream are replaced, and what happens where a stand-in is missing."""

from __future__ import annotations

import functools
import inspect
import re
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn


class StandInMissing(RuntimeError):
    """Upstream called a symbol that no stand-in implements.

    Args:
        symbol: Dotted name of the symbol; or the message of another one, to which upstream has
            added where it was (it makes such an error anew from its text alone).
    """

    def __init__(self, symbol: str, place: str = "") -> None:
        message = f"no stand-in for {symbol}, called at {place}"
        again = None if place else MESSAGE.match(symbol)
        if again is not None:
            message, symbol, place = symbol, again["symbol"], again["place"]
        self.symbol, self.place = symbol, place
        super().__init__(message)


MESSAGE = re.compile(r"no stand-in for (?P<symbol>.+?), called at (?P<place>\S+)")
STAND_INS = str(Path(__file__).parent)


def calling_place() -> str:
    """Return ``FILE:LINE`` of the innermost frame that is not a stand-in's."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.startswith(STAND_INS):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def missing(symbol: str) -> Callable[..., NoReturn]:
    """Return a function that raises `StandInMissing` for a symbol when it is called."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise StandInMissing(symbol, calling_place())

    refuse.__name__ = refuse.__qualname__ = symbol.rpartition(".")[2]
    return refuse


def wrapped(
    function: Callable[..., Any], around: Callable[[inspect.BoundArguments, Callable[[], Any]], Any]
) -> Callable[..., Any]:
    """Return a function that hands its calls to ``around``.

    Args:
        around: Gets the arguments of a call by their names in the signature of ``function``, and a
            function that makes the call with what they are by then.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        given = signature.bind(*arguments, **named)
        return around(given, lambda: function(*given.args, **given.kwargs))

    return call


class GuardedModule(types.ModuleType):
    """A module whose unknown functions exist and raise `StandInMissing` when they are called.

    Names of classes and dunders are not invented: asking for them raises `AttributeError`.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return missing(f"{self.__name__}.{name}")


def replace_everywhere(replaced: Mapping[Any, Any], wanted: Callable[[str], bool]) -> None:
    """Put values in the place of their keys under every name that loaded modules have for them.

    Args:
        wanted: Whether modules of a top-level package are changed.
    """
    by_identity = {id(original): value for original, value in replaced.items()}
    loaded = list(sys.modules.items())
    for module in [module for name, module in loaded if wanted(name.split(".")[0])]:
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            if id(value) in by_identity:
                setattr(module, attribute, by_identity[id(value)])
