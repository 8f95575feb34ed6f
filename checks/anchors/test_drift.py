"""What became of anchors between two versions of a synthetic upstream."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest

from checks.anchors.texts import TextTree, anchor
from ringproof.anchors.drift import Drift, DriftKind, classify

UNCHANGED = (DriftKind.SAME, DriftKind.MOVED)


def _drift(
    old: Mapping[str, str], new: Mapping[str, str], *symbols: str, path: str = "m.py"
) -> list[Drift]:
    anchors = [anchor(symbol, path=path) for symbol in symbols]
    return list(classify(anchors, TextTree(old), TextTree(new)))


BUILD = """def build(first, second=1):
    \"\"\"Words.\"\"\"
    # a remark
    if first % 2:
        raise ValueError(f"build: {first} is odd")
    return [first, second]
"""
SEND = """def send(first, second=2):
    with lock("send"):
        state = {"a": first, "b": second}
        deliver(state)
    return None
"""
RING = """class Ring:
    \"\"\"Words on rings.\"\"\"

    size: int = 1

    def total(self, first, second=3):
        total = sum(range(first))
        return total

    def fast(self, first, second=4):
        try:
            import fast_ring
        except ImportError:
            return second
        return fast_ring(first)
"""
LIMIT = "LIMIT: int = 4\n"
PARTS = (LIMIT, BUILD, SEND, RING)
SYMBOLS = ("LIMIT", "build", "send", "Ring", "Ring.size", "Ring.total", "Ring.fast")


def _file(*parts: str) -> dict[str, str]:
    return {"m.py": "import os\n\n" + "\n\n".join(parts), "other.py": "def known(): pass\n"}


def _with(old: str, new: str) -> dict[str, str]:
    return _file(*(part.replace(old, new) for part in PARTS))


LAYOUT = ("first, second=1):", "\n    first,\n    second = 1,  # so\n):")
RENAMED_RING = {f"Ring{end}": ("renamed", f"Coil{end}") for end in ("", ".size", ".total", ".fast")}
GONE = "moved to another file"
EDITS = {
    "above": (_file("# words", "EXTRA = 1", *PARTS), {}),
    "reorder": (_file(RING, SEND, LIMIT, BUILD), {}),
    "reformat": (_with(*LAYOUT), {}),
    "remark": (_with("    # a remark\n", ""), {}),
    "brackets": (_with("return [first, second]", "return (\n        [first, second]\n    )"), {}),
    "function renamed": (_with("def send", "def give"), {"send": ("renamed", "give")}),
    "class renamed": (_with("class Ring", "class Coil"), RENAMED_RING),
    "method renamed": (_with("def fast", "def faster"),
                       {"Ring.fast": ("renamed", "Ring.faster"), "Ring": ("changed", "Ring")}),
    "default": (_with("second=2", "second=20"), {"send": ("changed", "send")}),
    "default of a method": (_with("second=3", "second=30"),
                            {"Ring.total": ("changed", "Ring.total"), "Ring": ("changed", "Ring")}),
    "deleted": (_file(LIMIT, BUILD, RING), {"send": ("gone", "send")}),
    "moved": ({**_file(LIMIT, BUILD, RING), "sub/new.py": SEND}, {"send": (GONE, "send")}),
    "moved to a file": ({**_file(LIMIT, SEND, RING), "other.py": f"def known(): pass\n{BUILD}"},
                        {"build": (GONE, "build")}),
}  # fmt: skip


@pytest.mark.parametrize("edit", EDITS)
def test_every_edit_gets_its_class(edit: str) -> None:
    """Everything that was not edited is the same, or has moved."""
    new, expected = EDITS[edit]
    drifts = _drift(_file(*PARTS), new, *SYMBOLS)
    found = {drift.anchor.symbol: drift for drift in drifts if not drift.harmless}
    assert {name: (drift.kind.value, drift.symbol) for name, drift in found.items()} == expected
    assert not any(drift.summary for drift in drifts if drift.harmless)
    assert {drift.confidence for drift in found.values()} <= {None, 1}


def test_a_change_among_harmless_edits_is_seen() -> None:
    old = "def f(a=1):\n    return a\n"
    new = "# words\n\n\ndef f(\n    a = 2,  # words\n):\n    return (a)\n"
    (drift,) = _drift({"m.py": old}, {"m.py": new}, "f")
    assert drift.kind is DriftKind.CHANGED and drift.summary == ("defaults: a 1 -> 2",)


CHANGES = [
    ("def f(a): return a", "def f(a, *, b=None): return a", "signature: added b"),
    ("def f(a, b): return a", "def f(b, a): return a", "signature: reordered"),
    ("def f(a: int): return a", "def f(a: str): return a", "signature: a int -> str"),
    ("def f(a): return a", "def f(a):\n assert a\n return a", "raises: added AssertionError"),
    (
        "def f(): raise KeyError(1)",
        "def f(): raise ValueError(1)",
        "raises: added ValueError once, removed KeyError once",
    ),
    (
        "def f(): return g('x')",
        "def f(): return g('y')",
        "literals: added 'y' once, removed 'x' once",
    ),
    ("def f(): return g(1, 1)", "def f(): return g(1)", "literals: 1 2 times -> once"),
    ("def f(a): return a", "def f(a, b=2): return a", "defaults: added b 2"),
    ("def f(): return a + b", "def f(): return a - b", "body"),
    ("@x\ndef f(): pass", "@y\ndef f(): pass", "decorators: added y once, removed x once"),
    ("class f(A): pass", "class f(B): pass", "bases: added B once, removed A once"),
    ("class f:\n a: int = 1", "class f:\n a: int = 2", "defaults: a 1 -> 2"),
    ("def f(): pass", "async def f(): pass", "kind: FunctionDef -> AsyncFunctionDef"),
    ("f = 1", "f = 2", "defaults: f 1 -> 2"),
]


@pytest.mark.parametrize(("old", "new", "says"), CHANGES)
def test_changes_are_summarised(old: str, new: str, says: str) -> None:
    (drift,) = _drift({"m.py": old}, {"m.py": new}, "f")
    assert drift.kind is DriftKind.CHANGED
    assert any(says in line for line in drift.summary), drift.summary


def test_a_lost_expectation_and_new_words_are_told() -> None:
    text = 'class C:\n    size: int = 1\n    """How many ranks."""\n'
    new = TextTree({"m.py": text.replace("ranks", "nodes")})
    (drift,) = classify([anchor("C.size", "ranks")], TextTree({"m.py": text}), new)
    assert (drift.kind, drift.summary) == (DriftKind.SAME, ("documentation",))
    assert drift.missing == ("ranks",) and not drift.harmless
    assert dataclasses.replace(drift, missing=()).harmless


def test_methods_follow_a_renamed_class() -> None:
    old = {"m.py": "class A:\n    def size(self): return self.limit\n"}
    (drift,) = _drift(old, {"m.py": old["m.py"].replace("A", "B")}, "A.size")
    assert (drift.kind, drift.symbol, drift.confidence) == (DriftKind.RENAMED, "B.size", 1)


def test_a_function_that_is_defined_twice_is_named_with_its_number() -> None:
    old = {"m.py": "def f(a): return a + limit\n"}
    new = {"m.py": "def f(b, *c): go()\n" + old["m.py"]}
    (drift,) = _drift(old, new, "f")
    assert (drift.kind, drift.symbol, drift.after) == (DriftKind.RENAMED, "f#2", (2, 2))


F_PY = "def f(a):\n    return [a]\n"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (  # another function under another name, and one of that name elsewhere
            {"m.py": "def f(a):\n    for x in a:\n        print(x)\n"},
            {
                "m.py": "def g(b):\n    with open(b) as s:\n        return s.read()\n",
                "n.py": "def f(q, *rest, key=None):\n    raise SystemExit(sum(map(int, rest)))\n",
            },
        ),
        ({"m.py": F_PY, "n.py": F_PY}, {"m.py": "", "n.py": F_PY}),  # there before
        ({"m.py": F_PY}, {"m.py": "", "n.cu": F_PY}),  # not Python
    ],
)
def test_another_function_is_no_rename_and_no_move(
    old: dict[str, str], new: dict[str, str]
) -> None:
    (drift,) = _drift(old, new, "f")
    assert drift.kind is DriftKind.GONE


def test_a_broken_or_absent_file() -> None:
    assert _drift({"m.py": F_PY}, {"m.py": "def f(:"}, "f")[0].kind is DriftKind.UNREADABLE
    other = {"other/m.py": "x"}
    assert _drift({"m.py": F_PY}, other, "f")[0].kind is DriftKind.GONE
    assert _drift(other, {"m.py": F_PY}, "f")[0].kind is DriftKind.ABSENT


KERNEL = "// kernels\n__global__ void f(int a) {\n  assert(a % 2 == 0);\n  g(a);\n}\n"


@pytest.mark.parametrize(
    ("new", "kind", "after", "missing"),
    [
        ({"a.cu": KERNEL}, DriftKind.SAME, (2, 3), ()),
        ({"a.cu": f"// more\n{KERNEL}"}, DriftKind.MOVED, (3, 4), ()),
        ({"a.cu": KERNEL.replace("g(a)", "h(a)")}, DriftKind.SAME, (2, 3), ()),
        ({"a.cu": KERNEL.replace("int a", "long a")}, DriftKind.CHANGED, (2, 3), ()),
        ({"a.cu": KERNEL.replace("% 2", "% 4")}, DriftKind.CHANGED, (2, 2), ("a % 2 == 0",)),
        ({"b.cu": KERNEL}, DriftKind.GONE, None, ()),
    ],
)
def test_a_file_is_compared_by_the_lines_that_are_expected(
    new: dict[str, str], kind: DriftKind, after: tuple[int, int] | None, missing: tuple[str, ...]
) -> None:
    wanted = anchor(None, "void f(", "a % 2 == 0", path="a.cu")
    (drift,) = classify([wanted], TextTree({"a.cu": KERNEL}), TextTree(new))
    assert (drift.kind, drift.after, drift.missing) == (kind, after, missing)
    assert drift.harmless is (kind in UNCHANGED)
    assert drift.line().startswith(kind.value) and "None" not in drift.line()


def test_a_long_elif_chain_is_walked() -> None:
    chain = "".join(f"elif a == {index}:\n    x{index} = 1\n" for index in range(1500))
    old = {"m.py": f"if a:\n    pass\n{chain}"}
    (drift,) = _drift(old, {"m.py": f"# above\n{old['m.py']}"}, "x1499")
    assert drift.kind is DriftKind.MOVED
