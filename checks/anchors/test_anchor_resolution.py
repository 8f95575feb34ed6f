"""Anchors against a synthetic upstream: what holds, and each way not to."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from checks.anchors.texts import TextTree, anchor
from checks.anchors.wheelhouse import SOURCES
from ringproof.anchors import AnchorResolver, AnchorStatus, Resolution, UpstreamError
from ringproof.anchors.symbols import Module
from ringproof.upstream.tree import WheelTree

MODULE = SOURCES["pkg/mod.py"]


def _resolve(
    symbol: str, *expects: str, source: str | bytes = MODULE, path: str = "pkg/mod.py"
) -> Resolution:
    tree = TextTree({"pkg/mod.py": source})
    return AnchorResolver(tree).resolve(anchor(symbol, *expects, path=path))


def _line(text: str) -> int:
    return next(n for n, line in enumerate(MODULE.splitlines(), 1) if text in line)


@pytest.mark.parametrize(
    ("symbol", "first", "last", "expects"),
    [
        ("Config", "class Config", "raise ValueError", ("size", "Class words")),
        ("Config.size", "size: int", 'two lines."""', ("int", "wrapped over two lines")),
        ("Config.comm_type", "comm_type =", "comm_type =", ("p2p",)),
        ("Config.check", "def check", "raise ValueError", ("ValueError", "does not divide")),
        ("Config.check", "def check", "raise ValueError", ("self.size", "total")),
        ("build", "def build", "return [level", ("group_desc", "make_group", "LEVEL_", "ranks")),
        ("build.level", "def level", "return make_group", ("sizes",)),
        ("LIMIT", "LIMIT: int", "LIMIT: int", ()),
        ("NAMES", "NAMES =", "NAMES =", ("hierarchical",)),
        ("--cp-comm-type", '"--cp-comm-type"', '"--cp-comm-type"', ("a2a+p2p", "default")),
        ("chosen#1", "def chosen", "return fast", ("fast.kernel",)),
    ],
)
def test_holds_with_lines(symbol: str, first: str, last: str, expects: tuple[str, ...]) -> None:
    found = _resolve(symbol, *expects)
    assert found.status is AnchorStatus.HOLDS, found.detail
    assert (found.start, found.end) == (_line(first), _line(last))


def test_the_second_definition() -> None:
    assert _resolve("chosen#2").start == len(MODULE.splitlines()) - 1
    assert _resolve("chosen#3").status is AnchorStatus.MISSING_SYMBOL


def test_definitions_are_numbered_in_the_order_of_the_file() -> None:
    source = "if a:\n    def f(): ...\nif b:\n    def f(): ...\nif c:\n    def f(): ...\n"
    assert [_resolve(f"f#{number}", source=source).start for number in (1, 2, 3)] == [2, 4, 6]


def test_an_ambiguous_symbol_is_refused_with_its_lines() -> None:
    found = _resolve("chosen")
    assert found.status is AnchorStatus.AMBIGUOUS_SYMBOL
    assert "chosen#1" in found.detail
    assert str(_line("def chosen")) in found.detail


@pytest.mark.parametrize(
    ("symbol", "expects", "missing"),
    [
        ("build", ("forbidden_word",), ("forbidden_word",)),
        ("build", ("make_group", "LEVEL_9"), ("LEVEL_9",)),
        ("Config.comm_type", ("a2a",), ("a2a",)),
        ("Config.check", ("other.size",), ("other.size",)),
        ("--other", ("a2a+p2p",), ("a2a+p2p",)),
        ("build.level", ("group_desc",), ("group_desc",)),
    ],
)
def test_an_expectation_outside_the_symbol_is_missing(
    symbol: str, expects: tuple[str, ...], missing: tuple[str, ...]
) -> None:
    found = _resolve(symbol, *expects)
    assert found.status is AnchorStatus.MISSING_EXPECTATION
    assert found.missing == missing
    assert found.start is not None


@pytest.mark.parametrize(
    "symbol",
    [
        *("Absent", "Config.absent", "level", "size", "build.index", "--absent", "--cp-comm"),
        "LIMIT.inner",
    ],
)
def test_symbols_that_are_not_there(symbol: str) -> None:
    assert _resolve(symbol).status is AnchorStatus.MISSING_SYMBOL


def test_a_missing_file_and_a_broken_one() -> None:
    assert _resolve("x", path="pkg/gone.py").status is AnchorStatus.MISSING_FILE
    for source in ("def f(:\n", b"\0", b"\xff\xfe", "(" * 5000):
        assert _resolve("f", source=source).status is AnchorStatus.UNREADABLE_FILE


def test_a_moved_symbol_holds_with_new_lines_and_the_same_fingerprint() -> None:
    before = _resolve("build", "make_group")
    after = _resolve("build", "make_group", source="# new\n" * 40 + MODULE)
    assert after.holds
    assert before.start is not None
    assert after.start == before.start + 40
    assert after.fingerprint == before.fingerprint


