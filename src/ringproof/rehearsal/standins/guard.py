"""How stand-ins take the place of modules and functions, and what happens where one is missing.

`put` sets attributes, `replace_everywhere` also finds the names under which loaded modules have
imported a function, `wrapped` puts code round one, and `provide` makes a module that is not here.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import inspect
import re
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

MESSAGE = re.compile(r"no stand-in for (?P<symbol>.+?), called at (?P<place>\S+)")
SKIPPED_MODULES = ("torch.", "ringproof.", "contextlib")


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


def calling_place() -> str:
    """Return ``FILE:LINE`` of the innermost frame that is neither torch's nor ours."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith(SKIPPED_MODULES):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def missing(symbol: str) -> Callable[..., NoReturn]:
    """Return a function that raises `StandInMissing` for a symbol when it is called."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise StandInMissing(symbol, calling_place())

    refuse.__name__ = refuse.__qualname__ = symbol.rpartition(".")[2]
    return refuse


def refuse(symbol: str, **unsupported: object) -> None:
    """Raise `StandInMissing` if an argument has a value that a stand-in does not compute."""
    wrong = {name: value for name, value in unsupported.items() if not _is_absent(value)}
    if wrong:
        named = ", ".join(f"{name}={_short(value)}" for name, value in wrong.items())
        raise StandInMissing(f"{symbol} with {named}", calling_place())


def _is_absent(value: Any) -> bool:
    """Return whether an argument asks for nothing: ``None``, false, zero, or what is empty."""
    if hasattr(value, "numel"):
        return bool(value.numel() == 0)
    if isinstance(value, list | tuple):
        return all(map(_is_absent, value))
    return value is None or (isinstance(value, bool | int | float) and not value)


def _short(value: Any) -> str:
    return f"a tensor {list(value.shape)}" if hasattr(value, "numel") else repr(value)


class StandInModule(types.ModuleType):
    """A module whose unknown names exist.

    Dunders are not invented: asking for one raises `AttributeError`.

    Args:
        unknown: Makes the value of an unknown name from the dotted name of the symbol.
    """

    def __init__(self, name: str, unknown: Callable[[str], Any] = missing) -> None:
        super().__init__(name)
        self.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        self.__path__: list[str] = []
        self._unknown = unknown

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = self._unknown(f"{self.__name__}.{name}")
        setattr(self, name, value)  # an enumeration has to be the same each time
        return value


class StandInFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports of packages, and of modules inside them, get a module that only imports.

    Args:
        names: Dotted names of the packages.
        unknown: See `StandInModule`.
        version: Version that each package says it has.
    """

    def __init__(self, names: Iterable[str], unknown: Callable[[str], Any], version: str) -> None:
        self.names, self._unknown, self._version = tuple(names), unknown, version

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return a spec for the packages' names, nothing for others."""
        if not any(fullname == name or fullname.startswith(f"{name}.") for name in self.names):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Make a module that has whatever is asked for."""
        return StandInModule(spec.name, self._unknown)

    def exec_module(self, module: types.ModuleType) -> None:
        """Give the package a version."""
        vars(module)["__version__"] = self._version


def provide(name: str, **members: Any) -> StandInModule:
    """Let upstream import a module that is not here; functions of it that are not given raise.

    Args:
        name: Dotted name; its parents are provided before.
    """
    module = StandInModule(name)
    vars(module).update(members)
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)
    return module


def noted(function: Callable[..., Any], used: set[str], package: str) -> Callable[..., Any]:
    """Return a function that notes at each call that the stand-in for a package computed."""

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        used.add(package)
        return function(*arguments, **named)

    return call


def wrapped(
    function: Callable[..., Any], around: Callable[[inspect.BoundArguments, Callable[[], Any]], Any]
) -> Callable[..., Any]:
    """Return a function that hands its calls to ``around``.

    Args:
        around: Gets the arguments of a call by their names in the signature of ``function``, and a
            function that makes the call with what they are by then.

    A call of what is returned raises `TypeError` where it does not fit that signature.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        given = signature.bind(*arguments, **named)
        return around(given, lambda: function(*given.args, **given.kwargs))

    return call


def put(replacements: Iterable[tuple[object, str, Any]]) -> None:
    """Set attributes of modules and classes, for the rest of this process.

    A function keeps the attributes of the one that it replaces, since torch reads them: 2.14 looks
    for the code of ``torch.cuda.use_mem_pool.__wrapped__`` when it is imported further.
    """
    for holder, name, value in replacements:
        if isinstance(value, types.FunctionType):
            for attribute, held in getattr(getattr(holder, name, None), "__dict__", {}).items():
                vars(value).setdefault(attribute, held)
        setattr(holder, name, value)


def replace_everywhere(replaced: Mapping[Any, Any], wanted: Callable[[str], bool]) -> None:
    """Put values in the place of their keys under every name that loaded modules have for them.

    Upstream's modules import functions by name, so that setting an attribute of the module that
    defines one does not reach them.

    Args:
        wanted: Whether modules of a top-level package are changed.
    """
    by_identity = {id(original): value for original, value in replaced.items()}
    loaded = list(sys.modules.items())
    for module in [module for name, module in loaded if wanted(name.split(".")[0])]:
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            if id(value) in by_identity:
                setattr(module, attribute, by_identity[id(value)])
