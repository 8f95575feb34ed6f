"""Small random upstreams, and the edits that people make to one."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

EDITS = ("rename", "move", "reorder", "reformat", "default", "delete", "above")

_Draw = Callable[[Any], Any]


PATHS = ("pkg/first.py", "pkg/second.py", "pkg/sub/third.py")
"""The file that is edited, the other file, and a new one."""
_LAYOUT = '"""Words."""\n\nimport os\n\nLIMIT: int = 4\n\n\n{}'
_HEAD = "def {n}({first}first, second={d}):"
_BODIES = (
    'if first % 2:\n    raise ValueError(f"{n}: {{first}} is odd")\nreturn [first, second]',
    "total = sum(range(first))\nfor i in range(total):\n    log(i, second)\nreturn total",
    'with lock("{n}"):\n    state = {{"a": first, "b": second}}\n    send(state)\nreturn None',
    "return (lambda x: x * first + second)(first)",
    "try:\n    import fast_{n}\nexcept ImportError:\n    return second\nreturn fast_{n}(first)",
)
_FUNCTION = '{head}\n    """Words."""\n    # a remark\n{body}\n'
_CLASS = 'class {n}:\n    """Words on {n}."""\n\n    size: int = 1\n\n{body}\n'
# Patterns and replacements that change only the layout.
_FORMATS = (
    (r"\(first, second=(\d)\)", r"(\n    first,\n    second = \1,  # so\n)"),
    (r"^( *)# a remark$", r"\1# other words\n\1# on more lines"),
    (r"^( *)# a remark\n", r""),
    (r"^( *)return ([^\n]+)$", r"\1return (\n\1    \2\n\1)"),
    (r": *$", r":  # noqa"),
    (r" % 2", r"  %  2"),
)
_ABOVE = ("", "# words", "EXTRA = 1", "import sys")
HARMLESS_EDITS = ("reformat", "above", "reorder")
"""Edits after which nothing is said of any symbol."""
_NAMES = ("build", "check", "level", "route", "merge", "split", "gather", "Ring", "Plan", "Layout")


@dataclass(frozen=True)
class Definition:
    """A function or a class at the top of a file; ``text`` has its documentation and comments."""

    name: str
    text: str


@dataclass(frozen=True)
class Upstream:
    """The definitions of two files; edits are made to the first."""

    first: tuple[Definition, ...]
    second: tuple[Definition, ...]

    def files(self) -> dict[str, str]:
        sources = ("\n\n".join(item.text for item in part) for part in (self.first, self.second))
        return dict(zip(PATHS, map(_LAYOUT.format, sources), strict=False))

    def symbols(self) -> list[str]:
        names = [item.name for item in self.first]
        members = ("do_one", "do_two", "size")
        classes = [name for name in names if name[0].isupper()]
        inside = [f"{name}.{part}" for name in classes for part in members]
        return [*names, *inside, "LIMIT"]


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
    return Upstream(tuple(made[:cut]), tuple(made[cut:]))


def _definition(name: str, draw: _Draw) -> Definition:
    if not name[0].isupper():
        return Definition(name, _function(name, draw))
    methods = [_function(f"do_{n}", draw, "self, ") for n in ("one", "two")]
    body = "\n".join(map(_indented, methods))
    return Definition(name, _CLASS.format(n=name, body=body))


def _function(name: str, draw: _Draw, first: str = "") -> str:
    head = _HEAD.format(n=name, first=first, d=draw(st.integers(0, 9)))
    body = draw(st.sampled_from(_BODIES)).format(n=name)
    return _FUNCTION.format(head=head, body=_indented(body))


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.split("\n"))


def apply(kind: str, upstream: Upstream, draw: _Draw) -> Edit:
    """One edit of one definition of the first file, chosen by ``draw``."""
    index = draw(st.integers(0, len(upstream.first) - 1))
    made: Edit = _EDITORS[EDITS.index(kind)](upstream, index, draw)
    return made


def _replaced(upstream: Upstream, index: int, *items: Definition) -> dict[str, str]:
    """The files with other definitions in place of one."""
    first = (*upstream.first[:index], *items, *upstream.first[index + 1 :])
    return replace(upstream, first=first).files()


def _rename(upstream: Upstream, index: int, draw: _Draw) -> Edit:
    item = upstream.first[index]
    name = draw(st.sampled_from(("renew", "fresh_name", item.name + "_v2", "Anew")))
    text = re.sub(rf"^((?:def|class) ){item.name}\b", rf"\g<1>{name}", item.text, count=1)
    files = _replaced(upstream, index, Definition(name, text))
    return Edit(files, item.name, ("renamed",), now=(PATHS[0], name))


def _move(upstream: Upstream, index: int, draw: _Draw) -> Edit:
    item = upstream.first[index]
    files = _replaced(upstream, index)
    target = draw(st.sampled_from(PATHS[1:]))
    files[target] = f"{files.get(target, '')}\n\n{item.text}"
    return Edit(files, item.name, ("moved to another file",), now=(target, item.name))


def _reorder(upstream: Upstream, index: int, draw: _Draw) -> Edit:
    first = tuple(draw(st.permutations(upstream.first)))
    kinds = ("same",) if first == upstream.first else ("same", "moved")
    return Edit(replace(upstream, first=first).files(), upstream.first[index].name, kinds)


def _reformat(upstream: Upstream, index: int, draw: _Draw) -> Edit:
    item = upstream.first[index]
    text = item.text
    edits = st.lists(st.sampled_from(_FORMATS), min_size=1, unique=True)
    for pattern, replacement in draw(edits):
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    files = _replaced(upstream, index, Definition(item.name, text))
    return Edit(files, item.name, ("same", "moved"))


def _default(upstream: Upstream, index: int, draw: _Draw) -> Edit:
    item = upstream.first[index]
    old = re.search(r"second=\d", item.text)
    assert old is not None
    new = old.group()[:-1] + str(draw(st.integers(10, 99)))
    files = _replaced(
        upstream, index, Definition(item.name, item.text.replace(old.group(), new, 1))
    )
    is_class = item.name[0].isupper()
    symbol = f"{item.name}.do_one" if is_class else item.name
    return Edit(files, symbol, ("changed",), says="defaults: second ")


def _delete(upstream: Upstream, index: int, draw: _Draw) -> Edit:
    return Edit(_replaced(upstream, index), upstream.first[index].name, ("gone",))


def _above(upstream: Upstream, index: int, draw: _Draw) -> Edit:
    item = upstream.first[index]
    lines = draw(st.lists(st.sampled_from(_ABOVE), min_size=1))
    new = Definition(item.name, "\n".join([*lines, item.text]))
    return Edit(_replaced(upstream, index, new), item.name, ("moved",))


_EDITORS = (_rename, _move, _reorder, _reformat, _default, _delete, _above)
