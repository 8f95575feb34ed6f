"""The wheel and the source archive: built, installed, and used outside of a checkout, offline."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from checks.action.installed import ROOT, declared, lent_packages
from checks.prove.miniature import HEAD, claim
from checks.running import ran
from hatch_build import PARTS
from ringproof.cards import ProofKind, find_cards, load_card, statements
from ringproof.prove.prove import NO_TESTS

pytestmark = pytest.mark.slow  # builds and installs the package

SKILL = "hierarchical-context-parallel"
TESTS, TEST = "checks/topology/test_hierarchy.py", "test_product_must_match"
SHIPPED = {"skills", "cards", "evidence", "checks", "smoke", "conftest.py", "pyproject.toml"}
NOT_SHIPPED = ("__pycache__", ".hypothesis", ".pytest_cache", ".git/", "build/")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of both archives; the wheel is made from the unpacked source archive."""
    folder = tmp_path_factory.mktemp("built")
    hatch = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run([*hatch, "-t", "sdist"], cwd=ROOT, check=True, capture_output=True)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        archive.extractall(folder / "unpacked")
    source = next((folder / "unpacked").iterdir())
    subprocess.run([*hatch, "-t", "wheel"], cwd=source, check=True, capture_output=True)
    return folder


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel, and an empty folder."""

    program: Path
    place: Path
    environment: dict[str, str]

    def run(self, *words: str, packages: Path | None = None) -> subprocess.CompletedProcess[str]:
        lent = {} if packages is None else {"PYTHONPATH": str(packages)}
        return ran(self.program, *words, cwd=self.place, env={**self.environment, **lent})


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """A fresh virtual environment with the wheel; the packages it declares are lent to it."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True
    )
    wheel = next(built.glob("*.whl"))
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "venv" / "bin" / "python")]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], check=True)
    (folder / "empty").mkdir()
    lent = lent_packages(folder / "lent", declared("project", "dependencies"))
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(lent),
    }
    return Installed(folder / "venv" / "bin" / "ringproof", folder / "empty", environment)


def test_the_wheel_holds_what_a_checkout_has(built: Path) -> None:
    names = zipfile.ZipFile(next(built.glob("*.whl"))).namelist()
    shipped = {name.removeprefix("ringproof/_checkout/") for name in names if "_checkout/" in name}
    tracked = ran("git", "ls-files", "-z", "--", *PARTS, cwd=ROOT, check=True).stdout
    assert set(filter(None, tracked.split("\0"))) <= shipped
    assert {name.split("/")[0] for name in shipped} >= SHIPPED
    assert not [name for name in names if any(part in name for part in NOT_SHIPPED)]
    for card in find_cards(ROOT / "skills").values():
        proofs = [proof for said in statements(load_card(card)) for proof in said.proofs]
        assert {p.file for p in proofs if p.kind is ProofKind.PYTEST} <= shipped


def test_descriptions_are_those_that_a_package_index_takes(built: Path) -> None:
    pytest.importorskip("twine", reason="twine is not installed; it is an extra of ringproof[dev]")
    archives = [str(path) for path in built.iterdir() if path.suffix in (".whl", ".gz")]
    assert len(archives) == 2
    done = ran(sys.executable, "-m", "twine", "check", "--strict", *archives)
    assert (done.returncode, done.stdout.count("PASSED")) == (0, 2), done.stdout + done.stderr


def test_commands_need_no_checkout_and_no_network(installed: Installed) -> None:
    listed = json.loads(installed.run("skills", "list", "--json", "-").stdout)["skills"]
    names = [row["name"] for row in listed]
    assert names == sorted(path.name for path in (ROOT / "skills").iterdir())
    for name in names:
        shown = installed.run("skills", "show", name)
        assert shown.stdout == (ROOT / "skills" / name / "SKILL.md").read_text(encoding="utf-8")
    placed = installed.run("skills", "install", "--agent", "claude", "--agent", "codex")
    assert placed.returncode == 0, placed.stderr
    for place in (".claude/skills", ".agents/skills"):
        linted = installed.run("lint", place)
        assert (linted.returncode, "3 skills" in linted.stdout) == (0, True), linted.stdout
    (installed.place / "train.sh").write_text(
        "torchrun --nproc-per-node 8 pretrain_gpt.py --context-parallel-size 8 "
        "--cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 2\n"
    )
    examined = installed.run("doctor", "--quick", "train.sh", "--offline", "--json", "-")
    assert examined.returncode == 1, examined.stderr
    assert "hierarchical" in examined.stdout


def test_prove_says_what_it_lacks(installed: Installed) -> None:
    """Without pytest no test runs, which is a problem of the run and refutes nothing."""
    done = installed.run("prove", SKILL, "--quick", "--offline")
    assert done.returncode == 1
    assert (
        "pytest is not installed; without a GPU run first: pip install torch --index-url"
        in done.stdout
    )
    assert NO_TESTS not in done.stdout, "the tests are in the wheel"
    assert "refuted" not in done.stdout.replace("nothing refuted", "")
    assert not list(installed.program.parents[1].rglob(".hypothesis"))


def test_prove_runs_the_tests_of_the_wheel(installed: Installed, tmp_path: Path) -> None:
    """With a card of two statements in place of a skill's, which takes minutes."""
    shipped = next(installed.program.parents[1].rglob("_checkout"))
    with (shipped / "cards" / SKILL / "card.yaml").open("w", encoding="utf-8") as stream:
        claims = [claim("right", f"{TESTS}::{TEST}"), claim("wrong", f"{TESTS}::none")]
        YAML(typ="safe", pure=True).dump({**HEAD, "claims": claims}, stream)
    before = {path: path.stat().st_mtime_ns for path in shipped.rglob("*")}
    needed = [*declared("project", "dependencies"), *declared("optional", "prove")]
    lent = lent_packages(tmp_path / "lent", needed)
    done = installed.run("prove", SKILL, "--offline", "--jobs", "1", packages=lent)
    assert done.returncode == 1, done.stdout + done.stderr
    record = json.loads((installed.place / f"build/prove/{SKILL}.json").read_text())
    verdicts = {row["id"]: row["verdict"] for row in record["claims"]}
    assert verdicts == {"right": "proven", "wrong": "refuted"}, done.stdout
    assert {path: path.stat().st_mtime_ns for path in shipped.rglob("*")} == before
