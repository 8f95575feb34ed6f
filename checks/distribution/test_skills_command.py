"""``ringproof skills``: what is copied, and what is left alone."""

from __future__ import annotations

import errno
import json
import os
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from checks.action.installed import ROOT
from checks.running import contents, ringproof
from ringproof.cli.main import app
from ringproof.errors import InputError
from ringproof.installing import MANIFEST, planned, refuse_changed, remove
from ringproof.installing import install as install_planned
from ringproof.shipped import shipped_skills

NAME = "hierarchical-context-parallel"


def skills(*words: str) -> Result:
    return CliRunner().invoke(app, ["skills", *words])


def install(into: Path, *words: str) -> Result:
    return skills("install", "--skills", str(ROOT / "skills"), "--into", str(into), *words)


def without_evals(name: str) -> dict[str, bytes]:
    """The files of a skill, without the questions and answers for evaluating it."""
    found = contents(ROOT / "skills" / name)
    kept = {path: text for path, text in found.items() if not path.startswith("evals")}
    assert len(kept) < len(found), "this skill has evals"
    return kept


def test_a_skill_is_copied_whole_and_once_for_agents_that_share_a_folder(tmp_path: Path) -> None:
    done = install(tmp_path, NAME, "--agent", "cursor", "--agent", "codex", "--json", "-")
    path = tmp_path / ".agents" / "skills" / NAME
    row = {"name": NAME, "path": str(path), "result": "installed"}
    assert json.loads(done.stdout)["skills"] == [row]
    assert contents(path) == without_evals(NAME)
    there = sorted(entry.name for entry in path.parent.iterdir())
    assert there == [".ringproof.json", NAME], "no temporary folder stays"
    assert path.joinpath("SKILL.md").stat().st_mode & 0o777 == 0o644


def test_what_somebody_changed_stays_without_force(tmp_path: Path) -> None:
    assert install(tmp_path, NAME, "--agent", "claude").exit_code == 0
    changed = tmp_path / ".claude" / "skills" / NAME / "SKILL.md"
    own = changed.with_name("notes.md")
    for path, what in ((changed, "SKILL.md"), (own, "notes.md")):
        path.write_text("my own words\n", encoding="utf-8")
        before = contents(tmp_path)
        refused = install(tmp_path, "--agent", "claude")
        assert isinstance(refused.exception, InputError) and what in str(refused.exception)
        assert contents(tmp_path) == before, "and no other skill was installed either"
        assert "replaced" in install(tmp_path, "--agent", "claude", "--force").stdout
        assert contents(changed.parent) == without_evals(NAME)
        for other in tmp_path.glob(".claude/skills/d*"):
            other.rename(tmp_path / f"{other.name}-{what}")
    assert "is there already" in install(tmp_path, NAME, "--agent", "claude").stdout


def test_a_link_is_replaced_and_what_it_leads_to_stays(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "SKILL.md").write_text("theirs", encoding="utf-8")
    link = tmp_path / ".claude" / "skills" / NAME
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere, target_is_directory=True)
    assert isinstance(install(tmp_path, NAME, "--agent", "claude").exception, InputError)
    assert install(tmp_path, NAME, "--agent", "claude", "--force").exit_code == 0
    assert not link.is_symlink()
    assert contents(elsewhere) == {"SKILL.md": b"theirs"}


