"""What stands inside a C++ or CUDA symbol: expectations, fingerprints, words, and changes."""

from __future__ import annotations

import pytest

from checks.anchors.native_source import TextTree, anchor, resolve
from ringproof.anchors import AnchorStatus
from ringproof.anchors.drift import DriftKind, classify
from ringproof.code.native.module import NativeModule

HOLDING = [
    ("partition_kernel", ("shifted", "blockIdx.x", "__launch_bounds__", "kBlock", "T")),
    ("rings::launch", ("plan.dtype", "plan->count", "plan of rank", "is empty", "RINGS_EXPORT")),
    ("Ring::send#2", ("to", "next_", "Ring::send", "Ring")),
    ("split", ("RINGS_WIDE", "wide", "}{")),
    ("RINGS_CHECK", ("fail", "expr")),
    ("plan_ring", ("outer::rings::launch", "Plan one ring.", "py::arg")),
    ("Ring", ("Inner", "depth", "Base", "no ranks")),
]
LACKING = [
    ("partition_kernel", "forbidden_word"),
    ("partition_kernel", "blockIdx->x"),
    ("partition_kernel", "blockIdx::x"),
    ("partition_kernel", "threadIdx.y"),
    ("partition_kernel", "shift"),
    ("partition_kernel", "2"),
    ("rings::launch", "plan.count.x"),
    ("rings::launch", "plan.stream"),
    ("rings::launch", "isempty"),
    ("Level::kHigh", "never reached"),
    ("Ring", "What a ring is"),
    ("Ring::send#1", "next_"),
    ("chosen#1", "long"),
    ("plain", "both"),
    ("RINGS_CHECK", "__VA_ARGS__"),
]


def _prints(source: str) -> tuple[str, str]:
    found = NativeModule(source.encode()).find("f")
    return found.fingerprint(), found.documentation()


@pytest.mark.parametrize(("symbol", "expects"), HOLDING)
def test_expectations_inside(symbol: str, expects: tuple[str, ...]) -> None:
    found = resolve(symbol, *expects)
    assert found.status is AnchorStatus.HOLDS, found.detail


@pytest.mark.parametrize(("symbol", "item"), LACKING)
def test_expectations_outside(symbol: str, item: str) -> None:
    found = resolve(symbol, item)
    assert found.status is AnchorStatus.MISSING_EXPECTATION
    assert found.missing == (item,)


ORIGINAL = r"""
/*! \brief Words about it. */
template <typename T, int kSize = 4>
__global__ void f(const T *input, int by = 1) {
  // a remark
#if ARCH >= 90
  wide(input);
#endif
  CHECK(by > 0, "the step is ", by);
  std::vector<std::vector<T>> rows{{1}, {2}};
  send(rows[0], 'x', "some words", 0x10, a->b.c);
  g<<<1, kSize>>>(by);
}
"""
SAME = [
    ("int by = 1) {", "int by=1)\n{"),
    ("const T *input", "const T* input"),
    ("// a remark", "/* another\n   remark */"),
    ("  // a remark\n", ""),
    ("std::vector<std::vector<T>>", "std::vector<std::vector<T> >"),
    ('"some words"', '"some "\n       "words"'),
    ("{{1}, {2}}", "{ { 1 },\n    { 2 } }"),
    ("#if ARCH >= 90", "#  if   ARCH  >=  90  // new ones"),
    ("wide(input);", "wide( \\\n input);"),
    ("\n", "\r\n"),
    ("{\n", "\n{\n\n"),
]
OTHER = [
    ("by = 1", "by = 2"),
    ("int by", "long by"),
    ("const T *input", "T *input"),
    ("(const T *input, int by = 1)", "(int by, const T *input)"),
    ("kSize = 4", "kSize = 8"),
    ("typename T, ", ""),
    ("__global__", "__device__"),
    ("void f", "static void f"),
    ("ARCH >= 90", "ARCH >= 100"),
    ("#if ARCH >= 90\n", "#if ARCH >= 90 ||\n"),
    ("wide(input);\n", ""),
    ("by > 0", "by >= 0"),
    ("the step is", "the pace is"),
    ("some words", "some other words"),
    ('"some words"', 'L"some words"'),
    ("'x'", "'y'"),
    ("'x'", '"x"'),
    ("0x10", "16"),
    ("a->b.c", "a.b.c"),
    ("<<<1,", "<<<2,"),
    ("wide(input);\n#endif", "#endif\nwide(input);"),
]


@pytest.mark.parametrize(("old", "new"), SAME)
def test_formatting_and_comments_do_not_change_fingerprints(old: str, new: str) -> None:
    edited = ORIGINAL.replace(old, new)
    assert edited != ORIGINAL
    assert _prints(edited) == _prints(ORIGINAL)


@pytest.mark.parametrize(("old", "new"), OTHER)
def test_every_change_of_code_changes_the_fingerprint(old: str, new: str) -> None:
    edited = ORIGINAL.replace(old, new)
    assert edited != ORIGINAL
    assert _prints(edited)[0] != _prints(ORIGINAL)[0]
    assert _prints(edited)[1] == _prints(ORIGINAL)[1]


