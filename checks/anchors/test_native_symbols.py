"""C++ and CUDA anchors: every kind of symbol and its lines, and files as bad as they come."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import TypeAdapter, ValidationError

from checks.anchors.native_source import KERNELS, TextTree, anchor, resolve
from checks.running import one_line
from ringproof.anchors import AnchorResolver, AnchorStatus
from ringproof.cards.model import Symbol
from ringproof.code.native.grammar import MAX_DECLARATIONS, MAX_DEPTH

LINES = KERNELS.splitlines()
MISSING, AMBIGUOUS = AnchorStatus.MISSING_SYMBOL, AnchorStatus.AMBIGUOUS_SYMBOL


def _line(text: str) -> int:
    return next(number for number, line in enumerate(LINES, 1) if text in line)


PLACES = [
    ("RINGS_LIMIT", "#define RINGS_LIMIT", "#define RINGS_LIMIT"),
    ("RINGS_CHECK", "#define RINGS_CHECK", "} while (false)"),
    ("kWidth", "constexpr int kWidth", "constexpr int kWidth"),
    ("table", "const float table", "const float table"),
    ("Index", "using Index", "using Index"),
    ("callback", "typedef void (*callback)", "typedef void (*callback)"),
    ("Mode", "enum Mode", "enum Mode"),
    ("kSafe", "enum Mode", "enum Mode"),
    ("Mode::kBoth", "enum Mode", "enum Mode"),
    ("Level", "enum class Level", "};"),
    ("Level::kHigh", "kHigh = 4", "kHigh = 4"),
    ("Ring", "struct RINGS_API Ring", "int (*hook)"),
    ("outer::rings::Ring", "struct RINGS_API Ring", "int (*hook)"),
    ("Ring::Ring", "Ring(int size)", "Ring(int size)"),
    ("Ring::~Ring", "~Ring()", "~Ring()"),
    ("Ring::send#1", "int send(int to, int times)", "int send(int to, int times)"),
    ("Ring::send#2", "int Ring::send", "return to + next_"),
    ("Ring::operator==", "operator==", "operator=="),
    ("Ring::operator bool", "operator bool", "operator bool"),
    ("Ring::Inner", "struct Inner", "int depth"),
    ("Inner::depth", "int depth", "int depth"),
    ("Ring::made", "int Ring::made", "int Ring::made"),
    ("Ring::size_", "unsigned size_", "unsigned size_"),
    ("next_", "unsigned size_", "unsigned size_"),
    ("Ring::hook", "int (*hook)", "int (*hook)"),
    ("Bits::parts", "char parts[4]", "char parts[4]"),
    ("Edge", "typedef struct {", "} Edge"),
    ("Edge::from", "int from", "int from"),
    ("shifted", "T shifted(", "return value + by"),
    ("partition_kernel", "__global__ void __launch_bounds__", "// forbidden_word"),
    ("rings::launch", "RINGS_EXPORT void launch", '"empty"'),
    ("chosen#1", "int chosen(int a)", "return a;"),
    ("chosen#2", "int chosen(long a)", "return 2;"),
    ("split", "void split(int a", 'done("}{")'),
    ("hidden", "int hidden()", "int hidden()"),
    ("rings::hidden", "int hidden()", "int hidden()"),
    ("plain", "void plain", "void plain"),
    ("both", "int both(int a)", "int both(int a)"),
    ("shared_count", "extern int shared_count", "extern int shared_count"),
    ("Opaque", "struct Opaque;", "struct Opaque;"),
    ("PYBIND11_MODULE", "PYBIND11_MODULE(", '.def("send_twice"'),
    ("plan_ring", 'm.def("plan_ring"', 'py::arg("stream")'),
    ("PYBIND11_MODULE::send_twice", '.def("send_twice"', '.def("send_twice"'),
]
CLOSING = ("Level", "Ring", "Ring::send#2", "Ring::Inner", "shifted", "rings::launch", "chosen#1")


@pytest.mark.parametrize(("symbol", "first", "last"), PLACES)
def test_found_with_lines(symbol: str, first: str, last: str) -> None:
    found = resolve(symbol)
    assert found.status is AnchorStatus.HOLDS, found.detail
    assert found.start == _line(first)
    assert found.end is not None
    tail = LINES[_line(last) : found.end]
    if symbol == "Level":
        assert LINES[found.end - 1] == "};"
    else:
        assert all(line.strip() in ("}", "};", "});") for line in tail), tail
    if symbol in CLOSING:
        assert LINES[found.end - 1].strip() in ("}", "};")


@pytest.mark.parametrize(
    ("symbol", "status", "says"),
    [
        ("absent", MISSING, "no `absent`"),
        ("Ring::absent", MISSING, "no `Ring::absent`"),
        ("Bits::send", MISSING, "no `Bits::send`"),
        ("ings::launch", MISSING, "no `ings::launch`"),
        ("place", MISSING, "no `place`"),
        ("shared", MISSING, "no `shared`"),
        ("forbidden_word", MISSING, "no `forbidden_word`"),
        ("RINGS_DECLARE", MISSING, "no `RINGS_DECLARE`"),
        ("--option", MISSING, "no `--option`"),
        ("chosen#3", MISSING, "is defined on lines"),
        ("chosen", AMBIGUOUS, "say `chosen#1` or later"),
        ("Ring::send", AMBIGUOUS, "say `Ring::send#1` or later"),
    ],
)
def test_not_found_and_why(symbol: str, status: AnchorStatus, says: str) -> None:
    found = resolve(symbol)
    assert found.status is status
    assert says in found.detail and "\n" not in found.detail


def test_a_name_in_two_scopes_must_be_qualified() -> None:
    source = "struct A { int f() { return 1; } };\nstruct B { int f() { return 2; } };\n"
    found = resolve("f", source=source)
    assert found.status is AMBIGUOUS
    assert "say `A::f` or `B::f`" in found.detail
    assert resolve("B::f", source=source).start == 2


TWO_CLASSES = "struct A { int f() { return 1; } };\nstruct B { int f(); };\n"
OVERLOADS = "int f(int);\nint f(long);\n"
CHOSEN_SCOPE = "namespace a { void f() {} }\nvoid f() {}\n"
OUTSIDE_COMMENTS = """// int f() {}
/* int f() {} */
const char *g = "int f() {}";
auto h = R"(int f() {})";
#error int f() {} don't
int i() { return 1; }
"""
NEVER_READ = "#if 0\nint f() { return 1; }\n#else\nint g() { return 1; }\n#endif\n"
OPEN_COMMENT = "int g; /* open\n int f;"
OPEN_STRING = 'auto g = R"x( )" ;\n int f;'
CONTINUED = "int g; // open \\\nint f;"
FOUND_IN = [
    # A definition wins over prototypes.
    ("f", "int f(int);\nint f(int a) { return a; }\n", 2),
    ("f", "int f(int a) { return a; }\nint f(int);\n", 1),
    ("f", "namespace n { struct A { int f(); }; }\nint n::A::f() { return 1; }\n", 2),
    ("f", "namespace n { struct A { int f(); };\nint A::f() { return 1; } }\n", 2),
    ("f", "namespace n { struct A { int f(); }; }\nusing namespace n;\nint A::f() { b; }\n", 3),
    ("f", "struct f;\nstruct f { int a; };\n", 2),
    ("f", "extern int f;\nint f = 1;\n", 2),
    ("f", "int f(int);\n", 1),
    ("f", "template <typename T> T f(T);\ntemplate <typename T>\nT f(T a) { return a; }\n", 3),
    ("f", "template <class T>\nT f(T a) { return a; }\ntemplate int f<int>(int);\n", 2),
    # A prototype of another class is not a prototype of this one, and two are overloads.
    ("f", TWO_CLASSES, AMBIGUOUS),
    ("f", OVERLOADS, AMBIGUOUS),
    ("f#2", OVERLOADS, 2),
    # The whole name wins over a longer one.
    ("f", CHOSEN_SCOPE, 2),
    ("a::f", CHOSEN_SCOPE, 1),
    # Names in text, and what the preprocessor never reads, are not found.
    ("f", OUTSIDE_COMMENTS, MISSING),
    ("i", OUTSIDE_COMMENTS, 6),
    ("f", NEVER_READ, MISSING),
    ("g", NEVER_READ, 4),
    # An open comment or raw string takes the rest.
    *(("f", source, MISSING) for source in (OPEN_COMMENT, OPEN_STRING, CONTINUED)),
    *(("g", source, 1) for source in (OPEN_COMMENT, OPEN_STRING, CONTINUED)),
    # Nearly empty files.
    *(("f", source, MISSING) for source in ("", "\n", ";", "}", "#", "#define", "template", "::")),
    # Bytes that are not text are passed over.
    ("f", b"// \xff\xfe\xe9\nint f(int a) { return \xff; }\n", 2),
    ("f", b"int \xe9t\xe9;\r\nint f(int a) {\r\n  return a;\r\n}\r\n", 2),
    ("f", b"\xef\xbb\xbf#define X 1\nint f;", 2),
    ("f", b"\xef\xbb\xbfint f;", 1),
    ("f", b'const char *g = "\x80\x81"; int f;', 1),
    ("f", b"/* never closed \n int g; */ int f;", 2),
    ("f", "int größe;\nint f;", 2),
]


@pytest.mark.parametrize(("symbol", "source", "expected"), FOUND_IN)
def test_the_line_of_a_symbol_or_why_it_has_none(
    symbol: str, source: str | bytes, expected: int | AnchorStatus
) -> None:
    found = resolve(symbol, source=source)
    assert (found.start if found.holds else found.status) == expected, found.detail


BROKEN = [
    "UNKNOWN(x) WORDS void broken(int a) OTHER(1) { a = }; ]\n",
    "void broken(int a { if (a) { return; }\n}\n",
    "void broken(int a) {\n  if (a) {\n}\n",
    "MACRO_WITHOUT_SEMICOLON(broken, { return 1; })\n",
    "MACRO_WITHOUT_SEMICOLON(broken)\n",
    "struct broken { int a; }\n",
    "int broken = = ;\n",
    "}}} ) ] broken\n;\n",
    'const char *broken = "no end\n;\n',
    "#if A\nvoid broken(int a) {\n#elif B\nvoid broken(A a) {\n#else\nint broken() {\n#endif\n}\n",
    "#if A\nnamespace broken {\n#endif\n#if A\n}\n#endif\n",
    "#else\n#endif\n#endif\n#elif\n",
    "@ $ ` broken \\ ;\n",
    "X_API(1) Y_ATTR X_STRUCT(broken) { int a; };\n",
]


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("indent", ["", "namespace n {\n"])
def test_an_error_does_not_hide_its_neighbours(broken: str, indent: str) -> None:
    before = "int before(int a) {\n  return a;\n}\n"
    after = "\ntemplate <int n>\n__global__ void after(int b) {\n  b = n;\n}\n"
    source = indent + before + broken + after + ("}\n" if indent else "")
    lines = source.splitlines()
    for name, head in (("before", "int before(int a) {"), ("after", "__global__ void after")):
        found = resolve(name, source=source)
        assert found.holds, found.detail
        assert found.start is not None and lines[found.start - 1].startswith(head)
        assert found.end == found.start + 2


@pytest.mark.parametrize(
    "head",
    [
        "RINGS_DEVICE n::Array<n::half, 8> f(int a)",
        "static RINGS_DEVICE void f(int a)",
        "std::tuple<std::vector<std::vector<int>>, int>\nf(int a)",
        "void f(int a) noexcept",
        'extern "C" void f(int a)',
    ],
)
def test_functions_of_a_file_that_does_not_parse(head: str) -> None:
    body = " {\n  RINGS_SWITCH(a, { g(a); };);\n}"
    source = f"struct RINGS_API A {{ int b; }};\n{head}{body};\nint after;\n"
    found = resolve("f", source=source)
    assert (found.start, found.end) == (2, source.count("\n") - 1)
    assert found.fingerprint == resolve("f", source=f"{head}{body}").fingerprint
    assert resolve("A::b", source=source).holds and resolve("after", source=source).holds


def test_braces_before_a_body_are_no_body() -> None:
    source = "template <class A = B{}, class C = D{}>\nstruct S {\n  int f;\n};\n"
    source += "S::S() : a{1}, b(2), c<int>{3} {\n  g();\n}\nint h{1}, i = {2};\n"
    assert resolve("S::f", source=source).start == 3
    found = resolve("S::S", "g", source=source)
    assert found.holds and (found.start, found.end) == (5, 7)
    assert resolve("i", source=source).start == 8


def test_branches_that_open_the_same_brace_count_once() -> None:
    source = "namespace n {\n  #if A\n  void f(int a) {\n  #else\n  void f(long a) {\n  #endif\n"
    source += "    a = 1;\n  }\n  void g() {\n  }\n}\n"
    found = resolve("n::f", "int", "long", source=source)
    assert (found.start, found.end, found.missing) == (3, 8, ())
    assert (resolve("n::g", source=source).start, resolve("f#2", source=source).start) == (9, None)


NEIGHBOUR = "\nint f(int a) {\n  return a;\n}\n"
LONG = 60_000


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "void g() {" + "{" * LONG + "}" * LONG + "}",
        "int g = " + "(" * LONG + ")" * LONG + ";",
        "int g[] = {" + "1, " * LONG + "};",
        "int g = " + "a.b->c::" * LONG + "d;",
        "using g = " + "A<" * LONG + ">" * LONG + ";",
        "template <" * LONG + ";",
        "namespace g {" * (MAX_DEPTH - 1) + "}" * (MAX_DEPTH - 1),
        "#if A\n" * LONG + "#endif\n" * LONG,
        "/" * LONG,
        '"' * LONG,
        '"a" ' * LONG + ";",
        "GROUP(a)\n" * LONG,
        "x{1}, " * LONG + ";",
        "CHECK(" * LONG + ")" * LONG + ";",
        'PYBIND11_MODULE(g, m) { m.def("h", ' + "(" * LONG + ")" * LONG + "); }",
        "int g;\\\n" * LONG,
    ],
)
def test_large_and_deep_text_costs_little_and_hides_nothing(text: str) -> None:
    found = resolve("f", source=text + NEIGHBOUR)  # quadratic work would run into the time limit
    assert found.holds, found.detail


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("namespace a {" * (MAX_DEPTH + 2) + "}" * (MAX_DEPTH + 2), "nested"),
        ("a;" * (MAX_DECLARATIONS + 1), "more than 100,000 declarations"),
        ("#define A\n" * (MAX_DECLARATIONS + 1), "more than 100,000 declarations"),
        (b"int f;\0", "NUL"),
        ("int f;".encode("utf-16"), "NUL"),
    ],
)
def test_what_no_person_wrote_is_unreadable(source: str | bytes, says: str) -> None:
    found = resolve("f", source=source)
    assert found.status is AnchorStatus.UNREADABLE_FILE
    assert says in found.detail and "\n" not in found.detail


@pytest.mark.parametrize("module", ["tree_sitter", "tree_sitter_cuda"])
def test_without_the_parser_one_line_says_what_to_install(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with one_line("pip install tree-sitter tree-sitter-cuda"):
        resolve("f", source="int f;")
    tree = TextTree({"a.py": "f = 1\n"})
    assert AnchorResolver(tree).resolve(anchor("f", path="a.py")).holds


def test_python_anchors_do_not_load_the_parser() -> None:
    program = (
        "import sys\n"
        "from checks.anchors.native_source import TextTree, anchor\n"
        "from ringproof.anchors import AnchorResolver\n"
        "tree = TextTree({'a.py': 'f = 1', 'a.cu': 'int f;'})\n"
        "assert AnchorResolver(tree).resolve(anchor('f', path='a.py')).holds\n"
        "assert 'tree_sitter' not in sys.modules\n"
        "assert AnchorResolver(tree).resolve(anchor('f', path='a.cu')).holds\n"
        "assert 'tree_sitter' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize(
    "text",
    [
        *("kernel", "kernel#2", "Class::method", "a::b::c#10", "Class::~Class"),
        *("Class::operator()", "A::operator[]", "operator==", "A::operator->", "operator<<#2"),
        *("A::operator bool", "operator new[]", "A::operator unsigned int", "größe::f"),
    ],
)
def test_native_symbols_are_accepted_in_cards(text: str) -> None:
    assert TypeAdapter(Symbol).validate_python(text) == text


@pytest.mark.parametrize(
    "text",
    [
        *("a:b", "::a", "a::", "a::::b", "a#1::b", "a#0", "a<int>::b", "a::b()", "a->b", "a b"),
        *("a::b.c", "~a::b", "a::2b", "operator ", "a::operator(", "a\n", "a::b\0"),
    ],
)
def test_other_spellings_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValidationError, match="is not a symbol"):
        TypeAdapter(Symbol).validate_python(text)