def test_an_interrupted_copy_leaves_the_old_skill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert install(tmp_path, NAME, "--agent", "claude").exit_code == 0
    path = tmp_path / ".claude" / "skills" / NAME
    (path / "SKILL.md").write_text("old", encoding="utf-8")
    before = contents(tmp_path)
    rename = Path.rename

    def full(self: Path, target: Path) -> Path:
        if self.name == "new":
            raise OSError(errno.ENOSPC, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", full)
    done = install(tmp_path, NAME, "--agent", "claude", "--force")
    assert isinstance(done.exception, InputError)
    assert "cannot be written (No space left on device)" in str(done.exception)
    assert contents(tmp_path) == before


def made_skill(folder: Path) -> Path:
    skill = folder / "from" / "skill"
    (skill / "references").mkdir(parents=True)
    (skill / "SKILL.md").write_text("one\n", encoding="utf-8")
    (skill / "references" / "more.md").write_text("more\n", encoding="utf-8")
    return skill


def test_a_link_leads_no_command_out_of_the_project(tmp_path: Path) -> None:
    project, outside = tmp_path / "project", tmp_path / "outside"
    for folder in (project, outside):
        folder.mkdir()
    assert install(outside, NAME, "--agent", "claude").exit_code == 0
    (project / ".claude").symlink_to(outside / ".claude")
    before = contents(outside)
    into = ("--into", str(project))
    for done in (
        install(project, "--agent", "claude"),
        skills("update", "--skills", str(ROOT / "skills"), *into),
        skills("remove", *into),
    ):
        assert isinstance(done.exception, InputError)
        assert "leads out of the project" in str(done.exception)
    assert contents(outside) == before
    (project / ".claude").unlink()
    (project / "inside").mkdir()
    (project / ".claude").symlink_to("inside")
    assert install(project, NAME, "--agent", "claude").exit_code == 0


@pytest.mark.parametrize("kind", ["file", "folder", "loop", "dangling", "pipe"])
def test_what_is_not_a_regular_file_is_not_copied(tmp_path: Path, kind: str) -> None:
    skill = made_skill(tmp_path)
    (tmp_path / "id_rsa").write_text("private", encoding="utf-8")
    place = skill / "references" / "key"
    leads = {"file": tmp_path / "id_rsa", "folder": tmp_path, "loop": skill, "dangling": "none"}
    os.mkfifo(place) if kind == "pipe" else place.symlink_to(leads[kind])
    with pytest.raises(InputError, match="is not a regular file"):
        planned(skill, tmp_path / "to" / "skill")


def test_too_large_a_skill_is_refused(tmp_path: Path) -> None:
    skill = made_skill(tmp_path)
    with (skill / "large").open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(InputError, match="make the skill smaller"):
        planned(skill, tmp_path / "to" / "skill")


def test_an_older_release_is_told_from_what_somebody_changed(tmp_path: Path) -> None:
    skill, target = made_skill(tmp_path), tmp_path / "to" / "skill"
    install_planned(planned(skill, target))
    assert planned(skill, target).state == "same"
    (skill / "SKILL.md").write_text("two\n", encoding="utf-8")
    assert planned(skill, target).state == "older"
    refuse_changed([planned(skill, target)])
    (target / "references" / "more.md").write_text("mine\n", encoding="utf-8")
    assert planned(skill, target).state == "changed"
    with pytest.raises(InputError, match=r"SKILL\.md, references/more\.md"):
        refuse_changed([planned(skill, target)])
    (target.parent / ".ringproof.json").write_text("[" * 100_000, encoding="utf-8")
    assert planned(skill, target).state == "changed", "nothing is known about it"


def test_installed_skills_are_updated_and_removed(tmp_path: Path) -> None:
    """All that was installed, for every agent, and not what somebody changed or put there."""
    into = ("--into", str(tmp_path))
    assert install(tmp_path, "--agent", "claude", "--agent", "codex").exit_code == 0
    here, there = (tmp_path / agent / "skills" for agent in (".claude", ".agents"))
    own = here / "own" / "SKILL.md"
    own.parent.mkdir()
    own.write_text("mine", encoding="utf-8")
    whole = contents(tmp_path)
    older = there / NAME / "SKILL.md"
    older.write_text("as an older release had it", encoding="utf-8")
    manifest = json.loads((there / MANIFEST).read_text())
    manifest["skills"][NAME]["SKILL.md"] = sha256(older.read_bytes()).hexdigest()
    for name in ("../../.claude/skills/own", "", ".", ".."):
        manifest["skills"][name] = {}
    (there / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    update = ("update", "--skills", str(ROOT / "skills"), *into)
    updated = skills(*update)
    assert updated.exit_code == 0 and updated.stdout.count("updated") == 1
    assert older.read_bytes() == whole[older.relative_to(tmp_path).as_posix()]
    (here / NAME / "SKILL.md").write_text("my words", encoding="utf-8")
    left = skills(*update)
    assert left.exit_code == 1 and left.stdout.count("was changed and is left alone") == 1
    before = contents(tmp_path)
    refused = skills("remove", *into)
    assert isinstance(refused.exception, InputError) and "--force" in str(refused.exception)
    assert contents(tmp_path) == before
    assert skills(*update, "--force").exit_code == 0
    assert older.read_bytes() == (here / NAME / "SKILL.md").read_bytes()
    assert skills("remove", NAME, *into).stdout.count(": removed") == 2
    assert not (here / NAME).exists() and len(list(here.glob("*/SKILL.md"))) == 3
    assert skills("remove", *into).exit_code == 0
    assert list(contents(tmp_path)) == [own.relative_to(tmp_path).as_posix()]
    for words in (("remove", *into), update, ("remove", "own", *into)):
        missing = skills(*words).exception
        assert isinstance(missing, InputError) and "skills install" in str(missing)


def test_removing_follows_no_link(tmp_path: Path) -> None:
    assert install(tmp_path, NAME, "--agent", "claude").exit_code == 0
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (tmp_path / ".claude" / "skills" / NAME / "SKILL.md").rename(tmp_path / "kept" / "SKILL.md")
    place = tmp_path / ".claude" / "skills" / NAME
    place.rename(tmp_path / "moved")
    place.symlink_to(tmp_path / "kept")
    assert skills("remove", "--into", str(tmp_path)).exit_code == 1, "it was changed"
    assert skills("remove", "--into", str(tmp_path), "--force").exit_code == 0
    assert not place.is_symlink() and (tmp_path / "kept" / "file").exists()


@pytest.mark.parametrize("place", ["evals/mine.json", "__pycache__/notes.md"])
def test_what_somebody_added_is_not_removed_without_force(tmp_path: Path, place: str) -> None:
    assert install(tmp_path, NAME, "--agent", "claude").exit_code == 0
    skill = tmp_path / ".claude" / "skills" / NAME
    bytecode = skill / "__pycache__" / "tool.cpython-311.pyc"
    bytecode.parent.mkdir()
    bytecode.touch()
    update = ("update", "--skills", str(ROOT / "skills"), "--into", str(tmp_path))
    assert skills(*update).exit_code == 0, "bytecode is not a change"
    own = skill / place
    own.parent.mkdir(exist_ok=True)
    own.write_text("mine", encoding="utf-8")
    for words in (update, ("remove", "--into", str(tmp_path))):
        assert skills(*words).exit_code == 1
        assert own.read_text(encoding="utf-8") == "mine"
    assert skills("remove", "--into", str(tmp_path), "--force").exit_code == 0
    assert not skill.exists()


def test_a_skill_that_was_removed_meanwhile_is_no_error(tmp_path: Path) -> None:
    skill, folder = made_skill(tmp_path), tmp_path / "to"
    targets = [folder / f"skill-{number}" for number in range(8)]
    for target in targets:
        install_planned(planned(skill, target))
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: remove(targets, force=False), range(8)))
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_manifest_names_no_folder_above(tmp_path: Path, name: str) -> None:
    own = tmp_path / ".claude" / "skills" / "own" / "SKILL.md"
    own.parent.mkdir(parents=True)
    own.touch()
    manifest = own.parents[1] / MANIFEST
    manifest.write_text(json.dumps({"skills": {name: {}}}), encoding="utf-8")
    refused = skills("remove", "--into", str(tmp_path), "--force").exception
    assert isinstance(refused, InputError) and "no skill was installed" in str(refused)
    assert own.exists()


