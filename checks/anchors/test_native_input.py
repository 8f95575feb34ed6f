"""Native files and symbols as bad as they come, and installations without the parser."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import TypeAdapter, ValidationError

from checks.anchors.native_source import TextTree, anchor, resolve
from ringproof.errors import InputError
from ringproof.harness.anchors import AnchorResolver, AnchorStatus
from ringproof.harness.cards.model import Symbol
from ringproof.harness.code.native.grammar import MAX_DECLARATIONS, MAX_DEPTH

NEIGHBOUR = "\nint f(int a) {\n  return a;\n}\n"
LONG = 60_000


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


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (b"// \xff\xfe\xe9\nint f(int a) { return \xff; }\n", 2),
        (b"int \xe9t\xe9;\r\nint f(int a) {\r\n  return a;\r\n}\r\n", 2),
        (b"\xef\xbb\xbf#define X 1\nint f;", 2),
        (b"\xef\xbb\xbfint f;", 1),
        (b'const char *g = "\x80\x81"; int f;', 1),
        (b"/* never closed \n int g; */ int f;", 2),
        ("int größe;\nint f;".encode(), 2),
    ],
)
def test_bytes_that_are_no_text_are_passed_over(source: bytes, line: int) -> None:
    found = resolve("f", source=source)
    assert found.holds, found.detail
    assert found.start == line


def test_an_open_comment_or_raw_string_takes_the_rest() -> None:
    for text in (
        "int g; /* open\n int f;",
        'auto g = R"x( )" ;\n int f;',
        "int g; // open \\\nint f;",
    ):
        assert resolve("f", source=text).status is AnchorStatus.MISSING_SYMBOL
        assert resolve("g", source=text).start == 1


@pytest.mark.parametrize("source", [b"", b"\n", b";", b"}", b"#", b"#define", b"template", b"::"])
def test_nearly_empty_files(source: bytes) -> None:
    assert resolve("f", source=source).status is AnchorStatus.MISSING_SYMBOL


@pytest.mark.parametrize("module", ["tree_sitter", "tree_sitter_cuda"])
def test_without_the_parser_one_line_says_what_to_install(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match="pip install tree-sitter tree-sitter-cuda") as caught:
        resolve("f", source="int f;")
    assert "\n" not in str(caught.value)
    tree = TextTree({"a.py": "f = 1\n"})
    assert AnchorResolver(tree).resolve(anchor("f", path="a.py")).holds


def test_python_anchors_do_not_load_the_parser() -> None:
    program = (
        "import sys\n"
        "from checks.anchors.native_source import TextTree, anchor\n"
        "from ringproof.harness.anchors import AnchorResolver\n"
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