def _prints(source: str) -> tuple[str, str]:
    found = Module(source.encode()).find("f")
    return found.fingerprint(), found.documentation()


ORIGINAL = '''
def f(a, b=1):
    """Words about it."""
    if a > b:
        raise ValueError("too large")
    return {"k": [a, b], "n": None}
'''


@pytest.mark.parametrize(
    "edited",
    [
        ORIGINAL.replace("def f(a, b=1):", "def f(\n    a,\n    b = 1,\n):  # comment"),
        ORIGINAL.replace('"too large"', "'too large'"),
        ORIGINAL.replace('"too large"', '"too " "large"'),
        ORIGINAL.replace("about it", "\n    about   it"),
    ],
)
def test_formatting_and_comments_do_not_change_fingerprints(edited: str) -> None:
    assert edited != ORIGINAL
    assert _prints(edited) == _prints(ORIGINAL)


@pytest.mark.parametrize(
    "edited",
    [
        ORIGINAL.replace("b=1", "b=2"),
        ORIGINAL.replace("b=1", "b='1'"),
        ORIGINAL.replace("b=1", "b=True"),
        ORIGINAL.replace("too large", "too small"),
        ORIGINAL.replace("ValueError", "TypeError"),
        ORIGINAL.replace("a > b", "a >= b"),
        ORIGINAL.replace("(a, b=1)", "(b, a=1)"),
        ORIGINAL.replace("(a, b=1)", "(a, *, b=1)"),
        ORIGINAL.replace("None", "0"),
        ORIGINAL.replace('"n": None', '**{"n": None}'),
        ORIGINAL.replace("def f", "async def f"),
        ORIGINAL.replace("def f", "@decorated\ndef f"),
    ],
)
def test_every_change_of_code_changes_the_fingerprint(edited: str) -> None:
    assert edited != ORIGINAL
    assert _prints(edited)[0] != _prints(ORIGINAL)[0]


def test_docstrings_have_their_own_fingerprint() -> None:
    code, words = _prints(ORIGINAL.replace("about it", "about that"))
    assert code == _prints(ORIGINAL)[0]
    assert words != _prints(ORIGINAL)[1]


def test_the_fingerprint_is_the_same_on_every_python() -> None:
    """Golden value: a Python that dumps trees differently must not look like a change."""
    assert _prints(ORIGINAL)[0][:16] == "b36d223d1b3b11b0"


def test_a_deep_tree_is_fingerprinted() -> None:
    deep = "def f():\n    return " + "+".join(["1"] * 900)
    assert _prints(deep)[0] != _prints(deep + "+1")[0]


KERNEL = "// f is below\n#include <a>\nvoid f(int  a) {\n\tassert(a % 2 == 0);\n}\nf(1);\n"


def test_a_file_in_another_language_is_named_with_what_must_occur_in_it() -> None:
    def look_up(*expects: str, source: str | bytes = KERNEL, path: str = "a.cu") -> Resolution:
        tree = TextTree({"a.cu": source})
        return AnchorResolver(tree).resolve(anchor(None, *expects, path=path))

    found = look_up("assert(a % 2", "void f(int a)")
    assert (found.status, found.start, found.end, found.place) == (AnchorStatus.HOLDS, 3, 4, "a.cu")
    for other, same in (
        (KERNEL.replace("\tassert", "  assert").replace("f(1)", "f(2)"), True),
        (KERNEL.replace("int  a", "int a"), True),
        (KERNEL.replace("== 0)", "== 1)"), False),
    ):
        again = look_up("assert(a % 2", "void f(int a)", source=other)
        assert again.holds and (again.fingerprint == found.fingerprint) is same
    gone = look_up("assert(a % 2", "void f(int a)", source=KERNEL.replace("% 2", "% 4"))
    assert gone.status is AnchorStatus.MISSING_EXPECTATION
    assert (gone.missing, gone.detail) == (
        ("assert(a % 2",),
        "a.cu does not contain 'assert(a % 2'",
    )
    assert look_up("x", path="b.cu").status is AnchorStatus.MISSING_FILE
    assert look_up("int a) { assert").missing, "an expected text is on one line"
    for source in (b"", b"\0\xff"):
        assert look_up("x", source=source).status is AnchorStatus.MISSING_EXPECTATION


def test_a_symbol_in_another_language_is_refused_with_what_to_write() -> None:
    found = AnchorResolver(TextTree({"a.cu": KERNEL})).resolve(anchor("f", path="a.cu"))
    assert found.status is AnchorStatus.UNREADABLE_FILE
    assert "leave the symbol out, and write into `expects`" in found.detail


def test_a_zip_bomb_and_a_broken_zip_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("big.py", b"#" * 20_000_000)
    with pytest.raises(UpstreamError, match="too large for a source file"):
        WheelTree(path, "o", "s").read("big.py")
    path.write_bytes(b"PK no zip")
    with pytest.raises(UpstreamError, match="not a readable wheel"):
        WheelTree(path, "o", "s")
