"""What a card's text says is what a reader sees, whatever it is made of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from ringproof.render import escaping
from ringproof.render.escaping import SafeMarkdown, code, fence, inline, link, opening, visible
from ringproof.render.filling import table, text_template

NASTY = st.text(
    alphabet=st.one_of(
        st.sampled_from("`|*_~[]()<>!\\&#+-=:{}.\"'$%0123456789 ax\n\r\t\u200b\u202e\u00a0\ufe0f"),
        st.characters(codec="utf-8"),
    ),
    max_size=40,
)


def shown(tokens: list[Token]) -> str:
    """The text that inline tokens display; links and other markup count as a failure."""
    parts = []
    for token in tokens:
        assert token.type in ("text", "code_inline", "text_special"), token.type
        parts.append(token.content)
    return "".join(parts)


def cells(markdown: str) -> list[list[Token]]:
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(markdown)
    return [token.children or [] for token in tokens if token.type == "inline"]


def in_table(cell: str) -> list[Token]:
    found = cells(f"| a | b |\n|---|---|\n| {cell} | end |\n")
    assert len(found) == 4, "the cell is one cell of one row"
    assert shown(found[3]) == "end"
    return found[2]


@given(NASTY)
def test_text_in_a_cell_is_shown_as_it_is(text: str) -> None:
    without_code = visible(text).replace("`", "'")
    assert shown(in_table(inline(without_code))) == without_code


@given(NASTY)
def test_backticks_change_the_face_and_not_the_words(text: str) -> None:
    bare = str.maketrans("", "", "` ")
    assert shown(in_table(inline(text))).translate(bare) == visible(text).translate(bare)


@given(NASTY.map(lambda text: " ".join(text.split())).filter(bool), st.sampled_from(("", " ")))
def test_code_in_a_cell_is_shown_as_it_is(text: str, space: str) -> None:
    text = f"{text}{space}"
    span = in_table(code(text))
    found = [(token.type, token.content) for token in span]
    assert found == [("code_inline", visible(text) + space)]


@given(NASTY.filter(visible))
def test_text_opening_a_list_line_starts_nothing_else(text: str) -> None:
    without_code = visible(text).replace("`", "'")
    tokens = MarkdownIt("commonmark").parse(f"- {opening(without_code)}\n- end\n")
    kinds = [token.type for token in tokens if token.type.endswith("_open")]
    assert kinds.count("list_item_open") == 2
    assert set(kinds) == {"bullet_list_open", "list_item_open", "paragraph_open"}
    inlines = [token for token in tokens if token.type == "inline"]
    assert shown(inlines[0].children or []) == without_code


def test_an_oracle_that_objects_to_unescaped_text() -> None:
    for text in ("a | b", "*a*", "<b>", "[a](b)", "&lt;", "~~a~~"):
        with pytest.raises(AssertionError):
            assert shown(in_table(text)) == text
        assert shown(in_table(inline(text))) == text


@pytest.mark.parametrize(
    ("text", "markdown"),
    [
        ("get_groups() of 2 * CP ranks", "get_groups() of 2 * CP ranks"),
        ("cp_comm_type [2, 2] <= x", "cp_comm_type [2, 2] <= x"),
        ("passes `cp_group=None` on", "passes `cp_group=None` on"),
        ("`a|b` or c|d", "`a\\|b` or c\\|d"),
        ("one ` alone", "one \\` alone"),
        ("`<!-- x -->`", "\\`&lt;!-- x --&gt;\\`"),
        ("__post_init__", "\\_\\_post_init\\_\\_"),
        ("zero\u200bwidth \u202eback", "zero(U+200B)width (U+202E)back"),
        ("line\nbreak", "line break"),
    ],
)
def test_readable_text_stays_readable(text: str, markdown: str) -> None:
    assert inline(text) == markdown


@given(NASTY, NASTY)
def test_a_link_goes_where_it_says(text: str, path: str) -> None:
    found = in_table(link(text, f"https://github.com/{path}"))
    assert [token.type for token in found[:1]] == ["link_open"]
    assert found[-1].type == "link_close"
    assert str(found[0].attrGet("href")).startswith("https://github.com/")
    assert "".join(token.content for token in found[1:-1]) == visible(text)


@given(st.text(alphabet="`~ab \\|\"'#$\u200b", max_size=30))
def test_a_fence_holds_any_command(run: str) -> None:
    tokens = MarkdownIt("commonmark").parse(f"{fence(run)}\nend")
    assert [token.type for token in tokens][:2] == ["fence", "paragraph_open"]


def test_long_commands_are_continued_between_words() -> None:
    words = ["ringproof", "parity", "--note='two words'", *(f"--option{n}" for n in range(20))]
    lines = escaping.command_lines(" ".join(words))
    assert len(lines) > 1
    assert all(len(line) <= escaping.WIDTH for line in lines)
    assert [part for line in lines for part in line.removesuffix(" \\").split()] == " ".join(
        words
    ).split()
    assert all(line.endswith(" \\") for line in lines[:-1])
    left = f"echo 'unbalanced {'x ' * 100}"
    assert escaping.command_lines(left) == (left.rstrip(),)
    laid_out = "first \\\n  --second\nthird"
    assert escaping.command_lines(laid_out) == tuple(laid_out.split("\n"))


def test_what_nobody_finished_is_escaped() -> None:
    raw = ("a | *b* <!-- c -->", SafeMarkdown("`d`"))
    text = table(("x", "|"), [raw])
    assert text.splitlines()[0] == "| x | \\| |"
    assert text.splitlines()[2] == "| a \\| \\*b\\* &lt;!-- c --&gt; | `d` |"
    assert text_template("{{ a }} {{ b }} {{ 1 }}")(a=raw[0], b=raw[1]).endswith("--&gt; `d` 1")
