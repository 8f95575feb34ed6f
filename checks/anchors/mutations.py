"""A small random upstream, and the edits that people make to one."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

EDITS = ("rename", "move", "reorder", "reformat", "default", "delete", "above")
FIRST, SECOND = "pkg/first.py", "pkg/second.py"

_Draw = Callable[[Any], Any]
_NAMES = ("build", "check", "level", "route", "merge", "split", "gather", "Ring", "Plan", "Layout")
_BODIES = (
    'if {a} % 2:\n    raise ValueError(f"{n}: {{{a}}} is odd")\nreturn [{a}, {b}]',
    "total = sum(range({a}))\nfor index in range(total):\n    log(index, {b})\nreturn total",
    'with lock("{n}"):\n    state = {{"a": {a}, "b": {b}}}\n    send(state)\nreturn None',
    "return (lambda x: x * {a} + {b})({a})",
    "try:\n    import fast_{n}\nexcept ImportError:\n    return {b}\nreturn fast_{n}.call({a})",
)


@dataclass(frozen=True)
class Definition:
    """A function or a class at the top of a module; ``text`` has its docstring and comments."""

    name: str
    text: str


@dataclass(frozen=True)
class Module:
    """A file as a head and a sequence of definitions."""

    definitions: tuple[Definition, ...]
    head: str = '"""Words."""\n\nimport os\n\nLIMIT: int = 4\n'

    def source(self) -> str:
        return "\n\n".join([self.head, *(item.text for item in self.definitions)])

    def symbols(self) -> list[str]:
        names = []
        for item in self.definitions:
            names.append(item.name)
            inner = ast.parse(item.text).body[0]
            if isinstance(inner, ast.ClassDef):
                names += [
                    f"{item.name}.{part.name}"
                    for part in inner.body
                    if isinstance(part, ast.FunctionDef)
                ]
        return [*names, "LIMIT"]


@dataclass(frozen=True)
class Upstream:
    """Two files; edits are made to the first."""

    first: Module
    second: Module

    def files(self) -> dict[str, str]:
        return {FIRST: self.first.source(), SECOND: self.second.source()}


@dataclass(frozen=True)
class Edit:
    """The files after an edit, and what must be said of the symbol that was edited.

    Attributes:
        kinds: The classes that are right.
        now: Path and symbol where it must be found, for renames and moves.
        says: Part of the summary.
    """

    files: dict[str, str]
    symbol: str
    kinds: tuple[str, ...]
    now: tuple[str, str] | None = None
    says: str = ""


@st.composite
def upstreams(draw: _Draw) -> Upstream:
    names = draw(st.lists(st.sampled_from(_NAMES), min_size=4, max_size=7, unique=True))
    cut = draw(st.integers(3, len(names)))
    made = [_definition(name, draw) for name in names]
    return Upstream(Module(tuple(made[:cut])), Module(tuple(made[cut:])))


def _definition(name: str, draw: _Draw) -> Definition:
    if not name[0].isupper():
        return Definition(name, _function(name, draw))
    methods = [_function(f"do_{part}", draw, "self, ") for part in ("one", "two")]
    body = "\n".join(_indented(text) for text in methods)
    return Definition(
        name, f'class {name}:\n    """Words on {name}."""\n\n    size: int = 1\n\n{body}\n'
    )


def _function(name: str, draw: _Draw, first: str = "") -> str:
    default = draw(st.integers(0, 9))
    body = draw(st.sampled_from(_BODIES)).format(a="first", b="second", n=name)
    head = f"def {name}({first}first, second={default}):"
    return f'{head}\n    """Words."""\n    # a remark\n{_indented(body)}\n'


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" if line else line for line in text.split("\n"))


def apply(kind: str, upstream: Upstream, draw: _Draw) -> Edit:
    """One edit of one definition of the first file, chosen by ``draw``."""
    first = upstream.first
    index = draw(st.integers(0, len(first.definitions) - 1))
    made: Edit = _EDITORS[EDITS.index(kind)](upstream, index, draw)
    return made


def _with_first(upstream: Upstream, definitions: Sequence[Definition]) -> dict[str, str]:
    first = replace(upstream.first, definitions=tuple(definitions))
    return replace(upstream, first=first).files()


def _rename(upstream: Upstream, index: int, draw: _Draw) -> Edit:
    definitions = list(upstream.first.definitions)
    item = definitions[index]
    name = draw(st.sampled_from(("renew", "fresh_name", item.name + "_v2", "Anew")))
    text = re.sub(rf"^(def|class) {item.name}\b", rf"\1 {name}", item.text)
    definitions[index] = Definition(name, text)
    files = _with_first(upstream, definitions)
    return Edit(files, item.name, ("renamed",), now=(FIRST, name))


def _move(upstream: Upstream, index: int, draw: _Draw) -> Edit:
    definitions = list(upstream.first.definitions)
    item = definitions.pop(index)
    files = _with_first(upstream, definitions)
    target = draw(st.sampled_from((SECOND, "pkg/sub/third.py")))
    files[target] = f"{files.get(target, '')}\n\n{item.text}"
    return Edit(files, item.name, ("moved to another file",), now=(target, item.name))


def _reorder(upstream: Upstream, index: int, draw: _Draw) -> Edit:
    old = upstream.first.definitions
    definitions = draw(st.permutations(old))
    files = _with_first(upstream, definitions)
    kinds = ("same",) if tuple(definitions) == old else ("same", "moved")
    return Edit(files, old[index].name, kinds)


def _reformat(upstream: Upstream, index: int, draw: _Draw) -> Edit:
    definitions = list(upstream.first.definitions)
    item = definitions[index]
    edits = draw(st.lists(st.sampled_from(_FORMATS), min_size=1, unique=True))
    text = item.text
    for pattern, replacement in edits:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    definitions[index] = Definition(item.name, text)
    return Edit(_with_first(upstream, definitions), item.name, ("same", "moved"))


_FORMATS = (
    (r"\(first, second=(\d)\)", r"(\n    first,\n    second = \1,  # so\n)"),
    (r"^( *)# a remark$", r"\1# other words\n\1# on more lines"),
    (r"^( *)# a remark\n", r""),
    (r"^( *)return ([^\n]+)$", r"\1return (\n\1    \2\n\1)"),
    (r": *$", r":  # noqa"),
    (r" % 2", r"  %  2"),
)


def _default(upstream: Upstream, index: int, draw: _Draw) -> Edit:
    definitions = list(upstream.first.definitions)
    item = definitions[index]
    value = draw(st.integers(10, 99))
    text = re.sub(r"second=\d", f"second={value}", item.text, count=1)
    definitions[index] = Definition(item.name, text)
    is_class = item.name[0].isupper()
    symbol = f"{item.name}.do_one" if is_class else item.name
    files = _with_first(upstream, definitions)
    return Edit(files, symbol, ("changed",), says="defaults: second ")


def _delete(upstream: Upstream, index: int, draw: _Draw) -> Edit:
    definitions = list(upstream.first.definitions)
    item = definitions.pop(index)
    return Edit(_with_first(upstream, definitions), item.name, ("gone",))


def _above(upstream: Upstream, index: int, draw: _Draw) -> Edit:
    definitions = list(upstream.first.definitions)
    item = definitions[index]
    lines = draw(st.lists(st.sampled_from(("", "# words", "EXTRA = 1", "import sys")), min_size=1))
    definitions[index] = Definition(item.name, "\n".join([*lines, item.text]))
    return Edit(_with_first(upstream, definitions), item.name, ("moved",))


_EDITORS = (_rename, _move, _reorder, _reformat, _default, _delete, _above)
