"""What a rehearsal of a command of a skill shows."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from ringproof.cards import Card
from ringproof.cli.main import app
from ringproof.rehearsal.protocol.program import Upstream


@dataclass(frozen=True)
class Shown:
    """What ``ringproof rehearse`` shows of a command that passes: text, JSON, and its folder."""

    printed: str
    data: dict[str, Any]
    folder: Path

    def check_markers(self, card: Card, *names: str) -> None:
        """Assert that the logs of the launch have a line of each of these markers."""
        log = "".join(file.read_text() for file in self.folder.rglob("program/rank-*.log"))
        patterns = {marker.id: marker.pattern for marker in card.markers}
        assert [name for name in names if not re.search(patterns[name], log)] == []


def rehearsed(command: str, upstream: Upstream, folder: Path) -> Shown:
    """Rehearse a command of a skill, which has to pass."""
    assert "..." not in command
    (folder / "train.sh").write_text(command, encoding="utf-8")
    there = ("--upstream", str(upstream.megatron), "--te", str(upstream.engine))
    files = ("--json", str(folder / "out.json"), "--out", str(folder / "kept"))
    done = CliRunner().invoke(app, ["rehearse", str(folder / "train.sh"), *there, *files])
    assert done.exit_code == 0, done.output[-3000:]
    data = json.loads((folder / "out.json").read_text(encoding="utf-8"))
    assert data["passed"]
    assert data["needs"] == {}, "a reader may lack what a stand-in computed for"
    return Shown(done.output, data, folder / "kept")
