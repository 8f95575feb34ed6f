"""Installing this ringproof elsewhere without a network: for the hooks and the action."""

from __future__ import annotations

import os
import shutil
import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PARTS = (
    "pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "action.yml",
    ".pre-commit-hooks.yaml",
)  # fmt: skip


def copy_of_ringproof(folder: Path) -> Path:
    """A copy of what is needed to install it."""
    folder.mkdir(parents=True)
    for name in PARTS:
        shutil.copy(ROOT / name, folder)
    leave = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src", folder / "src", ignore=leave)
    return folder


def declared(part: str, key: str) -> list[str]:
    """A list of requirements of ``pyproject.toml``; those of an extra are ``optional``."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    parts = {**settings, "optional": settings["project"]["optional-dependencies"]}
    entries: list[str] = parts[part][key]
    return entries


def closure(requirements: list[str]) -> frozenset[str]:
    """The names of packages that are required, and what they require in turn."""
    pending = list(requirements)
    found: set[str] = set()
    while pending:
        requirement = Requirement(pending.pop())
        name = canonicalize_name(requirement.name)
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if applies and name not in found:
            found.add(name)
            pending += metadata.requires(name) or []
    return frozenset(found)


def lent_packages(folder: Path, requirements: list[str]) -> Path:
    """A folder of links to required packages as they are installed here, and to no others."""
    folder.mkdir(parents=True)
    for name in closure(requirements):
        distribution = metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            link = folder / top
            if not link.exists():
                link.symlink_to(Path(str(distribution.locate_file(top))))
    return folder


def offline_environment(folder: Path) -> dict[str, str]:
    """Variables under which ``pip install`` of ringproof takes seconds and no network.

    Dependencies are lent through PYTHONPATH, and so is the build backend.
    """
    needed = declared("project", "dependencies") + declared("build-system", "requires")
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(lent_packages(folder / "lent", needed)),
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads this variable as its positive form
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
