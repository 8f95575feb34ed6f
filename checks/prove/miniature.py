"""A repository in miniature: a skill, tests of every fate, and ``ringproof prove`` over it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest import mock

from ruamel.yaml import YAML

from checks.anchors.wheelhouse import fill_cache
from checks.running import run_here

HEAD: Mapping[str, Any] = MappingProxyType(
    {
        "title": "demo",
        "summary": "A <b>demonstration</b>.",
        "validated_on": "2026-11-20",
        "upstreams": {
            "demo": {"package": "demo-upstream", "version": "1.0"},
            "lm": {"repo": "NVIDIA/Megatron-LM", "ref": "main", "commit": "d" * 40},
        },
    }
)


def claim(name: str, *proof: str) -> dict[str, Any]:
    return {"id": name, "says": f"{name} is so", "proof": list(proof)}


def anchor(
    name: str, symbol: str = "build", *expects: str, upstream: str = "demo"
) -> dict[str, Any]:
    return {
        "id": name,
        "upstream": upstream,
        "path": "pkg/mod.py",
        "symbol": symbol,
        "role": "a place",
        "expects": list(expects),
    }


@dataclass(frozen=True)
class Miniature:
    """The repository's root; its wheel cache is filled, so nothing is downloaded."""

    root: Path

    def card(self, skill: str = "demo", **keys: Any) -> Path:
        path = self.root / "skills" / skill / "card.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name("SKILL.md").write_text("x")
        with path.open("w") as stream:
            YAML(typ="safe", pure=True).dump({**HEAD, **keys}, stream)
        return path

    def file(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    @property
    def cache(self) -> Path:
        return self.root / ".cache"

    def command(self, *arguments: str) -> list[str]:
        """Return the command; it divides tests among processes only if it gets ``--jobs``.

        Starting two more processes costs two seconds, a hundred times what the tests take.
        """
        prove = [sys.executable, "-m", "ringproof", "prove", "--cache", str(self.cache)]
        return [*prove, "--offline", "--jobs", "1", *arguments]

    def prove(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command in this process, from the repository's root, and capture its output.

        One process runs the tests without the plugins that are installed, half of what it imports.
        """
        _, _, _, *words = self.command(*arguments)
        alone = {} if "--jobs" in arguments else {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        with mock.patch.dict(os.environ, alone):
            return run_here(self.root, words)

    def verdicts(self, *arguments: str) -> tuple[int, dict[str, dict[str, Any]], dict[str, Any]]:
        """Exit code, claims by id, and the whole JSON."""
        done = self.prove("--json", "-", *arguments)
        assert done.stdout, done.stderr
        whole = json.loads(done.stdout)
        claims = {item["id"]: item for skill in whole["skills"] for item in skill["claims"]}
        return done.returncode, claims, whole


def miniature(root: Path) -> Miniature:
    made = Miniature(root)
    fill_cache(made.cache)
    # A root of its own, so that no settings from above apply.
    made.file("pytest.ini", "[pytest]\nmarkers = slow: takes long\n")
    return made
