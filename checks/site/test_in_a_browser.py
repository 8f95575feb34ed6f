"""The built site in Chromium; ``make docs docs-test``, or ``pytest checks/site --site site``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from checks.running import ringproof
from checks.site.conftest import Complaints
from ringproof.prove.showing import render_report

ROOT = Path(__file__).parents[2]
AXE = ROOT / "docs" / "browser" / "node_modules" / "axe-core" / "axe.min.js"
PHONE = {"width": 390, "height": 844}
RULES = ("color-contrast", "image-alt", "heading-order", "link-name", "label", "button-name")
SKILL = "hierarchical-context-parallel"
LENGTHS = [*range(300, 9000, 97), 12_000, 16_000]

OVERFLOWS = """() => {
  const wide = [];
  const whole = document.documentElement.scrollWidth;
  if (whole > innerWidth) wide.push('the page scrolls sideways');
  const scrolls = (node) => {
    for (let at = node; at && at !== document.body; at = at.parentElement) {
      const style = getComputedStyle(at);
      if (/auto|scroll/.test(style.overflowX) || style.position === 'fixed') return true;
      if (style.visibility === 'hidden') return true;
      if (at.closest('.md-sidebar, .md-search, .md-header, .md-tabs')) return true;
    }
    return false;
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (!node.data.trim() || scrolls(node.parentElement)) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) {
      if (!box.width || (box.right <= innerWidth + 1 && box.left >= -1)) continue;
      wide.push(node.data.trim().slice(0, 60));
      break;
    }
  }
  return wide;
}"""
"""What a reader of a narrow window cannot see, text in a part that scrolls by itself left out."""


def violations(page: Any, rules: Sequence[str] = RULES) -> list[str]:
    """What axe finds, with the first place of each."""
    if not page.evaluate("Boolean(window.axe)"):
        page.add_script_tag(path=AXE)
    options = {"runOnly": {"type": "rule", "values": list(rules)}, "resultTypes": ["violations"]}
    found = page.evaluate("options => axe.run(document, options)", options)
    return [
        f"{rule['id']} ({len(rule['nodes'])}): {rule['nodes'][0]['html'][:150]} "
        f"{rule['nodes'][0]['failureSummary'][:200]}"
        for rule in found["violations"]
    ]


def test_a_page_is_in_order(address: str, page: Any, complaints: Complaints) -> None:
    """No console error, no other host, readable in light and dark, nothing cut off on a phone."""
    page.goto(address)
    assert page.title()
    found = {"light": violations(page)}
    page.emulate_media(color_scheme="dark")
    found["dark"] = violations(page, ["color-contrast"])
    page.set_viewport_size(PHONE)
    found["phone"] = page.evaluate(OVERFLOWS)
    assert (found, [*complaints]) == ({"light": [], "dark": [], "phone": []}, [])


def test_the_plan_inside_the_planner_is_in_order(page: Any, complaints: Complaints) -> None:
    page.goto("assets/planner/first.html")
    found = [violations(page)]
    page.emulate_media(color_scheme="dark")
    assert (found, violations(page), [*complaints]) == ([[]], [], [])


def test_search_finds_a_pitfall_by_its_error_text(page: Any, complaints: Complaints) -> None:
    page.goto("")
    # The theme searches at a key that is let go, which fill() does not send.
    page.click(".md-search__input")
    page.keyboard.type("CP implementation a2a+p2p requires cp_group")
    results = page.locator(".md-search-result__link")
    results.first.wait_for()
    links = results.evaluate_all("nodes => nodes.map(node => node.pathname + node.hash)")
    sections = [link for link in links if "#" in link]
    assert sections[0] == f"/skills/{SKILL}/statements/#dynamic-and-hierarchical"
    assert complaints == []


def test_the_switch_changes_colours_and_pictures(page: Any, complaints: Complaints) -> None:
    """From those of the system to light and to dark; a picture follows, whatever the system has."""
    page.goto("")
    picture = page.locator("article img").first
    light, scheme = picture.screenshot(), "document.body.dataset.mdColorScheme"
    assert page.evaluate(scheme) == "default"
    page.click("label.md-header__button[title*='switch to light']")
    page.click("label.md-header__button[title*='switch to dark']")
    page.wait_for_function(f"{scheme} === 'slate'")
    assert picture.screenshot() != light
    page.goto("proven/")
    assert page.evaluate(scheme) == "slate"
    assert complaints == []


@pytest.mark.parametrize("width", (390, 1440))
def test_the_proofs_fit_and_can_be_filtered(width: int, page: Any, complaints: Complaints) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.goto("proven/")
    cut = "nodes => nodes.filter(n => n.scrollWidth > n.clientWidth + 1).map(n => n.className)"
    assert page.locator(".stack .md-typeset__scrollwrap, .stack td").evaluate_all(cut) == []
    assert page.evaluate(OVERFLOWS) == []
    rows = page.locator(".stack tbody tr")
    page.fill(".filter input", "LOSS  never-there")  # each word counts
    assert rows.locator("visible=true").count() == 0
    page.fill(".filter input", "dynamic gpu")
    shown = rows.locator("visible=true")
    assert 0 < shown.count() < rows.count()
    assert all("dynamic" in text.lower() for text in shown.all_inner_texts())
    assert page.inner_text(".filter output") == f"{shown.count()} of {rows.count()} rows"
    assert complaints == []


@pytest.mark.parametrize("width", (390, 1440))
def test_the_report_of_prove_fits(width: int, page: Any) -> None:
    """Also where a statement holds a word that no line can hold, such as a path of a launch."""
    record = json.loads((ROOT / "evidence" / "cpu-gloo" / f"{SKILL}.json").read_text())
    record["claims"][0]["says"] += " " + "x" * 500
    page.set_viewport_size({"width": width, "height": 900})
    page.set_content(render_report([record], (), ()))
    assert page.evaluate(OVERFLOWS) == []


def planned(page: Any) -> dict[str, Any]:
    """The answer that the page shows."""
    return page.evaluate("window.plannerAnswer")


def by_command(command: str, folder: Path) -> dict[str, Any]:
    """The plan of a command that the page shows, by `ringproof` itself."""
    words = command.split()
    assert words[:2] == ["ringproof", "plan"]
    done = ringproof(*words[1:], "--json", "-", cwd=folder, check=True)
    return without_time(json.loads(done.stdout))


def without_time(plan: dict[str, Any]) -> dict[str, Any]:
    metrics = {k: v for k, v in plan["metrics"].items() if k != "planning_seconds"}
    return {**plan, "metrics": metrics}


@pytest.mark.timeout(600)
def test_the_planner_answers_as_the_command(
    page: Any, complaints: Complaints, tmp_path: Path
) -> None:
    """Sliders and pasted lengths give the plans of the command, which the page shows."""
    page.set_default_timeout(240_000)  # Python in the browser takes long on a busy machine
    page.goto("try/")
    page.wait_for_selector("html[data-planner=ready]")
    before = page.inner_text("#planner-gain")
    page.fill("#ranks", "5")
    page.fill("#sigma", "1.8")
    page.wait_for_function("plannerAnswer.plan && plannerAnswer.command.includes('sigma=1.8')")
    answer = planned(page)
    assert without_time(answer["plan"]) == by_command(answer["command"], tmp_path)
    assert page.inner_text("#planner-gain") != before
    picture = page.frame_locator("#planner-page")
    assert "sequences on 32 ranks" in picture.locator("h1").inner_text()

    (tmp_path / "lengths.txt").write_text("\n".join(map(str, LENGTHS)))
    page.check("input[value=own]")
    page.fill("#text", "\n".join(map(str, LENGTHS)))
    page.wait_for_function("plannerAnswer.command.includes('lengths.txt')")
    answer = planned(page)
    assert sorted(answer["plan"]["lengths"]) == LENGTHS
    assert without_time(answer["plan"]) == by_command(answer["command"], tmp_path)

    page.fill("#text", "100 two")
    page.wait_for_function("document.getElementById('planner-error').textContent")
    assert "lengths.txt:1: 'two' is not a whole number" in page.inner_text("#planner-error")
    assert complaints == []


def test_a_bad_page_is_noticed(chromium: Any, server: str) -> None:
    """Low contrast, a picture without text, a skipped heading, and a word that is cut off."""
    complaints, page = Complaints(), chromium.new_page(viewport=PHONE)
    complaints.watch(page, server)
    page.goto(server)
    page.set_content(
        "<html lang=en><title>t</title><main><h1>one</h1>"
        "<h3 style='color:#bbb;background:#fff'>three</h3>"
        "<img src='https://ringproof.invalid/x.png'>"
        f"<p style='white-space:nowrap'>{'word ' * 60}</p></main>"
        "<script>console.error('oh')</script>"
    )
    page.wait_for_load_state("load")
    names = {line.split(" ")[0] for line in violations(page)}
    assert {"color-contrast", "image-alt", "heading-order"} <= names
    assert len(page.evaluate(OVERFLOWS)) == 2
    assert {"error: oh", "request to another host: https://ringproof.invalid/x.png"} <= {
        *complaints
    }
    page.close()
