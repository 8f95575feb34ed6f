"""Edits of a synthetic upstream, generated, each with the class it must get."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checks.anchors.gitrepo import commit, make_repository
from checks.anchors.mutations import EDITS, Upstream, apply, upstreams
from ringproof.harness.anchors import UpstreamTree
from ringproof.harness.anchors.drift import Drift, DriftKind, classify
from ringproof.harness.cards import Anchor
from ringproof.harness.upstreams.specs import open_tree

Open = Callable[[Mapping[str, str]], UpstreamTree]
EXAMPLES = 240
HARMLESS = (DriftKind.SAME, DriftKind.MOVED)


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Open:
    """Opens versions of an upstream, all kept in one repository."""
    folder = tmp_path_factory.mktemp("upstream")
    repository = make_repository(folder / "r")

    def tree(files: Mapping[str, str]) -> UpstreamTree:
        spec = f"git:{folder / 'r'}@{commit(repository, files, ref=None)}"
        return open_tree(spec, cache=folder, offline=True)

    return tree


def _drift(
    trees: Open, old: Mapping[str, str], new: Mapping[str, str], path: str, symbols: list[str]
) -> list[Drift]:
    anchors = [
        Anchor(id=f"a{index}", upstream="u", path=path, symbol=symbol, role="r")
        for index, symbol in enumerate(symbols)
    ]
    return list(classify(anchors, trees(old), trees(new)))


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
    tally: Counter[str], trees: Open, upstream: Upstream, data: st.DataObject
) -> None:
    kind = data.draw(st.sampled_from(EDITS))
    edit = apply(kind, upstream, data.draw)
    tally[kind] += 1
    symbols = upstream.first.symbols()
    found = {
        fate.anchor.symbol: fate
        for fate in _drift(trees, upstream.files(), edit.files, "pkg/first.py", symbols)
    }
    target = found[edit.symbol]
    assert target.kind.value in edit.kinds, (kind, edit.symbol, target)
    for name, fate in found.items():
        related = name.startswith(f"{edit.symbol}.") or edit.symbol.startswith(f"{name}.")
        if name != edit.symbol and not related:
            assert fate.kind in HARMLESS, (kind, name, fate)
    if edit.now is not None:
        assert (target.path, target.symbol) == edit.now
        assert target.confidence == 1
    if edit.says:
        assert any(edit.says in line for line in target.summary), target.summary
    if kind in ("reformat", "above", "reorder"):
        assert all(fate.harmless and not fate.summary for fate in found.values())


def test_a_change_among_harmless_edits_is_seen(trees: Open) -> None:
    old = {"pkg/first.py": "def f(a=1):\n    return a\n"}
    new = {"pkg/first.py": "# words\n\n\ndef f(\n    a = 2,  # words\n):\n    return (a)\n"}
    (fate,) = _drift(trees, old, new, "pkg/first.py", ["f"])
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
def test_changes_are_summarised(trees: Open, old: str, new: str, says: str) -> None:
    (fate,) = _drift(trees, {"m.py": old}, {"m.py": new}, "m.py", ["f"])
    assert fate.kind is DriftKind.CHANGED
    assert any(says in line for line in fate.summary), fate.summary


def test_a_lost_expectation_and_a_docstring_are_told(trees: Open) -> None:
    old = 'class C:\n    size: int = 1\n    """How many ranks."""\n'
    new = old.replace("ranks", "nodes")
    anchor = Anchor(
        id="a", upstream="u", path="m.py", symbol="C.size", role="r", expects=("ranks",)
    )
    (fate,) = classify([anchor], trees({"m.py": old}), trees({"m.py": new}))
    assert (fate.kind, fate.summary, fate.missing) == (
        DriftKind.SAME,
        ("documentation",),
        ("ranks",),
    )
    assert not fate.harmless
    assert dataclasses.replace(fate, missing=()).harmless


def test_another_function_is_no_rename_and_no_move(trees: Open) -> None:
    old = {"m.py": "def f(a):\n    for x in a:\n        print(x)\n"}
    new = {
        "m.py": "def g(b):\n    with open(b) as s:\n        return s.read()\n",
        "n.py": "def f(q, *rest, key=None):\n    raise SystemExit(sum(map(int, rest)))\n",
    }
    (fate,) = _drift(trees, old, new, "m.py", ["f"])
    assert fate.kind is DriftKind.GONE


def test_a_namesake_that_was_there_before_is_no_move(trees: Open) -> None:
    both = {"m.py": "def f(a):\n    return [a]\n", "n.py": "def f(a):\n    return [a]\n"}
    (fate,) = _drift(trees, both, {**both, "m.py": ""}, "m.py", ["f"])
    assert fate.kind is DriftKind.GONE


def test_a_broken_or_absent_file(trees: Open) -> None:
    old = {"m.py": "def f(): pass\n"}
    assert _drift(trees, old, {"m.py": "def f(:"}, "m.py", ["f"])[0].kind is DriftKind.UNREADABLE
    assert _drift(trees, old, {"n.py": "x = 1"}, "m.py", ["f"])[0].kind is DriftKind.GONE
    assert _drift(trees, {"n.py": ""}, old, "m.py", ["f"])[0].kind is DriftKind.ABSENT


def test_a_long_elif_chain_is_walked(trees: Open) -> None:
    chain = "".join(f"elif a == {index}:\n    x{index} = 1\n" for index in range(1500))
    old = {"m.py": f"if a:\n    pass\n{chain}"}
    (fate,) = _drift(trees, old, {"m.py": f"# above\n{old['m.py']}"}, "m.py", ["x1499"])
    assert fate.kind is DriftKind.MOVED
