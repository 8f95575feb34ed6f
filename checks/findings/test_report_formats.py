"""Findings as text, JSON, SARIF and GitHub annotations, whatever their paths and messages say."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from checks.findings.sarif_structure import sarif_problems
from checks.house.features import ALL_RULES
from ringproof.findings.finding import Finding, Report, Rule
from ringproof.findings.formats import (
    as_github,
    as_sarif,
    finding_data,
    help_uri,
    line_fingerprints,
    print_report,
)

RULES = (
    Rule("RA101", "missing-symbol", "error", "No symbol.", "Look."),
    Rule("RF201", "fence-moved", "warning", "It moved."),
    Rule("RA201", "not-looked-up", "note", "Not at hand."),
)
PATH = "skills/one/card.yaml"
ODD_PATHS = {
    "with space/a#b?c.md": "with%20space/a%23b%3Fc.md",
    "a:b/c.md": "a%3Ab/c.md",
    "50%/é.md": "50%25/%C3%A9.md",
    "not\udcffutf8.md": "not%FFutf8.md",
    "bidi\u202e.md": "bidi%E2%80%AE.md",
}


def report(*findings: Finding, silenced: tuple[Finding, ...] = ()) -> Report:
    return Report(RULES, findings, (f"{len(findings)} found",), silenced)


def sarif(made: Report) -> Any:
    log = as_sarif(made, lambda path: {3: "abc:1"} if path == PATH else {})
    assert sarif_problems(log) == []
    return log["runs"][0]


def text_of(made: Report, **options: Any) -> str:
    stream = io.StringIO()
    # A line is broken only where the stream itself is a terminal.
    stream.isatty = lambda: bool(options.get("force_terminal"))  # type: ignore[method-assign]
    print_report(made, Console(file=stream, **options))
    return stream.getvalue()


def test_sarif_of_a_finding_with_everything() -> None:
    finding = Finding("RA101", PATH, 3, "it is gone", 7, ("claim x depends on it",), "one/build")
    run = sarif(report(finding, silenced=(Finding("RF201", PATH, 1, "y"),)))
    first, second = run["results"]
    assert (first["ruleId"], first["ruleIndex"], first["level"]) == ("RA101", 0, "error")
    assert first["message"]["text"] == "it is gone\nclaim x depends on it"
    place = first["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": PATH, "uriBaseId": "%SRCROOT%"}
    assert place["region"] == {"startLine": 3, "endLine": 7}
    assert first["partialFingerprints"]["primaryLocationLineHash"] == "abc:1"
    assert second["suppressions"] == [{"kind": "inSource"}]
    assert "partialFingerprints" not in second
    rules = run["tool"]["driver"]["rules"]
    assert rules[0]["helpUri"].endswith("/docs/anchors.md#ra101-missing-symbol-error")


def test_an_identity_stays_when_lines_and_messages_change() -> None:
    def identity(finding: Finding) -> str:
        (result,) = sarif(report(finding))["results"]
        return str(result["partialFingerprints"]["ringproofIdentity/v1"])

    first = identity(Finding("RA101", PATH, 3, "line 3", identity="one/build"))
    assert first == identity(Finding("RA101", PATH, 90, "line 90", identity="one/build"))
    assert first != identity(Finding("RA101", PATH, 3, "line 3", identity="one/check"))
    assert first != identity(Finding("RF201", PATH, 3, "line 3", identity="one/build"))


@pytest.mark.parametrize(("path", "uri"), ODD_PATHS.items())
def test_any_file_name_is_a_uri(path: str, uri: str) -> None:
    (result,) = sarif(report(Finding("RF201", path, 1, "x")))["results"]
    artifact = result["locations"][0]["physicalLocation"]["artifactLocation"]
    assert artifact == {"uri": uri, "uriBaseId": "%SRCROOT%"}
    (outside,) = sarif(report(Finding("RF201", f"/r/{path}", 1, "x")))["results"]
    artifact = outside["locations"][0]["physicalLocation"]["artifactLocation"]
    assert artifact == {"uri": f"file:///r/{uri}"}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda log: log.update(version="2.0.0"),
        lambda log: log["runs"][0]["results"][0].update(ruleIndex=1),
        lambda log: log["runs"][0]["results"][0].update(level="notice"),
        lambda log: log["runs"][0]["results"][0].update(extra=1),
        lambda log: log["runs"][0]["results"][0]["message"].update(text=""),
        lambda log: log["runs"][0].pop("originalUriBaseIds"),
        lambda log: log["runs"][0]["tool"]["driver"]["rules"].append({"id": "RA101"}),
    ],
)
def test_the_structure_check_notices(spoil: Any) -> None:
    log = as_sarif(report(Finding("RA101", PATH, 3, "x")), lambda _path: {})
    spoil(log)
    assert sarif_problems(log) != []


def test_github_annotations_with_levels_ranges_and_details() -> None:
    made = report(
        Finding("RA101", "a,b:c%.md", 3, "50%\r\n::error::x", 7, ("more",)),
        Finding("RF201", PATH, 1, "x"),
        Finding("RA201", PATH, 2, "x", 2),
    )
    assert as_github(made) == (
        "::error file=a%2Cb%3Ac%25.md,line=3,endLine=7,title=RA101::50%25%0D%0A::error::x%0Amore",
        f"::warning file={PATH},line=1,title=RF201::x",
        f"::notice file={PATH},line=2,title=RA201::x",
    )


def test_data_has_what_there_is() -> None:
    made = report(Finding("RA101", PATH, 3, "x", 7, ("more",)), Finding("RA201", PATH, 1, "y"))
    full, plain = (finding_data(made, item) for item in made.findings)
    assert plain == {
        "rule": "RA201", "name": "not-looked-up", "level": "note", "path": PATH, "line": 1,
        "message": "y",
    }  # fmt: skip
    assert (full["end_line"], full["details"]) == (7, ["more"])


@pytest.mark.parametrize("width", [12, 40, 200])
def test_narrow_terminals_cut_no_path(width: int) -> None:
    path = "skills/a-skill-with-a-rather-long-name/references/[red]upstream[/red]-map.md"
    message = "the message is longer than the terminal is wide, much longer than that"
    shown = text_of(report(Finding("RA101", path, 3, message)), width=width, force_terminal=True)
    first, place, *rest = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    assert first == "1 found" and place.startswith(f"{path}:3:")
    words = " ".join((place, *rest)).split()
    assert words[: 2 + len(message.split())] == f"{path}:3: RA101 {message}".split()


def test_colour_is_for_terminals_that_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    made = report(Finding("RA101", PATH, 3, "x"))
    red = re.compile(r"\x1b\[[0-9;]*31m")
    assert red.search(text_of(made, force_terminal=True))
    assert "\x1b" not in text_of(made)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not red.search(text_of(made, force_terminal=True))


def test_text_begins_with_the_summary_and_ends_with_a_table_of_the_rules() -> None:
    some = [Finding("RA101", PATH, 3, "x", details=("more",)), Finding("RA101", PATH, 9, "y")]
    lines = text_of(report(*some, Finding("RF201", PATH, 1, "z"))).splitlines()
    assert (lines[0], lines[2]) == ("3 found", "    more")
    assert [line.split() for line in lines[5:]] == [
        ["rule", "level", "found", "what"],
        ["RA101", "error", "2", "missing-symbol"],
        ["RF201", "warning", "1", "fence-moved"],
    ]
    assert text_of(report()) == "0 found\n"


def test_paths_cannot_steer_a_terminal() -> None:
    made = report(Finding("RA101", "a\x1b[2J\u202e\udcff\n.md", 3, "x"))
    for shown in (text_of(made), "\n".join(as_github(made))):
        assert not re.search("[\x1b\u202e\udcff]", shown)
        assert "a<U+001B>[2J<U+202E><U+DCFF>" in shown


def test_a_terminal_that_lacks_characters_gets_escapes() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    print_report(report(Finding("RA101", "é.md", 3, "ü…")), Console(file=stream))
    stream.seek(0)
    assert stream.read().splitlines()[1:2] == ["\\xe9.md:3: RA101 \\xfc\\u2026"]


def as_markdown(rules: Iterable[Rule]) -> str:
    """The page that lists rules, each under the heading that `help_uri` leads to."""
    return "\n".join(
        f"### {rule.id} `{rule.name}` ({rule.level})\n\n{rule.what}\n"
        + (f"\n- Remedy: {rule.remedy}\n" if rule.remedy else "")
        for rule in rules
    )


def test_every_rule_is_unique_and_explained() -> None:
    ids = [rule.id for rule in ALL_RULES]
    names = [rule.name for rule in ALL_RULES]
    assert len(set(ids)) == len(ids) == len(set(names))
    for rule in ALL_RULES:
        assert re.fullmatch(r"(RP|RA|RF|RD)\d{3}", rule.id)
        assert rule.what.endswith(".") and len(rule.what) < 100
        assert rule.id.startswith("RP") or rule.remedy.endswith(".")
    headings = re.findall(r"^### (.+)$", as_markdown(ALL_RULES), re.M)
    slugs = [re.sub(r"[^a-z0-9 -]", "", line.lower()).replace(" ", "-") for line in headings]
    assert [help_uri(rule).partition("#")[2] for rule in ALL_RULES] == slugs


def test_the_page_of_the_anchor_rules_is_the_table() -> None:
    rules = [rule for rule in ALL_RULES if rule.page == "anchors"]
    page = (Path(__file__).parents[2] / "docs" / "anchors.md").read_text(encoding="utf-8")
    assert len(rules) >= 18 and page.partition("\n## Rules\n\n")[2] == as_markdown(rules)


# Made with github/codeql-action's own src/fingerprints.ts under node.
MADE_BY_GITHUB = {
    "anchors:\n- id: build\n  path: a.py\n- id: chéck \U0001d518\r\n\tpath: b.py\r\rend": (
        "ca55015fa5423ecc:1 c272d734eec71832:1 b8e52918de6190dc:1 1e855f1fbdbcb08f:1 "
        "1e9712c07d486e7a:1 165fbdbbce84915c:1 43b6461eda086fe2:1"
    ),
    "x = 1\nx = 1\n": "87c133c3324ef59b:1 8e00d41f0ebba6bf:1 c129715d7a2bc9a3:1",
    "same line of text, long enough to fill it\n" * 6: (
        "f1f35b266ac2595b:1 f1f35b266ac2595b:2 f1f35b266ac2595b:3 f1f35b266ac2595b:4 "
        "18abc4b31ac8af41:1 6ab5082d6ed6de96:1 c129715d7a2bc9a3:1"
    ),
}


@pytest.mark.parametrize("text", MADE_BY_GITHUB, ids=["mixed", "short", "same"])
def test_the_same_as_github_s(text: str) -> None:
    assert line_fingerprints(text) == dict(enumerate(MADE_BY_GITHUB[text].split(), 1))


def test_lone_surrogates_are_hashed() -> None:
    assert len(line_fingerprints("a\udcff\nb")) == 2
