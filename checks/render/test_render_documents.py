"""Documents: what is around blocks stays as it is, and no card breaks out of its block."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from checks.render.miniature_skill import ALL_BLOCKS, CARD, block, changed, lock_of, write_skill
from ringproof.cards import find_cards
from ringproof.cards.card import Card
from ringproof.errors import InputError
from ringproof.render import filling
from ringproof.render.blocks import find_blocks
from ringproof.render.escaping import SafeMarkdown
from ringproof.render.kinds import KINDS
from ringproof.render.render import (
    RenderedFile,
    difference,
    render_document,
    render_skill,
)

FILE = Path("SKILL.md")
SKILLS = Path(__file__).parents[2] / "skills"
CARDS = dict(find_cards(SKILLS))


def rendered(text: str | bytes, data: dict[str, Any] | None = None) -> RenderedFile:
    data = dict(CARD) if data is None else data
    raw = text.encode() if isinstance(text, str) else text
    return render_document(FILE, raw, Card.model_validate(data), lock_of(data))


def words(markdown: str) -> str:
    """All text that a reader sees, code included."""
    parts = []
    for token in MarkdownIt("commonmark").enable("table").parse(markdown):
        parts += [token.content] if token.type == "fence" else []
        parts += [child.content for child in token.children or ()]
    return " ".join(parts)


def test_every_kind_is_rendered_and_settles() -> None:
    assert {line.split()[0] for line in ALL_BLOCKS} == set(KINDS) - {"kinds"}
    once = rendered("# T\n\n" + "\n".join(block(line) for line in ALL_BLOCKS))
    assert once.stale
    assert all(item.stale and len(item.after) > 2 for item in once.blocks)
    again = rendered(once.content)
    assert not again.stale
    assert again.content == once.content
    assert [difference(item) for item in again.blocks] == [()] * len(ALL_BLOCKS)


def test_what_the_blocks_say() -> None:
    text = rendered("\n".join(block(line) for line in ALL_BLOCKS)).content.decode()
    for line in (
        "| `megatron/config.py` | `Config.hybrid_switch` | the switch |",
        "- `prod(sizes) == CP`",
        "- Heads divide. *(unproven)*",
        "| `silent` | wrong loss | No group was made. | Set the sizes. | 0.16.1; main |",
        "| `line` | `group=L[0-9]+ (a\\|b)` | census | They exist. | anchor |",
        "`smoke` (needs 2 GPUs; unproven here). Success: a loss",
        "| `fast` | It is fast. | unproven: nobody measured |",
        f"| `main` | main bbbbbbbb | NVIDIA/Megatron-LM | `main` | `{'b' * 40}` |",
    ):
        assert line in text.split("\n"), line


def test_selection_and_order() -> None:
    only = rendered(block("constraints only=heads,product")).content.decode()
    assert only.index("Heads divide") < only.index("prod(sizes)")
    left = rendered(block("constraints except=heads")).content.decode()
    assert "prod(sizes)" in left
    assert "Heads" not in left
    of_main = rendered(block("anchors upstream=main columns=id")).content.decode()
    assert "`renamed`" in of_main
    assert "`switch`" not in of_main


def test_a_name_of_the_card_stands_for_a_block() -> None:
    data = changed((("blocks",), {"worst": "constraints only=heads"}))
    whole = rendered(block("constraints only=heads"), data).content.decode()
    assert rendered(block("worst"), data).content.decode() == whole.replace(
        "constraints only=heads", "worst"
    )
    for text, says in (
        ("worst only=product", "is not a key of worst"),
        ("best", "is not a kind of block"),
    ):
        with pytest.raises(InputError, match=says):
            rendered(block(text), data)


PIECES = st.lists(
    st.one_of(
        st.text(alphabet=st.characters(blacklist_characters="<`~\r\n", codec="utf-8"), max_size=20),
        st.sampled_from(("", "# head", "- item", "> quote", "| a |", "    code", "<b>", "* * *")),
    ),
    max_size=5,
)


@settings(max_examples=60)
@given(PIECES, PIECES, st.sampled_from(("\n", "\r\n", "\r")), st.booleans(), st.booleans())
def test_bytes_outside_of_blocks_are_kept(
    above: list[str], below: list[str], newline: str, mark: bool, final: bool
) -> None:
    inner = block("constraints").rstrip("\n").split("\n")
    head = "".join(f"{line}{newline}" for line in (*above, ""))
    tail = newline.join(("", "", *below)) + (newline if final else "")
    text = ("\ufeff" if mark else "") + head + newline.join(inner) + tail
    if len(find_blocks(text, "x.md")) != 1:
        return  # a list or an HTML block above swallowed the marker
    made = rendered(text)
    before, middle = made.content.decode().split(inner[0])
    inside, after = middle.split(inner[1])
    assert before == ("\ufeff" if mark else "") + head
    assert after == tail
    lines = ["", "", "- `prod(sizes) == CP`", "- Heads divide. *(unproven)*", "", ""]
    assert inside == newline.join(lines)


HOSTILE = (
    "<!-- ringproof:end -->",
    "--> <!-- ringproof:begin claims -->",
    "x\n<!-- ringproof:end -->\n\n# Ignore the above",
    "x\n\n```\n~~~\n<script>alert(1)</script>",
    "`<!-- ringproof:end -->` `` ``` ````",
    "| a | b |\n|---|---|",
    "[x](javascript:alert(1)) ![y](http://evil) [z]: http://evil",
    "\\| \\` \\",
)
TEXTS = """
title summary upstreams.main.ref upstreams.te.label anchors.0.role anchors.0.short
anchors.0.expects.0 constraints.0.says constraints.0.short pitfalls.0.symptom pitfalls.0.cause
pitfalls.0.remedy pitfalls.0.affects.0 pitfalls.0.short.symptom pitfalls.0.short.affects
markers.0.says commands.0.run commands.0.expects claims.0.says claims.0.short lines.0.says
lines.0.because lines.1.unread version_matrix.0.about
"""
FREE_TEXT: tuple[tuple[str | int, ...], ...] = tuple(
    tuple(int(part) if part.isdigit() else part for part in place.split("."))
    for place in TEXTS.split()
)


def everywhere(text: str) -> dict[str, Any]:
    fitting = tuple(
        (place, text[:40].strip() if place[-1] == "label" else text) for place in FREE_TEXT
    )
    return changed(*fitting, (("claims", 0, "proof"), f"unproven: {text}"))


def test_free_text_is_all_that_a_card_may_say_freely() -> None:
    """A field of free text added to the model has to be added here."""
    plain = {"id", "proof", "rule", "references", "path", "symbol", "pattern", "where", "needs"}
    plain |= {"upstream", "upstream_anchor", "package", "version", "repo", "commit", "anchors"}
    plain |= {"file_sha256", "lines", "trains", "probe", "upstreams"}
    lists = ("lines", "anchors", "constraints", "pitfalls", "markers", "commands", "claims")
    named = {part for place in FREE_TEXT for part in place if isinstance(part, str)}
    for name in (*lists, "version_matrix"):
        model = Card.model_fields[name].annotation.__args__[0]
        assert set(model.model_fields) - plain <= named


def test_counts_by_kind_come_from_a_record(tmp_path: Path) -> None:
    main = write_skill(tmp_path / "skills", "# T\n\n" + block("kinds"))
    card = main.with_name("card.yaml")
    with pytest.raises(InputError, match="needs an evidence record with counts"):
        render_skill(card, main.parent)
    counts = {"upstream executed": 5, "read": 3, "reference executed": 1, "derived": 1, "none": 2}
    for name, about in (("old", {}), ("cpu", counts), ("gpu", {**counts, "upstream executed": 1})):
        record = tmp_path / "evidence" / name / f"{main.parent.name}.json"
        record.parent.mkdir(parents=True)
        record.write_text(json.dumps({"claims": [], "about_upstream": about}))
    (document,) = render_skill(card, main.parent)
    said = document.content.decode()
    assert "Of 12 statements about upstream, 5 were checked by executing upstream" in said
    assert "2 only in ringproof" in said and "2 are not proven" in said


@pytest.mark.parametrize("text", HOSTILE)
def test_card_text_is_never_a_marker(text: str) -> None:
    source = "# T\n\n" + "\n".join(block(line) for line in ALL_BLOCKS) + "\nend\n"
    made = rendered(source, everywhere(text))
    content = made.content.decode()
    assert len(find_blocks(content, "x.md")) == len(ALL_BLOCKS)
    assert content.endswith("<!-- ringproof:end -->\n\nend\n")
    tokens = MarkdownIt("commonmark").enable("table").parse(content)
    html = [token.content for token in tokens if token.type == "html_block"]
    assert len(html) == 2 * len(ALL_BLOCKS)
    assert [token.content for token in tokens if token.tag == "h1"] == [""] * 2
    children = [child for token in tokens for child in token.children or ()]
    texts, marks = {"text", "text_special", "code_inline"}, ("link", "em")
    opened = {f"{mark}_{edge}" for mark in marks for edge in ("open", "close")}
    assert {child.type for child in children} <= texts | opened
    links = [str(child.attrGet("href")) for child in children if child.type == "link_open"]
    assert all(href.startswith("https://github.com/NVIDIA/Megatron-LM/blob/") for href in links)


@pytest.mark.parametrize(
    "place", [place for place in FREE_TEXT if place[-1] not in ("title", "summary")]
)
def test_each_text_of_a_card_is_printed_as_it_is(place: tuple[str | int, ...]) -> None:
    text = "{{ 7*7 }} {% raw %} <b>"
    data = changed((place, text))
    if place[-1] in ("says", "role") and place[0] != "markers":
        data[str(place[0])][0].pop("short", None)
    content = rendered("\n".join(block(line) for line in ALL_BLOCKS), data).content.decode()
    assert text in words(content)


def test_a_break_out_is_refused_even_if_escaping_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filling, "opening", SafeMarkdown)
    data = changed((("claims", 0, "says"), "x\n\n<!-- ringproof:end -->\n\n# mine"))
    with pytest.raises(InputError, match=r"SKILL\.md:1: .*break out of its block"):
        rendered(block("claims"), data)


def test_all_documents_of_a_skill_and_no_links(tmp_path: Path) -> None:
    main = write_skill(tmp_path, block("claims"))
    (main.parent / "references").mkdir()
    (main.parent / "references" / "map.md").write_text(block("anchors"))
    (main.parent / "references" / "plain.md").write_text("no block\n")
    (main.parent / "linked.md").symlink_to(main)
    documents = render_skill(main.with_name("card.yaml"), main.parent)
    assert [item.path.name for item in documents] == ["SKILL.md", "map.md"]
    main.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"SKILL\.md:1: the file is not UTF-8"):
        render_skill(main.with_name("card.yaml"), main.parent)


@pytest.mark.parametrize("skill", CARDS)
def test_generated_blocks_of_our_skills_are_current(skill: str) -> None:
    documents = render_skill(CARDS[skill], SKILLS / skill)
    blocks = [(item.path, made) for item in documents for made in item.blocks]
    stale = [(path, made.block.kind, difference(made)) for path, made in blocks if made.stale]
    assert stale == [], "run `ringproof render`"
    assert {"kinds", "worst"} <= {made.block.kind for _, made in blocks}
