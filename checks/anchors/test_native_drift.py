"""Edits of a synthetic CUDA upstream, generated, each with the class it must get."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checks.anchors.mutations import EDITS
from checks.anchors.native_mutations import FIRST, Upstream, apply, upstreams
from checks.anchors.native_source import TextTree, anchor
from ringproof.harness.anchors.drift import Drift, DriftKind, classify

EXAMPLES = 280
HARMLESS = (DriftKind.SAME, DriftKind.MOVED)


def _drift(old: Mapping[str, str], new: Mapping[str, str], path: str, *symbols: str) -> list[Drift]:
    anchors = [anchor(symbol, path=path) for symbol in symbols]
    return list(classify(anchors, TextTree(old), TextTree(new)))


@pytest.fixture(scope="module")
def tally() -> Iterator[Counter[str]]:
    """How often each edit was made; every one must have been."""
    counts: Counter[str] = Counter()
    yield counts
    assert sum(counts.values()) >= 200
    assert set(counts) == set(EDITS)


@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(upstream=upstreams(), data=st.data())
def test_every_edit_gets_its_class(
    tally: Counter[str], upstream: Upstream, data: st.DataObject
) -> None:
    kind = data.draw(st.sampled_from(EDITS))
    edit = apply(kind, upstream, data.draw)
    tally[kind] += 1
    fates = _drift(upstream.files(), edit.files, FIRST, *upstream.first.symbols())
    found = {fate.anchor.symbol: fate for fate in fates}
    target = found[edit.symbol]
    assert target.kind.value in edit.kinds, (kind, edit.symbol, target)
    for name, fate in found.items():
        related = name.startswith(f"{edit.symbol}::") or edit.symbol.startswith(f"{name}::")
        if name != edit.symbol and not related:
            assert fate.kind in HARMLESS, (kind, name, fate)
    if edit.now is not None:
        assert (target.path, target.symbol) == edit.now
        assert target.confidence == 1
    if edit.says:
        assert any(edit.says in line for line in target.summary), target.summary
    if kind in ("reformat", "reorder"):
        assert all(fate.harmless and not fate.summary for fate in found.values())


def test_a_change_among_harmless_edits_is_seen() -> None:
    old = {"a.cu": "int f(int a = 1) { return a; }\n"}
    new = {"a.cu": "// words\n\n\nint f(\n    int a = 2  // words\n)\n{ return a; }\n"}
    (fate,) = _drift(old, new, "a.cu", "f")
    assert fate.kind is DriftKind.CHANGED and fate.summary == ("defaults: a 1 -> 2",)


def test_methods_follow_a_renamed_class() -> None:
    old = {"a.cu": "struct A { int size() { return limit; } };\n"}
    (fate,) = _drift(old, {"a.cu": old["a.cu"].replace("A", "B")}, "a.cu", "A::size")
    assert (fate.kind, fate.symbol, fate.confidence) == (DriftKind.RENAMED, "B::size", 1)


def test_a_function_that_became_overloaded_is_named_with_its_number() -> None:
    old = {"a.cu": "int f(int a) { return a + limit; }\n"}
    new = {"a.cu": "long f(Plan b) { go(); }\n" + old["a.cu"]}
    (fate,) = _drift(old, new, "a.cu", "f")
    assert (fate.kind, fate.symbol, fate.after) == (DriftKind.RENAMED, "f#2", (2, 2))


def test_another_function_is_no_rename_and_no_move() -> None:
    old = {"a.cu": "int f(int a) { for (auto x : a) { print(x); } }\n"}
    new = {
        "a.cu": "Tensor g(const Plan &b) { return read(open(b), 1); }\n",
        "b.cu": "template <class T> float *f(T *q) { throw Error(*q); }\n",
    }
    (fate,) = _drift(old, new, "a.cu", "f")
    assert fate.kind is DriftKind.GONE


def test_a_namesake_that_was_there_before_or_is_python_is_no_move() -> None:
    old = {"a.cu": "int f(int a) { return a; }\n", "b.cu": "int f(int a) { return a; }\n"}
    new = {**old, "a.cu": "", "c.py": "def f(a):\n    return a\n"}
    (fate,) = _drift(old, new, "a.cu", "f")
    assert fate.kind is DriftKind.GONE


def test_a_python_symbol_is_not_sought_in_native_files() -> None:
    old = {"a.py": "f = 1\n"}
    (fate,) = _drift(old, {"a.py": "", "b.cu": "int f = 1;\n"}, "a.py", "f")
    assert fate.kind is DriftKind.GONE


def test_a_lost_expectation_and_new_words_are_told() -> None:
    old = {"a.h": "enum E {\n  kOne,  //!< how many ranks\n  kTwo = kOne,\n};\n"}
    new = {"a.h": old["a.h"].replace("ranks", "nodes")}
    (fate,) = classify([anchor("kOne", "ranks", path="a.h")], TextTree(old), TextTree(new))
    assert (fate.kind, fate.summary) == (DriftKind.SAME, ("documentation",))
    assert fate.missing == ("ranks",) and not fate.harmless


def test_a_broken_or_absent_file() -> None:
    old = {"a.cu": "int f;\n"}
    assert _drift(old, {"a.cu": "int\0f;"}, "a.cu", "f")[0].kind is DriftKind.UNREADABLE
    assert _drift(old, {"b.cu": "int g;"}, "a.cu", "f")[0].kind is DriftKind.GONE
    assert _drift({"b.cu": ""}, old, "a.cu", "f")[0].kind is DriftKind.ABSENT