def test_the_fingerprint_is_the_same_on_every_machine() -> None:
    """Golden value: another version of the grammar or of Python must not look like a change."""
    assert _prints(ORIGINAL)[0][:16] == "e4e3f7135ab36b9a"


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("/*! \\brief Words about it. */\nint f;", False),
        ("/*!\n * \\brief Words\n *        about it.\n */\nint f;", False),
        ("/// \\brief Words\n/// about it.\nint f;", False),
        ("int f;  //!< \\brief Words about it.\n", False),
        ("int f; /*!< \\brief Words about it. */", False),
        ("/*! \\brief Words about that. */\nint f;", True),
        ("/*! \\brief Words about it. */\n\nint f;", True),
        ("int e;  //!< \\brief Words about it.\nint f;", True),
        ("int f;\nint g;  //!< \\brief Words about it.", True),
        ("int e;\n/*!< \\brief Words about it. */\nint f;", True),
        ("int e;\n//!< \\brief Words about it.\nint f;", True),
    ],
)
def test_the_words_above_and_behind_have_their_own_fingerprint(text: str, changed: bool) -> None:
    assert (_prints(text)[1] != _prints(ORIGINAL)[1]) is changed


CHANGES = [
    ("int f(int a);", "int f(int a, int b = 2);", ("signature: added b", "defaults: b none -> 2")),
    ("int f(int a, int b);", "int f(int b, int a);", ("signature: reordered",)),
    ("int f(int a);", "int f(long a);", ("signature: a: int -> long",)),
    ("int f(int a = 1);", "int f(int a = 2);", ("defaults: a 1 -> 2",)),
    ("int f();", "long f();", ("signature: return: int -> long",)),
    ("int f();", "int f() noexcept;", ("signature: added after",)),
    ("int f();", "int f() { return 1; }", ("kind: prototype -> function",)),
    (
        "template <int n> void f();",
        "template <long n> void f();",
        ("signature: template: template<int n> -> template<long n>",),
    ),
    (
        '__global__ void f() { RINGS_CHECK(a, "no ", b, " ranks"); }',
        '__global__ void f() { RINGS_CHECK(a, "no nodes"); }',
        ("raises: +RINGS_CHECK 'no nodes', -RINGS_CHECK 'no ranks'",),
    ),
    ("void f() { throw A(1); }", "void f() { throw n::B(1); }", ("raises: +throw n::B, -throw A",)),
    ("void f() { a(1); }", "void f() { a(2); }", ("literals: +2, -1",)),
    ("void f() { a(b); }", "void f() { b(a); }", ("body",)),
    ("struct f : A {};", "struct f : B {};", ("bases: +B, -A",)),
    ("struct f { int a; };", "struct f { int a; int b = 1; };", ("signature: added b",)),
    ("struct f { int a = 1; };", "struct f { int a = 2; };", ("defaults: a 1 -> 2",)),
    ("struct f { int a() { return 1; } };", "struct f { int b() { return 1; } };", ("added b()",)),
    ("enum f { A, B };", "enum f { A, C, B };", ("signature: added C",)),
    ("enum f { A = 1 };", "enum f { A = 2 };", ("defaults: A 1 -> 2",)),
    ("enum E { f = 1, };", "enum E { f = 2, };", ("defaults: f 1 -> 2",)),
    ("constexpr int f = 1;", "constexpr int f = 2;", ("defaults: f 1 -> 2",)),
    ("constexpr int f{1};", "constexpr int f{2};", ("defaults: f {1} -> {2}",)),
    ("struct A { int f; };", "struct A { long f; };", ("signature: f: int -> long",)),
    ("#define f(a) (a + 1)", "#define f(a) (a + 2)", ("defaults: f ",)),
    ("using f = int;", "using f = long;", ("defaults: f ",)),
    ("RINGS_API int f;", "RINGS_API bool f;", ("signature: f: int -> bool",)),
    (
        "made_up words int f(int a = 1) so_called {}",
        "made_up words int f(long a = 2) so_called {}",
        ("signature: a: int -> long", "defaults: a 1 -> 2"),
    ),
    ("RINGS_API(1) int f();", "RINGS_API(1) long f();", ("signature: return: int -> long",)),
    ("int f;", "struct f {};", ("kind: variable -> type",)),
]


@pytest.mark.parametrize(("old", "new", "says"), CHANGES)
def test_changes_are_summarised(old: str, new: str, says: tuple[str, ...]) -> None:
    trees = (TextTree({"a.cu": f"{text}\n"}) for text in (old, new))
    (fate,) = classify([anchor("f")], *trees)
    assert fate.kind is DriftKind.CHANGED
    assert all(any(item in line for line in fate.summary) for item in says), fate.summary
    if says[0].startswith(("kind", "body", "raises")):
        assert fate.summary == says
