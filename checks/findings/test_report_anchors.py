"""``anchors check``, ``fences`` and ``drift`` in every format, at the lines of the card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import Result

from checks.anchors.gitrepo import commit, make_repository
from checks.anchors.scene import ANCHORS, MODULE, Scene
from checks.fences.trees import CODE, checkout, fence
from checks.findings.sarif_structure import sarif_problems
from checks.prove.miniature import anchor
from ringproof.anchors import check, drift
from ringproof.anchors.drift import DriftKind
from ringproof.anchors.resolve import AnchorStatus
from ringproof.errors import InputError

CARD = "skills/demo/card.yaml"


def sarif(result: Result, *, code: int = 1) -> list[dict[str, Any]]:
    assert result.exit_code == code, result
    log = json.loads(result.stdout)
    assert sarif_problems(log) == []
    results: list[dict[str, Any]] = log["runs"][0]["results"]
    return results


def place(result: dict[str, Any]) -> tuple[str, int]:
    where = result["locations"][0]["physicalLocation"]
    return where["artifactLocation"]["uri"], where["region"]["startLine"]


def line_of(scene: Scene, text: str) -> int:
    lines = (scene.skill.root / CARD).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def break_the_card(scene: Scene) -> None:
    upstreams = {
        "demo": {"package": "demo-upstream", "version": "1.0"},
        "lm": {"repo": "some/where", "ref": "main", "commit": scene.pinned},
    }
    wrong = [
        *ANCHORS,
        anchor("bad", "nowhere"),
        anchor("poor", "build", "absent_word"),
        {**anchor("lost"), "path": "pkg/none.py"},
    ]
    scene.skill.card(upstreams=upstreams, anchors=wrong)


def test_every_status_and_fate_has_a_rule() -> None:
    statuses = {status.value for status in AnchorStatus}
    assert statuses - {"holds"} <= check.RULE_OF.keys()
    assert set(DriftKind) == drift.RULE_OF.keys()


def test_findings_stand_where_the_card_speaks_of_the_anchor(scene: Scene) -> None:
    break_the_card(scene)
    found = sarif(scene.run("check", "--format", "sarif"))
    assert [item["ruleId"] for item in found] == ["RA101", "RA102", "RA104", "RA201", "RA202"]
    by_rule = {item["ruleId"]: item for item in found}
    for rule, name in (("RA101", "bad"), ("RA102", "poor"), ("RA104", "lost")):
        path, line = place(by_rule[rule])
        region = by_rule[rule]["locations"][0]["physicalLocation"]["region"]
        # The keys are sorted: `expects` first, `upstream` last.
        assert (path, line) == (CARD, line_of(scene, f"id: {name}") - 1)
        assert region["endLine"] == line + 5
        assert by_rule[rule]["message"]["text"].startswith(f"{name}: ")
    assert place(by_rule["RA201"]) == (CARD, line_of(scene, "lm:"))
    assert by_rule["RA201"]["level"] == "note"
    assert all(item["partialFingerprints"].keys() == {
        "primaryLocationLineHash", "ringproofIdentity/v1",
    } for item in found)  # fmt: skip


def test_a_finding_is_known_again_when_the_card_grows_above_it(scene: Scene) -> None:
    break_the_card(scene)
    before = sarif(scene.run("check", "--format", "sarif"))[0]
    card = scene.skill.root / CARD
    card.write_text("# A remark.\n\n" + card.read_text())
    after = sarif(scene.run("check", "--format", "sarif"))[0]
    assert place(after)[1] == place(before)[1] + 2
    assert after["partialFingerprints"] == before["partialFingerprints"]


def test_github_annotations_and_exit_codes(scene: Scene) -> None:
    ok = scene.run("check", "--format", "github")
    assert ok.exit_code == 0
    assert ok.stdout.startswith(f"::notice file={CARD},line=")
    break_the_card(scene)
    bad = scene.run("check", "--format", "github")
    assert bad.exit_code == 1
    assert [line.split(" ")[0] for line in bad.stdout.splitlines()] == ["::error"] * 3 + [
        "::notice"
    ] * 2
    assert "6 anchors: " in bad.stderr


def test_the_text_lists_problems_and_with_verbose_everything(scene: Scene) -> None:
    plain = scene.run("check").stdout
    assert "holds: " not in plain and plain.splitlines()[0] == "3 anchors: 2 not here, 1 holds"
    full = scene.run("check", "--verbose").stdout
    assert full.startswith(plain)
    start = MODULE[: MODULE.index("def build")].count("\n") + 1
    assert f"holds: demo: d-build: pkg/mod.py:{start}-" in full
    assert "not here: demo: l-build: pkg/mod.py build" in full


def test_changed_code_is_a_finding_and_moved_code_is_counted(scene: Scene) -> None:
    assert scene.run("lock", "--upstream", f"some/where={scene.git()}").exit_code == 0
    later = ("--upstream", f"lm={scene.git('later')}")
    (found,) = sarif(scene.run("check", *later, "--format", "sarif"))
    assert (found["ruleId"], place(found)[0]) == ("RA103", CARD)
    text = scene.run("check", *later).stdout
    assert text.splitlines()[0].endswith("1 changed since the lock; 1 of them moved since the lock")


def test_json_is_the_same_by_either_option(scene: Scene) -> None:
    ends = ("--from", scene.git("main"), "--to", scene.git("later"))
    for words in (("check",), ("drift", *ends)):
        one, other = (scene.run(*words, *how) for how in (("--json", "-"), ("--format", "json")))
        assert json.loads(one.stdout) == json.loads(other.stdout) != {}


def test_a_sarif_file_is_written_beside_what_is_printed(scene: Scene) -> None:
    break_the_card(scene)
    file = scene.skill.root / "out.sarif"
    result = scene.run("check", "--sarif", str(file))
    assert result.exit_code == 1 and "RA101 bad: pkg/mod.py: " in result.stdout
    assert "RA102 poor: pkg/mod.py:" in result.stdout and "absent_word" in result.stdout
    assert sarif_problems(json.loads(file.read_text())) == []
    assert "--sarif takes a file" in scene.refused("check", "--sarif", "-")
    both = ("--json", "-", "--format", "sarif")
    refused = scene.refused("drift", "--from", "x", "--to", "y", *both)
    assert "does not go with --format sarif" in refused
    nowhere = str(scene.skill.root / "none" / "out.sarif")
    assert "out.sarif' cannot be written" in scene.refused("check", "--sarif", nowhere)


def test_drift_stands_at_the_anchor_and_says_what_depends_on_it(scene: Scene) -> None:
    ends = ("--from", scene.git("main"), "--to", scene.git("later"))
    (found,) = sarif(scene.run("drift", *ends, "--only", "lm", "--format", "sarif"))
    assert (found["ruleId"], place(found)[0]) == ("RD301", CARD)
    assert found["message"]["text"].splitlines()[1:] == [
        "defaults: group_desc None -> 'x'",
        "claim says-build depends on it",
    ]
    github = scene.run("drift", *ends, "--only", "lm", "--format", "github").stdout
    assert github.startswith(f"::error file={CARD},line=") and "%0Aclaim says-build" in github
    text = scene.run("drift", *ends, "--only", "lm").stdout
    assert "l-check" not in text
    assert (
        "demo: l-check: moved -> pkg/mod.py:"
        in scene.run("drift", *ends, "--only", "lm", "-v").stdout
    )
    same = ("--from", scene.git("main"), "--to", scene.git("main"))
    assert sarif(scene.run("drift", *same, "--format", "sarif"), code=0) == []


def test_fences_in_every_format(scene: Scene) -> None:
    body = "class Config:\n    size: int = 1"
    text = fence(13, 14, "src/a.py", body) + fence(3, 4, "src/a.py", f"{body}0")
    text += fence(3, 4, "src/none.py", body)
    checkout(scene.skill.root, {"src/a.py": CODE, "skills/demo/SKILL.md": text})
    given = ("skills", "--format")
    found = sarif(scene.fences(*given, "sarif"))
    assert [(item["ruleId"], item["level"], *place(item)) for item in found] == [
        ("RF201", "warning", "skills/demo/SKILL.md", 1),
        ("RF202", "error", "skills/demo/SKILL.md", 5),
        ("RF203", "error", "skills/demo/SKILL.md", 9),
    ]
    github = scene.fences(*given, "github")
    assert github.stdout.splitlines()[0].startswith("::warning file=skills/demo/SKILL.md,line=1,")
    data = json.loads(scene.fences(*given, "json").stdout)
    assert [item["status"] for item in data["anchors"]] == ["moved", "changed", "missing"]


def test_without_any_upstream_no_format_passes(scene: Scene) -> None:
    upstreams = {"lm": {"repo": "some/where", "ref": "main", "commit": scene.pinned}}
    scene.skill.card(upstreams=upstreams, anchors=ANCHORS[:2])
    for shown in ("text", "json", "sarif", "github"):
        result = scene.run("check", "--format", shown)
        assert isinstance(result.exception, InputError) and result.stdout == ""


def test_a_file_that_cannot_be_read_is_a_finding(scene: Scene) -> None:
    commit(make_repository(scene.skill.root / "other"), {"pkg/mod.py": "def build(:\n"})
    given = ("--upstream", f"lm=git:{scene.skill.root / 'other'}@main")
    found = sarif(scene.run("check", *given, "--format", "sarif"))
    assert [item["ruleId"] for item in found][:2] == ["RA105", "RA105"]


def test_a_lock_of_another_version_is_a_finding(scene: Scene) -> None:
    given = ("--upstream", f"some/where={scene.git()}")
    assert scene.run("lock", *given).exit_code == 0
    card = scene.skill.root / CARD
    card.write_text("# newer\n" + card.read_text())
    assert sarif(scene.run("check", *given, "--format", "sarif"), code=0) == []
    card.write_text(card.read_text().replace(scene.pinned, scene.later))
    (found,) = sarif(scene.run("check", *given, "--format", "sarif"))
    assert (found["ruleId"], place(found)) == ("RA108", (CARD, line_of(scene, "lm:")))


def _with_submodule(scene: Scene, source: str) -> tuple[Path, str]:
    """A work tree whose HEAD pins ``lib`` at a commit of own/lib; the folder is empty."""
    library = scene.repository.parent / "library"
    pin = commit(make_repository(library), {"src/b.py": source})
    modules = '[submodule "lib"]\n\tpath = lib\n\turl = https://github.com/own/lib.git\n'
    text = fence(3, 4, "lib/src/b.py", "class Config:\n    size: int = 1")
    checkout(
        scene.skill.root, {".gitmodules": modules, "skills/demo/SKILL.md": text, "lib/.keep": ""}
    )
    (scene.skill.root / "lib" / ".keep").unlink()
    repository = make_repository(scene.skill.root, bare=False)
    head = commit(repository, {".gitmodules": modules}, pins={"lib": pin})
    return library, head


def test_a_submodule_s_repository_is_read_at_the_pin(scene: Scene) -> None:
    library, _ = _with_submodule(scene, CODE)
    commit(make_repository(library), {"src/b.py": "later = 1\n"})
    empty = scene.fences("skills").exception
    assert isinstance(empty, InputError) and "is a submodule that is empty here" in str(empty)
    given = ("--upstream", f"own/lib=git:{library}")
    assert scene.fences("skills", *given).exit_code == 0
    whole = ("--upstream", f".=git:{scene.skill.root}@HEAD")
    assert scene.fences("skills", *given, *whole).exit_code == 0
    at_main = ("--upstream", f"lib=git:{library}@main")
    assert scene.fences("skills", *at_main).exit_code == 1


def test_drift_follows_submodules(scene: Scene) -> None:
    library, head = _with_submodule(scene, MODULE)
    scene.skill.card(
        upstreams={"own": {"repo": "own/er", "ref": "main", "commit": head}},
        anchors=[{**anchor("a", upstream="own"), "path": "lib/src/b.py"}],
    )
    ends = ("--from", f"git:{scene.skill.root}@HEAD", "--to", f"git:{scene.skill.root}@HEAD")
    assert "own/lib" in scene.refused("drift", *ends)
    given = ("--upstream", f"own/lib=git:{library}")
    assert scene.run("drift", *ends, *given).exit_code == 0
    assert scene.run("drift", *ends, *given, "--only", "own").exit_code == 0
    wrong = scene.refused("drift", *ends, "--upstream", f"lib=git:{library}")
    assert "is not the repository of a submodule" in wrong
