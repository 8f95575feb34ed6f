"""Small random upstreams in Python and in CUDA, and the edits that people make to one."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

EDITS = ("rename", "move", "reorder", "reformat", "default", "delete", "above")

_Draw = Callable[[Any], Any]


@dataclass(frozen=True)
class Dialect:
    """How a language writes what is generated.

    Attributes:
        paths: The file that is edited, the other file, and a new one.
        layout: A file around its definitions; ``top`` has the symbols it adds.
        heads, bodies: Functions; ``first`` is an additional parameter.
        function, method: A function around its parts, and the additional parameter of a method.
        cls: A class around its methods.
        separator, scope: What joins a class and its member, and the scope around a new name.
        names: Pattern of a definition's name.
        default: A parameter's default.
        moved: The text of a definition in another file.
        formats: Patterns and replacements that change only the layout.
        above: Lines that may be added above a definition.
        harmless: Edits after which nothing is said of any symbol.
    """

    paths: tuple[str, str, str]
    layout: str
    heads: Sequence[str]
    bodies: Sequence[str]
    function: str
    method: str
    cls: str
    separator: str
    scope: str
    names: str
    default: str
    moved: str
    formats: Sequence[tuple[str, str]]
    above: Sequence[str]
    harmless: Sequence[str]


PYTHON = Dialect(
    paths=("pkg/first.py", "pkg/second.py", "pkg/sub/third.py"),
    layout='"""Words."""\n\nimport os\n\nLIMIT: int = 4\n\n\n{}',
    heads=("def {n}({first}first, second={d}):",),
    bodies=(
        'if first % 2:\n    raise ValueError(f"{n}: {{first}} is odd")\nreturn [first, second]',
        "total = sum(range(first))\nfor i in range(total):\n    log(i, second)\nreturn total",
        'with lock("{n}"):\n    state = {{"a": first, "b": second}}\n    send(state)\nreturn None',
        "return (lambda x: x * first + second)(first)",
        "try:\n    import fast_{n}\nexcept ImportError:\n    return second\nreturn fast_{n}(first)",
    ),
    function='{head}\n    """Words."""\n    # a remark\n{body}\n',
    method="self, ",
    cls='class {n}:\n    """Words on {n}."""\n\n    size: int = 1\n\n{body}\n',
    separator=".",
    scope="",
    names=r"^((?:def|class) ){n}\b",
    default=r"second=\d",
    moved="{}",
    formats=(
        (r"\(first, second=(\d)\)", r"(\n    first,\n    second = \1,  # so\n)"),
        (r"^( *)# a remark$", r"\1# other words\n\1# on more lines"),
        (r"^( *)# a remark\n", r""),
        (r"^( *)return ([^\n]+)$", r"\1return (\n\1    \2\n\1)"),
        (r": *$", r":  # noqa"),
        (r" % 2", r"  %  2"),
    ),
    above=("", "# words", "EXTRA = 1", "import sys"),
    harmless=("reformat", "above", "reorder"),
)
CUDA = Dialect(
    paths=("csrc/first.cu", "csrc/second.cuh", "csrc/sub/third.cpp"),
    layout="// Words.\n#include <vector>\n\nnamespace rings {{\n\nconstexpr int LIMIT = 4;\n\n{}\n"
    "}}  // namespace rings\n",
    heads=(
        "int {n}({first}int a, int by = {d}) {{",
        "template <typename T>\n__global__ void {n}({first}T a, int by = {d}) {{",
        "RINGS_EXPORT std::vector<int> {n}({first}const Plan &a, int by = {d}) {{",
        "static __device__ __forceinline__ float *{n}({first}float *a, int by = {d}) {{",
    ),
    bodies=(
        'RINGS_CHECK(a.size() % 2 == 0, "{n}: ", a, " is odd");\nreturn by;',
        "for (int i = 0; i < by; ++i) {{\n  log(i, a[i]);\n}}\nreturn 0;",
        "RINGS_SWITCH(a.dtype(), Type, {{\n  launch<Type><<<by, 32>>>(a);\n}});",
        "#if ARCH >= 90\nfast(a, by);\n#else\nif (by) {{ slow(a); }}\n#endif\nreturn {{a, by}};",
        'auto inner = [&](int b) {{ return b + by; }};\nthrow Error("{n} of {{" + inner(2));',
    ),
    function="/*! \\brief Words. */\n{head}\n    // a remark\n{body}\n}}\n",
    method="int own, ",
    cls="struct {n} : Base {{\n  int size = 1;\n\n{body}\n}};\n",
    separator="::",
    scope="rings::",
    names=r"((?<=[ *])){n}(?=\(| : Base)",
    default=r"int by = \d",
    moved="namespace other {{\n{}}}\n",
    formats=(
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
    ),
    above=("", "// words", "constexpr int extra = 1;", "#include <map>", "RINGS_DECLARE(x)"),
    harmless=("reformat", "reorder"),
)
_NAMES = ("build", "check", "level", "route", "merge", "split", "gather", "Ring", "Plan", "Layout")


@dataclass(frozen=True)
class Definition:
    """A function or a class at the top of a file; ``text`` has its documentation and comments."""

    name: str
    text: str


@dataclass(frozen=True)
class Upstream:
    """The definitions of two files; edits are made to the first."""

    dialect: Dialect
    first: tuple[Definition, ...]
    second: tuple[Definition, ...]

    def files(self) -> dict[str, str]:
        sources = ("\n\n".join(item.text for item in part) for part in (self.first, self.second))
        layout = self.dialect.layout
        return dict(zip(self.dialect.paths, map(layout.format, sources), strict=False))

    def symbols(self) -> list[str]:
        names = [item.name for item in self.first]
        members = ("do_one", "do_two", "size")
        classes = [name for name in names if name[0].isupper()]
        inside = [f"{name}{self.dialect.separator}{part}" for name in classes for part in members]
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
def upstreams(draw: _Draw, dialect: Dialect) -> Upstream:
    names = draw(st.lists(st.sampled_from(_NAMES), min_size=4, max_size=7, unique=True))
    cut = draw(st.integers(3, len(names)))
    made = [_definition(dialect, name, draw) for name in names]
    return Upstream(dialect, tuple(made[:cut]), tuple(made[cut:]))


def _definition(dialect: Dialect, name: str, draw: _Draw) -> Definition:
    if not name[0].isupper():
        return Definition(name, _function(dialect, name, draw))
    methods = [_function(dialect, f"do_{n}", draw, dialect.method) for n in ("one", "two")]
    body = "\n".join(map(_indented, methods))
    return Definition(name, dialect.cls.format(n=name, body=body))


def _function(dialect: Dialect, name: str, draw: _Draw, first: str = "") -> str:
    head = draw(st.sampled_from(dialect.heads))
    head = head.format(n=name, first=first, d=draw(st.integers(0, 9)))
    body = draw(st.sampled_from(dialect.bodies)).format(n=name)
    return dialect.function.format(head=head, body=_indented(body))


def _indented(text: str) -> str:
    lines = text.split("\n")
    return "\n".join(line if line.startswith("#") or not line else f"    {line}" for line in lines)


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
    item, dialect = upstream.first[index], upstream.dialect
    name = draw(st.sampled_from(("renew", "fresh_name", item.name + "_v2", "Anew")))
    pattern = dialect.names.replace("{n}", item.name)
    text = re.sub(pattern, rf"\g<1>{name}", item.text, count=1, flags=re.MULTILINE)
    files = _replaced(upstream, index, Definition(name, text))
    return Edit(files, item.name, ("renamed",), now=(dialect.paths[0], f"{dialect.scope}{name}"))


def _move(upstream: Upstream, index: int, draw: _Draw) -> Edit:
    item, dialect = upstream.first[index], upstream.dialect
    files = _replaced(upstream, index)
    target = draw(st.sampled_from(dialect.paths[1:]))
    files[target] = f"{files.get(target, '')}\n\n{dialect.moved.format(item.text)}"
    return Edit(files, item.name, ("moved to another file",), now=(target, item.name))


def _reorder(upstream: Upstream, index: int, draw: _Draw) -> Edit:
    first = tuple(draw(st.permutations(upstream.first)))
    kinds = ("same",) if first == upstream.first else ("same", "moved")
    return Edit(replace(upstream, first=first).files(), upstream.first[index].name, kinds)


def _reformat(upstream: Upstream, index: int, draw: _Draw) -> Edit:
    item = upstream.first[index]
    text = item.text
    edits = st.lists(st.sampled_from(upstream.dialect.formats), min_size=1, unique=True)
    for pattern, replacement in draw(edits):
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    files = _replaced(upstream, index, Definition(item.name, text))
    return Edit(files, item.name, ("same", "moved"))


def _default(upstream: Upstream, index: int, draw: _Draw) -> Edit:
    item, dialect = upstream.first[index], upstream.dialect
    old = re.search(dialect.default, item.text)
    assert old is not None
    new = old.group()[:-1] + str(draw(st.integers(10, 99)))
    files = _replaced(
        upstream, index, Definition(item.name, item.text.replace(old.group(), new, 1))
    )
    is_class = item.name[0].isupper()
    symbol = f"{item.name}{dialect.separator}do_one" if is_class else item.name
    name = old.group().partition("=")[0].split()[-1]
    return Edit(files, symbol, ("changed",), says=f"defaults: {name} ")


def _delete(upstream: Upstream, index: int, draw: _Draw) -> Edit:
    return Edit(_replaced(upstream, index), upstream.first[index].name, ("gone",))


def _above(upstream: Upstream, index: int, draw: _Draw) -> Edit:
    item = upstream.first[index]
    lines = draw(st.lists(st.sampled_from(upstream.dialect.above), min_size=1))
    new = Definition(item.name, "\n".join([*lines, item.text]))
    return Edit(_replaced(upstream, index, new), item.name, ("moved",))


_EDITORS = (_rename, _move, _reorder, _reformat, _default, _delete, _above)
