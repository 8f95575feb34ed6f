"""The generated pages have all that they are made of, and show text of cards as text."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from checks.house.features import features
from checks.render.miniature_skill import CARD, MAIN, changed, lock_of
from docs.making import pages, plots
from ringproof.cards import Card, statements
from ringproof.cards.schema import schema_text
from ringproof.errors import InputError

ROOT = Path(__file__).parents[2]
PROOF = MappingProxyType(
    {
        "id": "anchor:switch", "outcome": "passed", "evidence": "read",
        "upstream": [f"executed NVIDIA/Megatron-LM git:{MAIN}"],
    }
)  # fmt: skip
CLAIM = MappingProxyType(
    {
        "id": "product", "verdict": "proven", "evidence": "upstream executed",
        "lines": ["released"], "proofs": [PROOF],
    }
)  # fmt: skip
RECORD: Any = MappingProxyType(
    {
        "started": "2026-11-20T12:00:00Z",
        "environment": {"torch": "2.13.0", "python": "3.11", "gpus": [], "commit": "c" * 40},
        "validation_status": {"all_groups": "proven"},
        "claims": [CLAIM],
        "totals": {"proofs": 3, "proofs_executed": 2, "proven": 1, "partly": 0, "unproven": 3},
        "about_upstream": {"upstream executed": 1, "read": 0, "none": 3},
    }
)

DOCUMENTS = MappingProxyType(
    {
        "SKILL.md": "# The demo\n\nSee `silent`, `silence` and `references/more.md`.\n\n"
        "## About `silent`\n\n```bash\necho `silent`\n```\n",
        "references/more.md": "# More\n\n`silent` again.\n",
    }
)


def miniature(data: Any = CARD, **records: Any) -> pages.Skill:
    card = Card.model_validate(dict(data))
    return pages.Skill("demo", "The demo", DOCUMENTS, card, lock_of(CARD), records)


@pytest.fixture(scope="module")
def found() -> list[pages.Skill]:
    return pages.read_skills(ROOT)


def test_every_statement_has_its_place_and_its_proofs(found: list[pages.Skill]) -> None:
    assert len(found) == 3
    for skill in found:
        page = pages.statements_page(skill)
        for statement in statements(skill.card):
            if statement.kind.value == "anchor":
                assert f'id="anchor-{statement.id}"' in page
                continue
            assert re.search(rf'id="{statement.id}"|{{: #{statement.id} ', page), statement.id
            for proof in statement.proofs:
                assert proof.target.replace("'", "&#39;")[:60] in page or "unproven" in proof.id


def test_anchors_lead_to_the_commit_and_lines_of_the_lock(found: list[pages.Skill]) -> None:
    for skill in found:
        page = pages.statements_page(skill)
        assert skill.lock is not None
        upstreams = skill.lock.upstreams
        links = [
            f"{upstreams[name].commit}/{place.path}#L{place.start}-L{place.end}"
            for anchor in skill.lock.anchors.values()
            for name, place in anchor.places.items()
            if place.status == "found" and upstreams[name].commit and place.source is None
        ]
        there = sum(link in page for link in links)
        assert there >= 0.9 * len(skill.lock.anchors)


def test_a_page_has_verdict_evidence_and_places() -> None:
    page = pages.statements_page(miniature(cpu=RECORD))
    assert not page.startswith("<") and "anchor:switch" not in page
    for said in (
        "# The demo",
        "2 of 3 proofs ran",
        '<span class="verdict proven" title="cpu">proven</span>',
        '<span class="evidence">upstream executed</span>',
        '<a href="#line-released">released</a>',
        MAIN[:12],
        "Unproven: needs 2 GPUs.",
        "lines 3 to 5",
        "<td>all groups</td>",
        "no: Nothing calls it.",
    ):
        assert said in page, said


def test_the_page_of_a_skill_is_its_text_with_links() -> None:
    made = pages.skill_pages(miniature())
    assert [*made] == [
        "skills/demo.md",
        "skills/demo/statements.md",
        "skills/demo/references/more.md",
    ]
    page = made["skills/demo.md"]
    assert page.startswith("# The demo\n")
    count = len(statements(Card.model_validate(dict(CARD))))
    assert f'href="statements/">{count} statements</a>' in page
    link = "[`silent`](demo/statements.md#silent)"
    more = "[`references/more.md`](demo/references/more.md)"
    assert page.endswith(
        f"See {link}, `silence` and {more}.\n\n## About `silent`\n\n```bash\necho `silent`\n```\n"
    )
    assert made["skills/demo/references/more.md"].endswith(
        "# More\n\n[`silent`](../statements.md#silent) again.\n"
    )


def test_each_skill_is_shown_whole(found: list[pages.Skill]) -> None:
    for skill in found:
        made = pages.skill_pages(skill)
        for path in (ROOT / "skills" / skill.name).rglob("*.md"):
            name = path.relative_to(ROOT).as_posix().replace("/SKILL.md", ".md")
            text = re.sub(r"\[(`[^`]+`)\]\([^)]*\)", r"\1", made[name])
            lines = path.read_text("utf-8").split("\n---\n")[-1].strip().splitlines()
            assert [line for line in lines if line not in text] == []


def test_without_a_record_nothing_is_called_proven() -> None:
    page = pages.statements_page(miniature())
    assert 'title="' not in page
    assert page.count('<span class="verdict not-run">no record</span>') == 7
    assert '<span class="verdict proven">' in page.split("What the verdicts mean")[1].split("##")[0]


def test_text_of_a_card_is_text() -> None:
    hostile = "# [x](y) <b>`a<i>`</b> {: #id } {{ 7*7 }}"
    places = (("summary",), ("pitfalls", 0, "symptom"), ("claims", 0, "says"))
    data = changed(*((place, hostile) for place in places))
    page = pages.statements_page(miniature(data, cpu=RECORD))
    assert "&lt;b&gt;<code>a&lt;i&gt;</code>&lt;/b&gt; {: #id } {{ 7*7 }}" in page
    (heading,) = (line for line in page.split("\n") if line.startswith("### "))
    assert heading.endswith(" {: #silent .symptom }")
    assert not re.search(r"[<\[`*]", heading)
    assert heading.count("{:") == 1


def test_a_stale_lock_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "skills" / "demo"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: demo\n---\n# Demo\n")
    card = changed((("anchors", 0, "symbol"), "Config.other_switch"))
    (folder / "card.yaml").write_text(json.dumps(card))
    (folder / "anchors.lock").write_text(lock_of(CARD).text())
    with pytest.raises(InputError, match=r"anchors\.lock.*older than the card"):
        pages.read_skills(tmp_path)


def test_links_to_an_address_that_is_not_set_are_text() -> None:
    hook = pytest.importorskip("docs.hook", reason="needs mkdocs")
    text = "[one](https://github.com/OWNER/ringproof/x) [two](https://github.com/NVIDIA/apex)"
    shown = hook.on_page_markdown(text, page=None, config=None, files=None)
    assert shown == "one [two](https://github.com/NVIDIA/apex)"


def test_all_pitfalls_are_listed_with_their_symptoms(found: list[pages.Skill]) -> None:
    page = pages.pitfalls_page(found)
    wanted = [(skill.name, item.id) for skill in found for item in skill.card.pitfalls]
    assert len(wanted) > 80
    for name, item in wanted:
        assert f'href="../skills/{name}/statements/#{item}"' in page


def test_every_command_and_option_is_on_its_page() -> None:
    page = pages.commands_page()
    words = [line.split() for line in features()]
    commands = [f"# `{' '.join(rest)}`" for kind, *rest in words if kind == "command"]
    spelled = [next(w for w in rest if w[0] == "-") for kind, *rest in words if kind == "option"]
    options = [f"<code>{name}</code>" for option in spelled for name in option.split("/")]
    assert len(commands) > 30
    assert len(options) > 200
    assert [text for text in (*commands, *options) if text not in page] == []


def test_every_key_of_a_card_is_on_its_page() -> None:
    page, schema = pages.schema_page(), json.loads(schema_text())
    for name, part in [("Card", schema), *schema["$defs"].items()]:
        section = page.split(f"## {name}\n")[1].split("\n## ")[0]
        for key in part["properties"]:
            assert f"<code>{key}</code>" in section, (name, key)
    assert "None" not in page


def test_the_page_of_proofs_has_every_record(found: list[pages.Skill]) -> None:
    page = pages.proven_page(found, ROOT)
    for path in (ROOT / "evidence").glob("*/conform-*.json"):
        assert f'<td data-label="Version">{json.loads(path.read_text())["name"]}</td>' in page
    for skill in found:
        for record in skill.records.values():
            totals = record["totals"]
            assert f">{totals['proofs_executed']} of {totals['proofs']}</td>" in page


@pytest.mark.parametrize("name", plots.PLOTS)
def test_the_words_below_a_plot_are_not_cut(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    ends: list[float] = []

    def look(figure: Any) -> bytes:
        figure.draw_without_rendering()
        boxes = [axes.xaxis.label.get_window_extent() for axes in figure.axes]
        ends.extend(box.x1 / figure.bbox.x1 for box in boxes)
        return b""

    monkeypatch.setattr(plots, "_svg", look)
    plots.PLOTS[name](ROOT / "benchmarks")
    assert ends and max(ends) < 1


@pytest.mark.parametrize("name", plots.PLOTS)
def test_a_plot_takes_the_colours_of_the_page(name: str) -> None:
    pytest.importorskip("matplotlib")
    text = plots.PLOTS[name](ROOT / "benchmarks").decode()
    assert "var(--ink)" in text
    assert "prefers-color-scheme: dark" in text
    assert plots._INK not in text
