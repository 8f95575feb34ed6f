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
