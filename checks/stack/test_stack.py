"""`ringproof stack` on made-up trees: what holds there, and that unknown code never holds."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from checks.anchors.gitrepo import commit, make_repository
from checks.running import run_here
from ringproof.stack.assess import StatementStatus

Run = Callable[..., tuple[int, dict[str, Any]]]

STATE = "megatron/core/parallel_state.py"
CONFIG = "megatron/core/config.py"
FIRST = {
    STATE: "def make_groups(sizes):\n    return sorted(sizes)\n",
    CONFIG: "class Config:\n    hybrid: bool = False\n    budget: int = 1\n",
    "megatron/core/package_info.py": "MAJOR = 1\nMINOR = 2\nPATCH = 3\nPRE_RELEASE = 'rc0'\n",
}
SECOND = {
    **FIRST,
    CONFIG: "class Config:\n    dynamic: bool = False\n    budget: int = 1\n",
}
CARD: Mapping[str, Any] = YAML(typ="safe", pure=True).load(f"""
title: demo
summary: What it is.
validated_on: '2026-11-20'
upstreams:
  old: {{repo: NVIDIA/Megatron-LM, ref: old, commit: {"a" * 40}}}
  new: {{repo: NVIDIA/Megatron-LM, ref: new, commit: {"b" * 40}}}
lines:
- {{id: hybrid, repo: NVIDIA/Megatron-LM, says: The old form., trains: false,
   because: nothing calls it., upstreams: [old], probe: [
   {{path: {CONFIG}, symbol: Config.hybrid}},
   {{path: {CONFIG}, symbol: Config.dynamic, absent: true}}]}}
- {{id: dynamic, repo: NVIDIA/Megatron-LM, says: The new form., trains: true, upstreams: [new],
   probe: [{{path: {CONFIG}, symbol: Config.dynamic, expects: [bool]}}]}}
- {{id: coming, repo: NVIDIA/Megatron-LM, says: What is announced., trains: true,
   unread: not published,
   probe: [{{path: megatron/core/groups.py}}, {{path: {CONFIG}, absent: true}}]}}
anchors:
- {{id: groups, upstream: new, path: {STATE}, symbol: make_groups, role: r, expects: [sizes]}}
- {{id: switch, upstream: new, path: {CONFIG}, symbol: Config.dynamic, role: r}}
- {{id: old-switch, upstream: old, path: {CONFIG}, symbol: Config.hybrid, role: r}}
claims:
- {{id: sorted, says: Groups are sorted., proof: 'anchor:groups'}}
- {{id: switched, says: It is off., proof: 'anchor:switch'}}
- {{id: was, says: It was off., proof: 'anchor:old-switch'}}
- {{id: fast, says: It is fast., proof: 'unproven: why', lines: [dynamic]}}
- {{id: trained, says: It trains., proof: checks/t.py, lines: [dynamic]}}
- {{id: later, says: It will., proof: 'unproven: not published', lines: coming}}
""")


def tree(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run `ringproof stack` beside a card that was checked at the first and the second tree."""
    upstreams, given = {}, []
    for name, files in (("old", FIRST), ("new", SECOND)):
        folder = tree(tmp_path / "checked" / name, files)
        made = commit(make_repository(folder, bare=False), files)
        upstreams[name] = {"repo": "NVIDIA/Megatron-LM", "ref": name, "commit": made}
        given += ["--upstream", f"{name}=git:checked/{name}"]
    write_card(tmp_path, {**CARD, "upstreams": upstreams})
    locked = run_here(tmp_path, ["anchors", "lock", *given])
    assert locked.returncode == 0, locked.stderr
    verdicts = {claim["id"]: "proven" for claim in CARD["claims"]} | {"fast": "unproven"}
    record = {"claims": [{"id": name, "verdict": said} for name, said in verdicts.items()]}
    (tmp_path / "evidence" / "cpu").mkdir(parents=True)
    (tmp_path / "evidence" / "cpu" / "demo.json").write_text(json.dumps(record))

    def stack(*arguments: str) -> tuple[int, dict[str, Any]]:
        given = [word for name in arguments for word in ("--upstream", name)]
        done = run_here(tmp_path, ["stack", *given, "--json", "-"])
        return done.returncode, json.loads(done.stdout)

    return stack


