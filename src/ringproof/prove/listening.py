"""Listens which functions of files below some folders run in this thread.

From Python 3.12 on, `sys.monitoring` reports the first start of each function, and costs nothing
afterwards. Before, the standard library's profiler counts the calls of each function: it is written
in C, and a profile function in Python costs four times as much at each call. Imports of upstream's
modules, which take most of the time of a short test, are not watched at all.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Iterable, Iterator
from cProfile import Profile
from importlib.machinery import SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

LONGEST = 12
"""Functions that are told of a folder."""
_TOOLS = (4, 3, 2, 1)  # identifiers of sys.monitoring; 0 is a debugger's, 5 the interpreter's


class Listener:
    """Functions that run while it listens, by the folder of their file.

    The code of a module or class does not count, and neither does what runs during the import of a
    module of the folders: it shows that the file was read, and nothing about what it does.
    """

    def __init__(self) -> None:
        self._found: dict[str, set[tuple[str, int, str]]] = {}
        self._running = contextlib.ExitStack()
        self._source: _Profiled | _Monitored | None = None

    def listen(self, folder: str) -> None:
        """Listen to another folder, and start with the first."""
        if self._source is None:
            self._source = _Monitored() if sys.version_info >= (3, 12) else _Profiled()
            self._running.callback(self._source.stop)
            self._pause_imports(self._source)
        self._collect()  # what ran before does not count for this folder
        self._found.setdefault(folder.rstrip("/") + "/", set())

    def _pause_imports(self, source: _Profiled | _Monitored) -> None:
        """Listen to nothing while a module of the folders is imported."""
        loaders: Any = SourceFileLoader
        execute = loaders.exec_module

        def exec_module(loader: SourceFileLoader, module: ModuleType) -> None:
            ours = any(map(loader.path.startswith, self._found))
            with source.pause() if ours else contextlib.nullcontext():
                execute(loader, module)

        loaders.exec_module = exec_module
        self._running.callback(setattr, loaders, "exec_module", execute)

    def close(self) -> None:
        """Stop listening."""
        self._running.close()

    def functions(self, folder: str) -> tuple[str, ...]:
        """Return ``FILE:FUNCTION`` of a folder: some of each file, in the order of their lines."""
        self._collect()
        files: dict[str, list[str]] = {}
        for file, _, name in sorted(self._found.get(folder.rstrip("/") + "/", ())):
            files.setdefault(file, []).append(f"{file}:{name}")
        return tuple(_in_turn([*files.values()]))[:LONGEST]

    def _collect(self) -> None:
        """Note the functions of the folders among those that ran since the last call."""
        codes = [] if self._source is None else self._source.take()
        places = [*map(_place, filter(_is_function, codes)), *self._written(codes)]
        for file, line, name in places:
            folder = next((folder for folder in self._found if file.startswith(folder)), None)
            if folder is not None:
                self._found[folder].add((file.removeprefix(folder), line, name))

    def _written(self, codes: Iterable[CodeType]) -> Iterator[tuple[str, int, str]]:
        """Yield the places of methods that dataclasses have written: the files of their classes."""
        written = {id(code) for code in codes if code.co_filename == "<string>"}
        for file, owner in self._classes() if written else ():
            for name, method in vars(owner).items():
                if id(getattr(method, "__code__", None)) in written:
                    yield file, 0, f"{owner.__qualname__}.{name}"

    def _classes(self) -> Iterator[tuple[str, type]]:
        """Yield the classes of imported modules of the folders, with the files of the modules."""
        for module in [*sys.modules.values()]:
            file = getattr(module, "__file__", None) or ""
            if any(map(file.startswith, self._found)):
                owners = [owner for owner in vars(module).values() if isinstance(owner, type)]
                yield from ((file, one) for one in owners if one.__module__ == module.__name__)


class _Profiled:
    """Functions that the profiler of the standard library counts."""

    def __init__(self) -> None:
        self._before = sys.getprofile()
        self._profiler = Profile(subcalls=False, builtins=False)
        self._profiler.enable()

    def take(self) -> list[CodeType]:
        """Return the functions that ran since the last call."""
        running = sys.getprofile()
        self._profiler.disable()  # ends the calls that are under way, and counts them
        codes = [entry.code for entry in self._profiler.getstats()]
        self._profiler.clear()
        _resume(running)
        return [code for code in codes if isinstance(code, CodeType)]  # the others are built in

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Count no functions inside."""
        running = sys.getprofile()
        sys.setprofile(None)
        try:
            yield
        finally:
            _resume(running)

    def stop(self) -> None:
        """Count no more, and give the thread its profile function back."""
        self._profiler.disable()
        _resume(self._before)


def _resume(profile: Any) -> None:
    """Make a profile function, or a profiler in C, what is called at calls."""
    if hasattr(profile, "enable"):
        profile.enable()
    else:
        sys.setprofile(profile)


class _Monitored:
    """Functions whose first start `sys.monitoring` reports."""

    def __init__(self) -> None:
        # Python 3.10 and 3.11, for which mypy checks, have no such module.
        self._monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        self._tool = next(tool for tool in _TOOLS if self._monitoring.get_tool(tool) is None)
        self._paused, self._codes = False, dict[int, CodeType]()
        self._monitoring.use_tool_id(self._tool, "ringproof")
        self._watch(self._seen)

    def _watch(self, seen: Any) -> None:
        starts = self._monitoring.events.PY_START
        self._monitoring.register_callback(self._tool, starts, seen)
        self._monitoring.set_events(self._tool, starts if seen else 0)

    def _seen(self, code: CodeType, _: int) -> Any:
        if self._paused:
            return None
        self._codes[id(code)] = code
        return self._monitoring.DISABLE

    def take(self) -> list[CodeType]:
        """Return the functions that began since the last call."""
        found, self._codes = [*self._codes.values()], {}
        self._monitoring.restart_events()  # for this listener and for earlier ones
        return found

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Note no functions inside."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def stop(self) -> None:
        """Note no more."""
        self._watch(None)
        self._monitoring.free_tool_id(self._tool)


def _is_function(code: CodeType) -> bool:
    """Return whether code is a function, and not a module, a class or a comprehension."""
    return bool(code.co_flags & inspect.CO_OPTIMIZED) and not code.co_name.startswith("<")


def _place(code: CodeType) -> tuple[str, int, str]:
    # Python 3.10 has no qualified name.
    name = getattr(code, "co_qualname", code.co_name)
    return code.co_filename, code.co_firstlineno, name


def _in_turn(groups: list[list[str]]) -> Iterator[str]:
    """Yield the first item of each group, then the second of each."""
    for place in range(max(map(len, groups), default=0)):
        yield from (group[place] for group in groups if place < len(group))
