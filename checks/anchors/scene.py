"""A skill with three anchors, its wheel in the cache, and the repository of its other upstream."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from click.testing import Result
from typer.testing import CliRunner

from checks.anchors.gitrepo import commit, make_repository
from checks.anchors.wheelhouse import SOURCES
from checks.prove.miniature import Miniature, anchor, claim, miniature
from ringproof.cli.anchors import app
from ringproof.cli.main import app as whole
from ringproof.errors import InputError

MODULE = str(SOURCES["pkg/mod.py"])
CHANGED = MODULE.replace("group_desc=None", "group_desc='x'")
ANCHORS = [
    anchor("l-build", "build", "group_desc", upstream="lm"),
    anchor("l-check", "Config.check", "ValueError", upstream="lm"),
    anchor("d-build", "build"),
]


@dataclass(frozen=True)
class Scene:
    """A skill, its wheel in the cache, and the repository its other upstream names."""

    skill: Miniature
    repository: Path
    pinned: str
    later: str

    def run(self, *arguments: str) -> Result:
        command, *rest = arguments
        options = ["--skills", str(self.skill.root / "skills"), "--cache", str(self.skill.cache)]
        return CliRunner().invoke(app, [command, *options, "--offline", *rest])

    def fences(self, *arguments: str) -> Result:
        options = ["--cache", str(self.skill.cache), "--offline"]
        return CliRunner().invoke(whole, ["fences", *options, *arguments])

    def refused(self, *arguments: str) -> str:
        error = self.run(*arguments).exception
        assert isinstance(error, InputError), error
        assert "\n" not in str(error)
        return str(error)

    def git(self, ref: str = "") -> str:
        return f"git:{self.repository}" + (f"@{ref}" if ref else "")

    @property
    def lock(self) -> Path:
        return self.skill.root / "skills" / "demo" / "anchors.lock"


def make_scene(tmp_path: Path) -> Scene:
    skill = miniature(tmp_path / "repo")
    repository = make_repository(tmp_path / "upstream")
    pinned = commit(repository, {"pkg/mod.py": MODULE})
    later = commit(repository, {"pkg/mod.py": "# above\n" + CHANGED}, ref="refs/heads/later")
    upstreams = {
        "demo": {"package": "demo-upstream", "version": "1.0", "repo": "some/where"},
        "lm": {"repo": "some/where", "ref": "main", "commit": pinned},
        "next": {"repo": "some/where", "ref": "later", "commit": later},
    }
    claims = [claim("says-build", "anchor:l-build")]
    skill.card(upstreams=upstreams, anchors=ANCHORS, claims=claims)
    return Scene(skill, tmp_path / "upstream", pinned, later)
