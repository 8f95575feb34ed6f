"""Programs of npm, in the versions that the Makefile pins, from npm's cache."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from checks.running import ran

ROOT = Path(__file__).parents[2]
PINNED = re.compile(r"^CLIENTS := (.+)$", re.MULTILINE)
LISTED = "command -v node && readlink -f $(command -v skills)"


@dataclass(frozen=True)
class Clients:
    """Where they are.

    Attributes:
        node: Node of the version that the client ``skills`` needs.
        modules: Folder of the installed packages.
    """

    node: str
    modules: Path


def pinned() -> list[str]:
    """The options of npx that name packages and versions."""
    found = PINNED.search((ROOT / "Makefile").read_text(encoding="utf-8"))
    assert found is not None
    return found[1].split()


def find_clients() -> Clients:
    """Find them, or skip the test where `make clients` did not fetch them."""
    npx = shutil.which("npx")
    if npx is None:
        pytest.skip("npx is not installed")
    done = ran(npx, "--offline", "-y", *pinned(), "--", "sh", "-c", LISTED)
    lines = done.stdout.split()
    if done.returncode or len(lines) != 2:
        pytest.skip("programs of npm are not in its cache: run `make clients`")
    return Clients(lines[0], Path(lines[1]).parents[2])