def write_card(root: Path, data: Mapping[str, Any]) -> None:
    (root / "skills" / "demo").mkdir(parents=True, exist_ok=True)
    (root / "skills" / "demo" / "SKILL.md").write_text("x")
    (root / "cards" / "demo").mkdir(parents=True, exist_ok=True)
    with (root / "cards" / "demo" / "card.yaml").open("w") as stream:
        YAML(typ="safe", pure=True).dump(json.loads(json.dumps(data)), stream)


def standings(data: Mapping[str, Any]) -> dict[str, str]:
    (product,) = data["products"]
    return {item["id"]: item["standing"] for item in product["skills"][0]["statements"]}


def test_a_checked_tree_holds(run: Run, tmp_path: Path) -> None:
    code, data = run("checked/new")
    assert (code, data["products"][0]["version"]) == (0, "1.2.3rc0")
    assert data["products"][0]["skills"][0]["line"] == "dynamic"
    assert standings(data) == {
        "sorted": "holds", "switched": "holds", "trained": "holds", "fast": "not checked",
    }  # fmt: skip
    assert "cannot train" in run("checked/old")[1]["training"][0]
    assert standings(run("checked/old")[1]) == {"was": "holds"}


def test_standings_are_explained_where_they_are_first_seen(run: Run, tmp_path: Path) -> None:
    lines = run_here(tmp_path, ["stack", "--upstream", "checked/new"]).stdout.splitlines()
    assert lines[0] == "verdict: the lines of the code are known, and no statement is broken"
    legend = lines[lines.index("") + 1 :]
    assert [line.split(": ")[0] for line in legend[:4]] == [one.value for one in StatementStatus]
    assert legend.index("") == 4


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        (STATE, "def make_groups(sizes):\n    return list(sizes)\n", "changed"),
        (STATE, "def make_groups(numbers):\n    return sorted(numbers)\n", "broken"),
        (STATE, "def build_groups(sizes):\n    return sorted(sizes)\n", "broken"),
    ],
    ids=["changed", "expectation-gone", "renamed"],
)
def test_other_code_is_never_said_to_hold(
    run: Run, tmp_path: Path, path: str, text: str, expected: str
) -> None:
    tree(tmp_path / "future", {**SECOND, path: text})
    code, data = run("future")
    found = standings(data)
    assert found["sorted"] == expected
    assert found["switched"] == "holds", "its own code is as it was"
    assert found["trained"] == "not checked", "it names no code, and some code differs"
    assert code == (expected == "broken")
    nearest = data["products"][0]["skills"][0]["nearest"]
    assert (nearest["upstream"], nearest["differing"]) == ("new", ["groups"])


