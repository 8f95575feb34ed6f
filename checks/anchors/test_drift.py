"""What became of anchors between two versions of a synthetic upstream, in Python and in CUDA."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checks.anchors.mutations import CUDA, EDITS, PYTHON, Dialect, apply, upstreams
from checks.anchors.native_source import TextTree, anchor
from ringproof.anchors.drift import Drift, DriftKind, classify

EXAMPLES = 260
HARMLESS = (DriftKind.SAME, DriftKind.MOVED)


def _drift(old: Mapping[str, str], new: Mapping[str, str], path: str, *symbols: str) -> list[Drift]:
    anchors = [anchor(symbol, path=path) for symbol in symbols]
    return list(classify(anchors, TextTree(old), TextTree(new)))


@pytest.fixture(scope="module")
def tally() -> Iterator[Counter[tuple[str, str]]]:
    """How often each edit was made in each language; every one must have been."""
    counts: Counter[tuple[str, str]] = Counter()
    yield counts
    assert sum(counts.values()) >= 400
    assert set(counts) == {(item.separator, kind) for item in (PYTHON, CUDA) for kind in EDITS}


@pytest.mark.slow
@pytest.mark.parametrize("dialect", [PYTHON, CUDA], ids=["python", "cuda"])
@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_every_edit_gets_its_class(
    tally: Counter[tuple[str, str]], dialect: Dialect, data: st.DataObject
) -> None:
    upstream = data.draw(upstreams(dialect))
    kind = data.draw(st.sampled_from(EDITS))
    edit = apply(kind, upstream, data.draw)
    tally[dialect.separator, kind] += 1
    fates = _drift(upstream.files(), edit.files, dialect.paths[0], *upstream.symbols())
    found = {fate.anchor.symbol: fate for fate in fates}
    target = found[edit.symbol]
    assert target.kind.value in edit.kinds, (kind, edit.symbol, target)
    for name, fate in found.items():
        longer = f"{edit.symbol}{dialect.separator}", f"{name}{dialect.separator}"
        related = name.startswith(longer[0]) or edit.symbol.startswith(longer[1])
        if name != edit.symbol and not related:
            assert fate.kind in HARMLESS, (kind, name, fate)
    if edit.now is not None:
        assert (target.path, target.symbol) == edit.now
        assert target.confidence == 1
    if edit.says:
        assert any(edit.says in line for line in target.summary), target.summary
    if kind in dialect.harmless:
        assert all(fate.harmless and not fate.summary for fate in found.values())


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        (
            "m.py",
            "def f(a=1):\n    return a\n",
            "# words\n\n\ndef f(\n    a = 2,  # words\n):\n    return (a)\n",
        ),
        (
            "a.cu",
            "int f(int a = 1) { return a; }\n",
            "// words\n\n\nint f(\n    int a = 2  // words\n)\n{ return a; }\n",
        ),
    ],
)
def test_a_change_among_harmless_edits_is_seen(path: str, old: str, new: str) -> None:
    (fate,) = _drift({path: old}, {path: new}, path, "f")
    assert fate.kind is DriftKind.CHANGED and fate.summary == ("defaults: a 1 -> 2",)


CHANGES = [
    ("def f(a): return a", "def f(a, *, b=None): return a", "signature: added b"),
    ("def f(a, b): return a", "def f(b, a): return a", "signature: reordered"),
    ("def f(a: int): return a", "def f(a: str): return a", "a: int -> str"),
    ("def f(a): return a", "def f(a):\n assert a\n return a", "raises: +AssertionError"),
    (
        "def f(): raise KeyError(1)",
        "def f(): raise ValueError(1)",
        "raises: +ValueError, -KeyError",
    ),
    ("def f(): return g('x')", "def f(): return g('y')", "literals: +'y', -'x'"),
    ("def f(): return a + b", "def f(): return a - b", "body"),
    ("@x\ndef f(): pass", "@y\ndef f(): pass", "decorators: +y, -x"),
    ("class f(A): pass", "class f(B): pass", "bases: +B, -A"),
    ("class f:\n a: int = 1", "class f:\n a: int = 2", "defaults: a 1 -> 2"),
    ("def f(): pass", "async def f(): pass", "kind: FunctionDef -> AsyncFunctionDef"),
    ("f = 1", "f = 2", "defaults: f 1 -> 2"),
]


@pytest.mark.parametrize(("old", "new", "says"), CHANGES)
def test_changes_are_summarised(old: str, new: str, says: str) -> None:
    (fate,) = _drift({"m.py": old}, {"m.py": new}, "m.py", "f")
    assert fate.kind is DriftKind.CHANGED
    assert any(says in line for line in fate.summary), fate.summary


@pytest.mark.parametrize(
    ("path", "symbol", "text"),
    [
        ("m.py", "C.size", 'class C:\n    size: int = 1\n    """How many ranks."""\n'),
        ("a.h", "kOne", "enum E {\n  kOne,  //!< how many ranks\n  kTwo = kOne,\n};\n"),
    ],
)
def test_a_lost_expectation_and_new_words_are_told(path: str, symbol: str, text: str) -> None:
    new = TextTree({path: text.replace("ranks", "nodes")})
    (fate,) = classify([anchor(symbol, "ranks", path=path)], TextTree({path: text}), new)
    assert (fate.kind, fate.summary) == (DriftKind.SAME, ("documentation",))
    assert fate.missing == ("ranks",) and not fate.harmless
    assert dataclasses.replace(fate, missing=()).harmless


def test_methods_follow_a_renamed_class() -> None:
    old = {"a.cu": "struct A { int size() { return limit; } };\n"}
    (fate,) = _drift(old, {"a.cu": old["a.cu"].replace("A", "B")}, "a.cu", "A::size")
    assert (fate.kind, fate.symbol, fate.confidence) == (DriftKind.RENAMED, "B::size", 1)


def test_a_function_that_became_overloaded_is_named_with_its_number() -> None:
    old = {"a.cu": "int f(int a) { return a + limit; }\n"}
    new = {"a.cu": "long f(Plan b) { go(); }\n" + old["a.cu"]}
    (fate,) = _drift(old, new, "a.cu", "f")
    assert (fate.kind, fate.symbol, fate.after) == (DriftKind.RENAMED, "f#2", (2, 2))


F_PY, F_CU = "def f(a):\n    return [a]\n", "int f(int a) { return a; }\n"


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        (  # another function under another name, and one of that name elsewhere
            "m.py",
            {"m.py": "def f(a):\n    for x in a:\n        print(x)\n"},
            {
                "m.py": "def g(b):\n    with open(b) as s:\n        return s.read()\n",
                "n.py": "def f(q, *rest, key=None):\n    raise SystemExit(sum(map(int, rest)))\n",
            },
        ),
        (
            "a.cu",
            {"a.cu": "int f(int a) { for (auto x : a) { print(x); } }\n"},
            {
                "a.cu": "Tensor g(const Plan &b) { return read(open(b), 1); }\n",
                "b.cu": "template <class T> float *f(T *q) { throw Error(*q); }\n",
            },
        ),
        # a namesake that was there before, or is in another language
        ("m.py", {"m.py": F_PY, "n.py": F_PY}, {"m.py": "", "n.py": F_PY}),
        ("a.cu", {"a.cu": F_CU, "b.cu": F_CU}, {"a.cu": "", "b.cu": F_CU, "c.py": F_PY}),
        ("a.py", {"a.py": "f = 1\n"}, {"a.py": "", "b.cu": "int f = 1;\n"}),
    ],
)
def test_another_function_is_no_rename_and_no_move(
    path: str, old: dict[str, str], new: dict[str, str]
) -> None:
    (fate,) = _drift(old, new, path, "f")
    assert fate.kind is DriftKind.GONE


@pytest.mark.parametrize(
    ("path", "text", "broken"), [("m.py", F_PY, "def f(:"), ("a.cu", F_CU, "int\0f;")]
)
def test_a_broken_or_absent_file(path: str, text: str, broken: str) -> None:
    assert _drift({path: text}, {path: broken}, path, "f")[0].kind is DriftKind.UNREADABLE
    other = {f"other/{path}": "x"}
    assert _drift({path: text}, other, path, "f")[0].kind is DriftKind.GONE
    assert _drift(other, {path: text}, path, "f")[0].kind is DriftKind.ABSENT


def test_a_long_elif_chain_is_walked() -> None:
    chain = "".join(f"elif a == {index}:\n    x{index} = 1\n" for index in range(1500))
    old = {"m.py": f"if a:\n    pass\n{chain}"}
    (fate,) = _drift(old, {"m.py": f"# above\n{old['m.py']}"}, "m.py", "x1499")
    assert fate.kind is DriftKind.MOVED
