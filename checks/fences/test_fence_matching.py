"""A quotation is found where it stands, and nowhere else."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checks.fences.trees import CODE, outcome, place
from ringproof.anchors.quotes import place_name, place_name_at
from ringproof.anchors.sources import read_source

SIZE = "if config.size < 1:\n    raise ValueError('size must be positive')"


@pytest.mark.parametrize(
    "quote",
    [
        "    if config.size < 1:\n        raise ValueError('size must be positive')",
        SIZE,
        "\tif config.size < 1:  \n\n\t\traise   ValueError('size must be positive')\t\n\n",
        "if config.size < 1:\n    raise ValueError(...)",
        "if config.size ...\n    raise ValueError(…)",
    ],
)
def test_indentation_blanks_and_dots_do_not_count(quote: str) -> None:
    assert outcome(place(quote, 9, 10)) == ("exact", None, None)
    assert outcome(place(quote, 3, 4)) == ("moved", 9, 10)


@pytest.mark.parametrize(("start", "end"), [(9, 11), (8, 10), (10, 10), (9, 9), (10, 9), (0, 10)])
def test_one_line_off_is_not_exact(start: int, end: int) -> None:
    assert outcome(place(SIZE, start, end)) == ("moved", 9, 10)


def test_blank_lines_at_the_ends_of_a_range_do_not_count() -> None:
    assert place("class Config:\nsize: int = 1\nname: str = 'ring'", 2, 6).status == "exact"


@pytest.mark.parametrize("gap", ["...", "# ...", "# ... the checks ...", "…", "[...]", "// ..."])
def test_a_gap_is_any_lines(gap: str) -> None:
    quote = f"def check(config, *,\n{gap}\n    return config"
    assert place(quote, 7, 13).status == "exact"
    assert outcome(place(quote, 107, 113)) == ("moved", 7, 13)
    assert place(f"{SIZE}\n{gap}", 9, 13).status == "exact"
    assert outcome(place(f"{SIZE}\n{gap}", 2, 6)) == ("moved", 9, 13)
    assert place(f"{gap}\n{SIZE}", 7, 10).status == "exact"


STUBS = "class A:\n    def f(self): ...\n    ...\n    x = 1\n"
GOING = "\n".join(["if a:", "    go()"] * 3)
MANY = "\n".join(f"something_else_{letter}(call)" for letter in "abcdefgh")
MARKED = "Set it:\n\n```python\nx = Config(size=2)\n```\nThen run.\n"


@pytest.mark.parametrize(
    ("quote", "start", "end", "code", "expected"),
    [
        ("return config\n...\ndef check(config, *,", 7, 13, CODE, "changed"),  # another order
        ("def check(...):\n    if config.size < 1:", 7, 9, CODE, "exact"),  # dots for two lines
        ("def check(...) -> None:\n    if config.size < 1:", 7, 9, CODE, "changed"),
        ("x = ab...ba", 1, 1, "x = abba\n", "exact"),
        ("x = ab...ba", 1, 1, "x = aba\n", "missing"),  # what is around dots does not overlap
        ("class A:\n    def f(self): ...\n    ...", 2, 4, STUBS, ("moved", 1, 3)),  # dots of code
        ("if a:\n    go()", 3, 4, GOING, "exact"),  # of several places the one that is named
        ("if a:\n    go()", 6, 7, GOING, ("moved", 5, 6)),  # or the nearest
        ("x = 11", 2_500, 2_500, "x = 11\n" * 5_000, "exact"),
        (SIZE.replace("size < 1", "size < 2"), 9, 10, CODE, ("changed", 9, 10)),
        (f"{SIZE}\nif strict and config.nickname:\n    give_up()", 1, 4, CODE, ("changed", 8, 11)),
        ("wholly_other(thing)\nand_another(one)", 9, 10, CODE, ("missing", None, None)),
        (f"{SIZE}\n{MANY}", 1, 10, CODE, "missing"),
        ("if config.size < 2:", 90, 91, CODE, "missing"),
        ("anything", 1, 1, "", "missing"),
        ("", 2, 2, "a = 1\nb = 2\n", "exact"),
        ("", 3, 3, "a = 1\nb = 2\n", "missing"),  # the newline at the end begins no line
        ("x = 11\n...\n" * 400 + "y = 22", 1, 2_000_000_000, "x = 11\n" * 20_000, "missing"),
    ],
)
def test_where_a_quote_is_found(
    quote: str,
    start: int,
    end: int,
    code: str,
    expected: str | tuple[str, int | None, int | None],
) -> None:
    found = place(quote, start, end, code)
    assert expected in (found.status, outcome(found)), found


@pytest.mark.parametrize(("path", "status"), [("a.md", "exact"), ("a.py", "changed")])
def test_a_document_is_quoted_without_its_fence_marks(path: str, status: str) -> None:
    assert place("Set it:\nx = Config(size=2)", 1, 4, MARKED, path).status == status


def test_a_fence_that_quotes_nothing_says_so() -> None:
    for quote in ("", "\n\n", "...", "# ..."):
        found = place(quote, 9, 10)
        assert (found.status, found.quoted) == ("exact", False)
        assert place(quote, 900, 910).status == "missing"
    assert "past the end" in place("if config.size < 2:", 90, 91).why


_LINES = st.lists(
    st.sampled_from(["    return x", "", ")", "    )", "if a:  # why", "x = ...", "pass"]),
    min_size=0,
    max_size=12,
)


@settings(max_examples=150)
@given(_LINES, _LINES, _LINES, st.integers(1, 30), st.data())
def test_lines_added_above_move_a_quote_by_as_many(
    above: list[str], inside: list[str], below: list[str], added: int, data: st.DataObject
) -> None:
    """A file, a fence cut from it, lines inserted above: moved, to the right new lines."""
    quote = ["def begin(a):", *inside, "last = begin(1)"]
    start, end = len(above) + 1, len(above) + len(quote)
    file = [*above, *quote, *below]
    shifted = "\n".join([*(f"new_{number} = {number}" for number in range(added)), *file])
    for text in (quote, data.draw(_abridged(quote))):
        text = [data.draw(st.sampled_from(["", "  ", "\t"])) + line.rstrip() for line in text]
        assert place("\n".join(text), start, end, "\n".join(file)).status == "exact"
        found = outcome(place("\n".join(text), start, end, shifted))
        assert found == ("moved", start + added, end + added)
        assert place("\n".join(text), start + added, end + added, shifted).status == "exact"


@st.composite
def _abridged(draw: st.DrawFn, quote: list[str]) -> list[str]:
    """The quote with some inner lines replaced by one gap."""
    first = draw(st.integers(1, len(quote) - 1))
    behind = draw(st.integers(first, len(quote) - 1))
    return [*quote[:first], "# ...", *quote[behind:]]


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("check", "exact"),
        ("check()", "exact"),
        ("Config.size", "exact"),
        ("Config.weight", "changed"),
        ("posi", "changed"),
        ("--strict", "exact"),
        ("--stricter", "missing"),
        ("Ring", "missing"),
    ],
)
def test_a_listed_name_is_looked_for_as_a_word(name: str, status: str) -> None:
    assert place_name(name, read_source("a.py", CODE.encode())).status == status


@pytest.mark.parametrize(
    ("name", "start", "end", "expected"),
    [
        ("check", 7, 7, ("exact", None, None)),
        ("check()", 10, 12, ("exact", None, None)),  # inside the function
        ("check", 3, 3, ("moved", 7, 7)),
        ("check", 900, 902, ("moved", 7, 9)),
        ("os", 3, 3, ("moved", 15, 15)),  # the import does not count
        ("config", 3, 3, ("changed", None, None)),  # in several places
        ("config", 99, 99, ("missing", None, None)),
        ("Ring", 3, 3, ("missing", None, None)),
    ],
)
def test_a_name_beside_a_line_is_looked_for_there(
    name: str, start: int, end: int, expected: tuple[str, int | None, int | None]
) -> None:
    assert outcome(place_name_at(name, read_source("a.py", CODE.encode()), start, end)) == expected


def test_code_that_this_python_cannot_parse_still_has_lines() -> None:
    source = read_source("a.py", b"def f(:\n  x\n\ny = f\n")
    assert place_name_at("y", source, 1, 1).new_start == 4
    deep = read_source("a.py", b"x = " + b"(" * 50_000)
    assert place_name_at("x", deep, 1, 1).status == "exact"
