"""Listens which functions of files below some folders run in this process.

From Python 3.12 on, `sys.monitoring` reports the first start of each function, and costs nothing
afterwards. Before, a profile function sees every call, which makes Python code slower by a third;
so it is removed once each folder has been seen and `ENOUGH` more events have gone by, or after
`MOST`: calls and returns, those of functions in C among them.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

ENOUGH = 60_000
"""Events, about 10 ms, after which the functions of a longer program are not told any more."""
MOST = 6_000_000
"""Events, about a second, after which a folder that was not seen counts as not executed. A training
of Megatron's program has run Transformer Engine after 1,500,000."""
LONGEST = 12
"""Functions that are told of a folder."""
_TOOLS = (4, 3, 2, 1)  # identifiers of sys.monitoring; 0 is a debugger's, 5 the interpreter's


class Listener:
    """Functions that run while it listens, by the folder of their file.

    The code of a module or class does not count, and neither does what runs during the import of a
    module of the folders: it shows that the file was read, and nothing about what it does.
    """

    def __init__(self) -> None:
        self._found: dict[str, dict[str, None]] = {}
        self._known: dict[int, CodeType] = {}  # codes that need no second look, kept alive
        self._left = MOST
        self._stop: Any = None

    def listen(self, folder: str) -> None:
        """Listen to another folder, and start with the first."""
        self._found.setdefault(folder.rstrip("/") + "/", {})
        self._known.clear()  # they were looked at for other folders
        self._left = MOST
        monitored = sys.version_info >= (3, 12)
        if self._stop is None:
            self._stop = self._monitor() if monitored else self._profile()
        if monitored:
            # Functions that were seen before are off, for this listener as for earlier ones.
            _monitoring().restart_events()

    def close(self) -> None:
        """Stop listening."""
        if self._stop is not None:
            self._stop()

    def functions(self, folder: str) -> tuple[str, ...]:
        """Return ``FILE:FUNCTION`` of a folder: some of each file, in the order of their start."""
        files: dict[str, list[str]] = {}
        for name in self._found.get(folder.rstrip("/") + "/", ()):
            files.setdefault(name.partition(":")[0], []).append(name)
        return tuple(_in_turn([*files.values()]))[:LONGEST]

    def _profile(self) -> Any:
        before = sys.getprofile()

        def seen(frame: FrameType, event: str, _: object) -> None:
            self._left -= 1
            if self._left < 0:
                sys.setprofile(before)
            elif event == "call":
                code = frame.f_code
                if id(code) not in self._known and self._look(code, frame):
                    self._known[id(code)] = code

        sys.setprofile(seen)
        return lambda: sys.setprofile(before)

    def _monitor(self) -> Any:
        monitoring = _monitoring()
        tool = next(number for number in _TOOLS if monitoring.get_tool(number) is None)
        starts = monitoring.events.PY_START

        def seen(code: CodeType, _: int) -> Any:
            return monitoring.DISABLE if self._look(code, sys._getframe(1)) else None

        monitoring.use_tool_id(tool, "ringproof")
        monitoring.register_callback(tool, starts, seen)
        monitoring.set_events(tool, starts)

        def stop() -> None:
            monitoring.set_events(tool, 0)
            monitoring.register_callback(tool, starts, None)
            monitoring.free_tool_id(tool)

        return stop

    def _look(self, code: CodeType, frame: FrameType) -> bool:
        """Note a function; return whether it needs no second look."""
        if not code.co_flags & inspect.CO_OPTIMIZED or code.co_name.startswith("<"):
            return True  # a module, a class, or a part of a function
        file = code.co_filename
        name = getattr(code, "co_qualname", code.co_name)  # Python 3.10 has no qualified name
        if file == "<string>":  # a method that dataclasses have written, in its module
            file = frame.f_globals.get("__file__") or file
            owner = next(iter(frame.f_locals.values()), None)
            name = f"{type(owner).__qualname__}.{code.co_name}"
        folder = self._folder(file)
        if not folder:
            return True
        if self._importing(frame):
            return False
        self._found[folder][f"{file[len(folder) :]}:{name}"] = None
        if all(self._found.values()):
            self._left = min(self._left, ENOUGH)
        return True

    def _folder(self, file: str) -> str:
        return next((folder for folder in self._found if file.startswith(folder)), "")

    def _importing(self, frame: FrameType | None) -> bool:
        """Whether a module of the folders is being imported; a script is not."""
        while frame is not None:
            module = frame.f_code.co_name == "<module>"
            script = frame.f_globals.get("__name__") == "__main__"
            if module and not script and self._folder(frame.f_code.co_filename):
                return True
            frame = frame.f_back
        return False


def _monitoring() -> Any:
    return sys.monitoring  # type: ignore[attr-defined,unused-ignore]


def _in_turn(groups: list[list[str]]) -> Iterator[str]:
    """Yield the first item of each group, then the second of each."""
    for place in range(max(map(len, groups), default=0)):
        yield from (group[place] for group in groups if place < len(group))
