"""A small random CUDA upstream, and the edits that people make to one."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from checks.anchors.mutations import EDITS, Edit

FIRST, SECOND = "csrc/first.cu", "csrc/second.cuh"

_Draw = Callable[[Any], Any]
_NAMES = ("build", "check", "route", "merge_kernel", "split", "gather", "Ring", "Plan", "Layout")
_HEADS = (
    "int {n}({first}int a, int by = {d}) {{",
    "template <typename T>\n__global__ void {n}({first}T a, int by = {d}) {{",
    "RINGS_EXPORT std::vector<int> {n}({first}const Plan &a, int by = {d}) {{",
    "static __device__ __forceinline__ float *{n}({first}float *a, int by = {d}) {{",
)
_BODIES = (
    'RINGS_CHECK(a.size() % 2 == 0, "{n}: ", a, " is odd");\nreturn by;',
    "for (int i = 0; i < by; ++i) {{\n  log(i, a[i]);\n}}\nreturn 0;",
    "RINGS_SWITCH(a.dtype(), Type, {{\n  launch<Type><<<by, 32>>>(a);\n}});",
    "#if ARCH >= 90\nfast(a, by);\n#else\nif (by) {{ slow(a); }}\n#endif\nreturn {{a, by}};",
    'auto inner = [&](int b) {{ return b + by; }};\nthrow Error("{n} of {{" + inner(2));',
)


@dataclass(frozen=True)
class Definition:
    """A function or a class inside a namespace; ``text`` has its comments."""

    name: str
    text: str


@dataclass(frozen=True)
class Module:
    """A file as a head and a sequence of definitions."""

    definitions: tuple[Definition, ...]
    head: str = "// Words.\n#include <vector>\n\nnamespace rings {\n\nconstexpr int kLimit = 4;\n"

    def source(self) -> str:
        texts = [item.text for item in self.definitions]
        return "\n\n".join([self.head, *texts, "}  // namespace rings\n"])

    def symbols(self) -> list[str]:
        names = [item.name for item in self.definitions]
        members = ("do_one", "do_two", "size")
        inside = [f"{name}::{member}" for name in names if name[0].isupper() for member in members]
        return [*names, *inside, "kLimit"]


@dataclass(frozen=True)
class Upstream:
    """Two files; edits are made to the first."""

    first: Module
    second: Module

    def files(self) -> dict[str, str]:
        return {FIRST: self.first.source(), SECOND: self.second.source()}


@st.composite
def upstreams(draw: _Draw) -> Upstream:
    names = draw(st.lists(st.sampled_from(_NAMES), min_size=4, max_size=7, unique=True))
    cut = draw(st.integers(3, len(names)))
    made = [_definition(name, draw) for name in names]
    return Upstream(Module(tuple(made[:cut])), Module(tuple(made[cut:])))


def _definition(name: str, draw: _Draw) -> Definition:
    if not name[0].isupper():
        return Definition(name, _function(name, draw))
    methods = [_function(f"do_{part}", draw, "int own, ") for part in ("one", "two")]
    body = "\n".join(_indented(text) for text in methods)
    return Definition(name, f"struct {name} : Base {{\n  int size = 1;\n\n{body}\n}};\n")


def _function(name: str, draw: _Draw, first: str = "") -> str:
    head = draw(st.sampled_from(_HEADS)).format(n=name, first=first, d=draw(st.integers(0, 9)))
    body = draw(st.sampled_from(_BODIES)).format(n=name)
    return f"/*! \\brief Words. */\n{head}\n  // a remark\n{_indented(body)}\n}}\n"


def _indented(text: str) -> str:
    lines = text.split("\n")
    return "\n".join(line if line.startswith("#") or not line else f"  {line}" for line in lines)


def apply(kind: str, upstream: Upstream, draw: _Draw) -> Edit:
    """One edit of one definition of the first file, chosen by ``draw``."""
    index = draw(st.integers(0, len(upstream.first.definitions) - 1))
    made: Edit = _EDITORS[EDITS.index(kind)](upstream, index, draw)
    return made


def _with_first(upstream: Upstream, definitions: Sequence[Definition]) -> dict[str, str]:
    first = replace(upstream.first, definitions=tuple(definitions))
    return replace(upstream, first=first).files()


def _rename(upstream: Upstream, index: int, draw: _Draw) -> Edit:
    definitions = list(upstream.first.definitions)
    item = definitions[index]
    name = draw(st.sampled_from(("renew", "fresh_name", item.name + "_v2", "Anew")))
    text = re.sub(rf"(?<=[ *]){item.name}(?=\(| : Base)", name, item.text, count=1)
    definitions[index] = Definition(name, text)
    files = _with_first(upstream, definitions)
    return Edit(files, item.name, ("renamed",), now=(FIRST, f"rings::{name}"))


def _move(upstream: Upstream, index: int, draw: _Draw) -> Edit:
    definitions = list(upstream.first.definitions)
    item = definitions.pop(index)
    files = _with_first(upstream, definitions)
    target = draw(st.sampled_from((SECOND, "csrc/sub/third.cpp")))
    files[target] = f"{files.get(target, '')}\n\nnamespace other {{\n{item.text}}}\n"
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
    (r", int by = (\d)\) \{$", r",\n    int by=\1  // so\n)\n{"),
    (r"^( *)// a remark$", r"\1// other words\n\1/* on }\n\1   more { lines */"),
    (r"^( *)// a remark\n", r""),
    (r"^( *)return ([^\n;]+);$", r"\1return\n\1    \2 ;"),
    (r";$", r";  // NOLINT"),
    (r" % 2", r"  %  2"),
    (r" is odd", r' is" /* or not */\n  " odd'),
    (r"Words\.", r"\n * Words.\n "),
    (r"template <typename T>\n", r"template<typename T> "),
    (r"^#if ARCH >= 90$", r"#  if ARCH  >= 90"),
)


def _default(upstream: Upstream, index: int, draw: _Draw) -> Edit:
    definitions = list(upstream.first.definitions)
    item = definitions[index]
    value = draw(st.integers(10, 99))
    text = re.sub(r"int by = \d", f"int by = {value}", item.text, count=1)
    definitions[index] = Definition(item.name, text)
    symbol = f"{item.name}::do_one" if item.name[0].isupper() else item.name
    files = _with_first(upstream, definitions)
    return Edit(files, symbol, ("changed",), says="defaults: by ")


def _delete(upstream: Upstream, index: int, draw: _Draw) -> Edit:
    definitions = list(upstream.first.definitions)
    item = definitions.pop(index)
    return Edit(_with_first(upstream, definitions), item.name, ("gone",))


def _above(upstream: Upstream, index: int, draw: _Draw) -> Edit:
    definitions = list(upstream.first.definitions)
    item = definitions[index]
    above = ("", "// words", "constexpr int extra = 1;", "#include <map>", "RINGS_DECLARE(x)")
    lines = draw(st.lists(st.sampled_from(above), min_size=1))
    definitions[index] = Definition(item.name, "\n".join([*lines, item.text]))
    return Edit(_with_first(upstream, definitions), item.name, ("moved",))


_EDITORS = (_rename, _move, _reorder, _reformat, _default, _delete, _above)