def test_a_pipe_in_the_place_of_the_manifest_is_not_waited_for(tmp_path: Path) -> None:
    manifest = tmp_path / ".claude" / "skills" / MANIFEST
    manifest.parent.mkdir(parents=True)
    os.mkfifo(manifest)
    done = ringproof("skills", "remove", cwd=tmp_path, timeout=60)
    assert done.returncode == 2 and "no skill was installed" in done.stderr


def test_a_skill_that_this_release_lacks_is_named(tmp_path: Path) -> None:
    target = tmp_path / ".claude" / "skills" / "skill"
    install_planned(planned(made_skill(tmp_path), target))
    done = skills("update", "--skills", str(ROOT / "skills"), "--into", str(tmp_path))
    assert done.exit_code == 0
    assert done.stdout == f"{target}: is not in this release and is left alone\n"


def test_two_installations_at_once_lose_nothing(tmp_path: Path) -> None:
    skill, folder = made_skill(tmp_path), tmp_path / "to"
    plans = [planned(skill, folder / f"skill-{number}") for number in range(24)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(install_planned, plans))
    assert len(json.loads((folder / ".ringproof.json").read_text())["skills"]) == len(plans)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("show", "nothing"), "no such skill"),
        (("show", NAME, "../../README.md"), "is not in the skill"),
        (("show", NAME, "none.md"), "choose from LICENSE, SKILL.md, evals/evals.json"),
        (("install", "--agent", "clippy"), "use one of claude, "),
        (("install", "--agent", "claude", "--into", "none"), "is not a folder"),
        (("install", "nothing", "--agent", "claude"), "no such skill"),
    ],
)
def test_bad_input_is_refused(
    words: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = skills(*words, "--skills", str(ROOT / "skills"))
    assert isinstance(done.exception, InputError)
    assert said in str(done.exception)
    assert list(tmp_path.iterdir()) == []


def test_the_skills_of_the_installation_are_found_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of this name without cards of ours, as upstream has one, is passed over."""
    monkeypatch.chdir(tmp_path)
    theirs = tmp_path / "skills" / "theirs"
    theirs.mkdir(parents=True)
    (theirs / "SKILL.md").write_text("x", encoding="utf-8")
    (theirs / "card.yaml").write_text("title: theirs\nevidence: [x]\n", encoding="utf-8")
    (tmp_path / "skills" / "odd" / "card.yaml").mkdir(parents=True)
    assert NAME in skills("list").stdout
    named = CliRunner().invoke(app, ["skills", "list", "--skills", "skills"])
    assert isinstance(named.exception, InputError)


def test_where_they_are_shipped(tmp_path: Path) -> None:
    assert shipped_skills() == ROOT / "skills"
    package = tmp_path / "site-packages" / "ringproof"
    package.mkdir(parents=True)
    assert shipped_skills(package) is None
    for name in ("skills", "cards"):
        (package / "_checkout" / name).mkdir(parents=True)
    assert shipped_skills(package) == package / "_checkout" / "skills"