def test_an_anchor_that_did_not_hold_where_it_was_checked_shows_nothing(
    run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "cards" / "demo" / "anchors.lock"
    lock = json.loads(path.read_text())
    lock["anchors"]["groups"]["places"]["new"]["missing"] = 1
    path.write_text(json.dumps(lock))
    assert standings(run("checked/new")[1])["sorted"] == "not checked"


@pytest.mark.parametrize(
    "config",
    [
        "class Config:\n    renamed: bool = False\n",
        "class Config:\n    dynamic: int = 1\n",
        None,
    ],
    ids=["renamed-flag", "other-type", "deleted-file"],
)
def test_an_unknown_line_has_no_verdicts(run: Run, tmp_path: Path, config: str | None) -> None:
    files = {name: text for name, text in SECOND.items() if name != CONFIG}
    tree(tmp_path / "future", files if config is None else {**files, CONFIG: config})
    code, data = run("future")
    assert code == 1
    assert standings(data) == {}
    assert data["products"][0]["skills"][0]["line"] is None
    assert data["training"] == ["demo: not checked"]


def test_an_announced_line_is_recognised_and_not_checked(run: Run, tmp_path: Path) -> None:
    files = {name: text for name, text in SECOND.items() if name != CONFIG}
    tree(tmp_path / "future", {**files, "megatron/core/groups.py": ""})
    code, data = run("future")
    assert (code, standings(data)) == (0, {"later": "not checked"})


def test_probes_that_overlap_are_a_defect_of_the_card(run: Run, tmp_path: Path) -> None:
    lines = [*CARD["lines"], {**CARD["lines"][1], "id": "twin", "upstreams": [], "unread": "x"}]
    write_card(tmp_path, {**CARD, "lines": lines})
    code, data = run("checked/new")
    assert code == 1
    assert data["products"][0]["skills"][0]["lines"] == ["dynamic", "twin"]


def test_a_wheel_is_a_tree(run: Run, tmp_path: Path) -> None:
    code, data = run(_wheel(tmp_path, SECOND), "checked/old")
    assert code == 0
    assert [item["skills"][0]["line"] for item in data["products"]] == ["dynamic", "hybrid"]


def _wheel(root: Path, files: Mapping[str, str]) -> str:
    name = "megatron_core-9.9-py3-none-any.whl"
    with zipfile.ZipFile(root / name, "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
    return name


@pytest.mark.parametrize(
    ("path", "standing"),
    [("pretrain.py", "not checked"), ("megatron/programs/a.py", "not checked"), (STATE, "broken")],
    ids=["at-the-root", "folder-that-packages-lack", "in-the-package"],
)
def test_a_file_that_packages_do_not_hold_is_not_broken(
    tmp_path: Path, path: str, standing: str
) -> None:
    files = {**FIRST, path: FIRST[STATE]}
    made = commit(make_repository(tree(tmp_path / "checked", files), bare=False), files)
    old = {"repo": "NVIDIA/Megatron-LM", "ref": "old", "commit": made}
    anchor = {**CARD["anchors"][0], "upstream": "old", "path": path}
    claim = {**CARD["claims"][0], "lines": ["hybrid"]}
    write_card(
        tmp_path,
        {
            **CARD, "upstreams": {"old": old}, "lines": [CARD["lines"][0]], "anchors": [anchor],
            "claims": [claim],
        },
    )  # fmt: skip
    locked = run_here(tmp_path, ["anchors", "lock", "--upstream", "old=git:checked"])
    assert locked.returncode == 0, locked.stderr
    held = {name: text for name, text in FIRST.items() if name != path}
    if path == STATE:  # by which the product is recognised
        held[STATE] = "def build_groups(sizes):\n    return sizes\n"
    for given, found in (
        (_wheel(tmp_path, held), standing),
        (tree(tmp_path / "x", held), "broken"),
    ):
        done = run_here(tmp_path, ["stack", "--upstream", str(given), "--json", "-"])
        assert standings(json.loads(done.stdout)) == {"sorted": found}


def test_a_release_is_compared_with_releases(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "cards" / "demo" / "card.yaml"
    card = YAML(typ="safe", pure=True).load(path.read_text())
    lock_path = path.with_name("anchors.lock")
    lock = json.loads(lock_path.read_text())
    released = {**card["upstreams"]["old"], "ref": "core_v1.0"}
    line = {**card["lines"][1], "upstreams": ["new", "released"]}
    write_card(
        tmp_path,
        {
            **card,
            "upstreams": {**card["upstreams"], "released": released},
            "lines": [card["lines"][0], line, *card["lines"][2:]],
        },
    )
    places = lock["anchors"]["groups"]["places"]
    places["released"] = {**places["new"], "fingerprint": "0" * len(places["new"]["fingerprint"])}
    lock_path.write_text(json.dumps(lock))

    def nearest(given: str) -> str:
        found: str = run(given)[1]["products"][0]["skills"][0]["nearest"]["upstream"]
        return found

    assert nearest("checked/new") == "new"
    assert nearest(_wheel(tmp_path, SECOND)) == "released"


def test_where_a_feature_cannot_train_it_is_said_where_it_can(run: Run, tmp_path: Path) -> None:
    found = run("checked/old")[1]["products"][0]["skills"][0]["trains_on"]
    assert [name.split(" ")[0] for name in found] == ["new"]
    said = run_here(tmp_path, ["stack", "--upstream", "checked/old"]).stdout
    assert f"can train: {found[0]}" in said
    assert run("checked/new")[1]["products"][0]["skills"][0]["trains_on"] == []


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("megatron-core==0.0.1", "is not in the cache"),
        ("absent", "is not a folder, a wheel or a spec"),
        ("skills", "holds none of NVIDIA/Megatron-LM"),
        ("broken.whl", "is not a readable wheel"),
        ("pip:megatron-core", "names no exact release"),
    ],
)
def test_bad_input_is_one_line(run: Run, tmp_path: Path, argument: str, words: str) -> None:
    (tmp_path / "broken.whl").write_text("x")
    done = run_here(tmp_path, ["stack", "--upstream", argument, "--offline", "--cache", "kept"])
    assert done.returncode == 2
    assert words in done.stderr and done.stderr.count("\n") == 1


def test_nothing_installed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.distributions", lambda **_: ())
    done = run_here(tmp_path, ["stack"])
    assert done.returncode == 2
    assert "installed in this environment" in done.stderr
