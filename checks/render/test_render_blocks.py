"""Markers: which count, and how wrong ones are refused, with file and line."""

from __future__ import annotations

import pytest

from checks.render.miniature_skill import CARD, block, changed, lock_of
from checks.render.test_render_documents import FILE, rendered
from checks.running import one_line
from ringproof.cards.card import Card
from ringproof.errors import InputError
from ringproof.render.blocks import find_blocks
from ringproof.render.render import render_document

BEGIN, END = "<!-- ringproof:begin claims -->", "<!-- ringproof:end -->"


@pytest.mark.parametrize(
    "text",
    [
        f"```html\n{BEGIN}\n```\n",
        f"~~~~\n{BEGIN}\n{END}\n~~~~\n",
        f"    {BEGIN}\n",
        f"Write `{BEGIN}` there.\n",
        f"---\n{BEGIN}\n---\ntext\n",
        "<!-- ringproof: ignore RP301 because it is a template -->\n",
        "<!-- an ordinary comment -->\n",
        "",
    ],
)
def test_what_is_no_marker_is_left_alone(text: str) -> None:
    assert find_blocks(text, "x.md") == ()
    assert rendered(text).content == text.encode()


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        (f"\n{BEGIN}\ntext\n", 2, "this block has no end"),
        (f"a\n\n{END}\n", 3, "ends a block that nothing began"),
        (f"{BEGIN}\n\n{BEGIN}\n{END}\n{END}\n", 3, "this block begins inside the block of line 1"),
        (f"- item\n\n  {BEGIN}\n  {END}\n", 3, "inside of a list, quote or text"),
        (f"> {BEGIN}\n> {END}\n", 1, "shares its line"),
        (f"text {BEGIN}\n\n{END}\n", 1, "shares its line"),
        (f"{BEGIN} text\n{END}\n", 1, "shares its line"),
        ("<!-- ringproof:begin -->\n", 1, "names no KIND"),
        ("<!-- ringproof:start claims -->\n", 1, "is not a marker"),
        (f"{BEGIN}\n<!-- ringproof:end claims -->\n", 2, "remove 'claims'"),
        (block("clams"), 1, "'clams' is not a kind of block; did you mean `claims`?"),
        (block("claims only"), 1, "'only' is not key=value"),
        (block("claims only=a;b"), 1, "is not key=value"),
        (block("claims only=fast only=fast"), 1, "is given twice"),
        (block("claims onyl=fast"), 1, "'onyl' is not a key of claims; did you mean `only`?"),
        (block("claims only=fats"), 1, "'fats' is not a known claim; did you mean `fast`?"),
        (
            block("claims except=nothing"),
            1,
            "'nothing' is not a known claim; choose from: fast",
        ),
        (block("claims only=fast,fast"), 1, "only names 'fast' twice"),
        (block("claims only=fast except=fast"), 1, "has both only and except"),
        (block("claims except=fast"), 1, "has no claim to show"),
        (block("claims style=loud"), 1, "'loud' is not a style of claims"),
        (block("claims style=list columns=id"), 1, "style=list has no columns"),
        (block("claims style=table columns=colour"), 1, "is not a known column of claims"),
        (block("anchors upstream=nowhere"), 1, "is not a known upstream of the card"),
        (block("anchors only=renamed upstream=core"), 1, "is not a known anchor of that upstream"),
        (block("version-matrix only=switsh"), 1, "did you mean `switch`?"),
        (block("upstreams style=table"), 1, "is not a key of upstreams"),
    ],
)
def test_wrong_markers_are_refused_where_they_stand(text: str, line: int, says: str) -> None:
    with one_line() as caught:
        rendered(text)
    assert str(caught.value).startswith(f"SKILL.md:{line}: ")
    assert says in str(caught.value)


def test_a_kind_that_the_card_has_nothing_of() -> None:
    with pytest.raises(InputError, match="has no marker to show"):
        rendered(block("markers"), changed((("markers",), [])))


def test_blocks_that_need_the_lock_say_so() -> None:
    card, text = Card.model_validate(dict(CARD)), block("version-matrix").encode()
    with pytest.raises(InputError, match=r"SKILL\.md:1: .* needs anchors\.lock"):
        render_document(FILE, text, card, None)
    assert render_document(FILE, block("claims").encode(), card, None).blocks


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        (("anchors", 0, "id"), "other", "lacks the anchor"),
        (("anchors", 0, "symbol"), "Config.other_switch", "anchor switch as it was before"),
        (("upstreams", "main", "commit"), "c" * 40, "upstream main at another commit"),
        (("upstreams", "te", "version"), "2.21.0", "upstream te at another release"),
        (
            ("upstreams", "dev"),
            {"repo": "NVIDIA/Megatron-LM", "ref": "dev", "commit": "d" * 40},
            "lacks the upstream dev",
        ),
    ],
)
def test_a_lock_older_than_the_card_is_refused(
    place: tuple[str | int, ...], value: object, says: str
) -> None:
    data = changed((place, value))
    if place[-1] == "id":
        data["version_matrix"] = [{"about": "x", "anchors": ["other"]}]
    card = Card.model_validate(data)
    for line in ("version-matrix", "anchors style=links", "anchors style=lines"):
        with pytest.raises(InputError, match=rf"anchors\.lock is older than the card: it .*{says}"):
            render_document(FILE, block(line).encode(), card, lock_of(CARD))
    assert render_document(FILE, block("anchors").encode(), card, lock_of(CARD)).blocks
