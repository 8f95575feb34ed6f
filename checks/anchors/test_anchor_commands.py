"""``ringproof anchors check``, ``lock`` and ``drift`` on a skill whose upstream is a repository."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from checks.anchors.gitrepo import commit, make_repository
from checks.anchors.scene import MODULE, Scene, make_scene
from checks.anchors.wheelhouse import fill_cache


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return make_scene(tmp_path)


def _anchors(result: Result) -> dict[str, dict[str, Any]]:
    return {item["anchor"]: item for item in json.loads(result.stdout)["anchors"]}


@pytest.mark.parametrize("name", ["lm", "some/where"])
def test_a_checkout_by_name_or_repository_at_the_card_s_commit(scene: Scene, name: str) -> None:
    result = scene.run("check", "--upstream", f"{name}={scene.git()}", "--json", "-")
    found = _anchors(result)
    assert result.exit_code == 0
    assert {item["status"] for item in found.values()} == {"holds"}
    start = MODULE[: MODULE.index("def build")].count("\n") + 1
    assert found["l-build"]["start"] == start
    assert found["l-build"]["origin"] == f"git:{scene.pinned}#commit={scene.pinned}"
    assert found["l-build"]["since_lock"] == "not locked"


def test_the_lock_holds_places_and_versions_and_nothing_of_this_machine(scene: Scene) -> None:
    given = ("--upstream", f"some/where={scene.git()}")
    assert scene.run("lock", *given).exit_code == 0
    text = scene.lock.read_text()
    assert str(scene.repository.parent) not in text and "raise" not in text
    lock = json.loads(text)
    assert lock["upstreams"]["lm"] == {
        "repo": "some/where",
        "ref": "main",
        "commit": scene.pinned,
    }
    assert lock["upstreams"]["demo"]["version"] == "1.0"
    places = lock["anchors"]["l-build"]["places"]
    assert set(places) == {"demo", "lm", "next"}, "every version of the repository"
    assert places["lm"]["fingerprint"] == places["demo"]["fingerprint"]
    assert places["lm"]["fingerprint"] != places["next"]["fingerprint"]
    assert places["next"]["start"] == places["lm"]["start"] + 1
    assert scene.run("lock", *given).exit_code == 0
    assert scene.lock.read_text() == text


def test_check_compares_with_the_lock(scene: Scene) -> None:
    assert scene.run("lock", "--upstream", f"some/where={scene.git()}").exit_code == 0
    same = scene.run("check", "--upstream", f"lm={scene.git()}", "--json", "-")
    assert {item["since_lock"] for item in _anchors(same).values()} == {"same"}
    other = scene.run("check", "--upstream", f"lm={scene.git('later')}", "--json", "-")
    assert other.exit_code == 1
    found = _anchors(other)
    assert found["l-build"]["status"] == "changed since the lock"
    assert (found["l-check"]["status"], found["l-check"]["since_lock"]) == ("holds", "moved")


def test_a_lock_with_a_broken_anchor_is_not_written(scene: Scene) -> None:
    result = scene.run(
        "lock", "--upstream", f"lm={scene.git()}", "--upstream", f"next={scene.git()}"
    )
    assert result.exit_code == 0
    before = scene.lock.read_text()
    commit(make_repository(scene.repository.parent / "other"), {"pkg/mod.py": "x = 1\n"})
    other = f"git:{scene.repository.parent / 'other'}@main"
    failed = scene.run("lock", "--upstream", f"lm={other}", "--upstream", f"next={other}")
    assert failed.exit_code == 1 and "missing symbol" in failed.stdout
    assert scene.lock.read_text() == before


def test_drift_names_the_class_and_what_depends_on_it(scene: Scene) -> None:
    ends = ("--from", scene.git("main"), "--to", scene.git("later"))
    result = scene.run("drift", *ends, "--only", "lm", "--json", "-")
    assert result.exit_code == 1
    found = _anchors(result)
    assert found["l-build"]["kind"] == "changed"
    assert found["l-build"]["summary"] == ["defaults: group_desc None -> 'x'"]
    assert found["l-build"]["statements"] == [{"kind": "claim", "id": "says-build"}]
    assert found["l-check"]["kind"] == "moved"
    text = scene.run("drift", *ends).stdout
    assert "RD301 l-build: changed -> pkg/mod.py:" in text
    assert "claim says-build depends on it" in text
    same = scene.run("drift", "--from", scene.git("main"), "--to", scene.git(scene.pinned))
    assert same.exit_code == 0


REFUSED = [
    (("check", "--upstream", "nobody=dir:."), "is not an upstream of these cards"),
    (("check", "--upstream", "some/where=git:{git}/refs"), "is not a readable git repository"),
    (("check", "--upstream", "other/name=git:{git}"), "is not an upstream of these cards"),
    (("check", "--upstream", "lm"), "is not NAME=SPEC"),
    (("check", "nobody"), "no such skill"),
    (("lock",), "needs a checkout of some/where"),
    (("lock", "--upstream", "some/where=dir:{git}"), "is a folder, which is not a version"),
    (("drift", "--from", "dir:{git}", "--to", "git:{git}@main"), "has none of the cards' anchors"),
]


@pytest.mark.parametrize(("arguments", "problem"), REFUSED)
def test_bad_input_is_one_line(scene: Scene, arguments: tuple[str, ...], problem: str) -> None:
    said = scene.refused(*(part.format(git=scene.repository) for part in arguments))
    assert problem in said


@pytest.mark.parametrize("text", ["", "[]", "{", '{"version": 2}', "[" * 5000, "\0"])
def test_a_broken_lock_is_one_line(scene: Scene, text: str) -> None:
    scene.lock.write_text(text)
    assert "anchors.lock" in scene.refused("check")


def test_proofs_of_repository_anchors_run_when_there_is_a_checkout(scene: Scene) -> None:
    fill_cache(scene.skill.cache)
    without = scene.skill.verdicts()[1]
    assert without["says-build"]["verdict"] == "not-here"
    code, found, _ = scene.skill.verdicts("--upstream", f"some/where={scene.git()}")
    assert (code, found["says-build"]["verdict"]) == (0, "proven")
    record = json.dumps(found["says-build"])
    assert scene.pinned in record and os.fspath(scene.repository) not in record
    other = scene.skill.prove("--upstream", f"lm={scene.git('later')}")
    assert other.returncode == 2 and "and the card names" in other.stderr
    package = scene.skill.prove("--upstream", f"demo={scene.git('main')}")
    assert package.returncode == 2 and "proven from its wheel" in package.stderr
