"""Where the project lives and which version it is: each is set once and repeated elsewhere.

The address is ``Homepage`` in ``pyproject.toml``; the version is ``__version__`` of the package::

    python -m checks.house.address https://github.com/somebody/ringproof
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from ringproof import __version__

ROOT = Path(__file__).parents[2]
SETTING = re.compile(r'^Homepage = "(https://github\.com/([\w.-]+/[\w.-]+))"$', re.MULTILINE)
NAMED = re.compile(r"(?:github\.com/|\buses: |skill add |--repo )([\w.-]+/ringproof)\b")
EXAMPLES = (Path(__file__), Path(__file__).with_name("test_address.py"))
RELEASES = (
    ("CITATION.cff", re.compile(r"^version: (.+)$", re.MULTILINE)),
    (".claude-plugin/plugin.json", re.compile(r'"version": "(.+)"')),
    ("docs/index.md", re.compile(r"^Version ([\d.]+\d),", re.MULTILINE)),
    (".pre-commit-hooks.yaml", re.compile(r"rev: v(.+)$", re.MULTILINE)),
    ("docs/lint.md", re.compile(r"rev: v([\d.]+\d)")),
    *(
        (path.relative_to(ROOT).as_posix(), re.compile(r'^  version: "(.+)"$', re.MULTILINE))
        for path in sorted(ROOT.glob("skills/*/SKILL.md"))
    ),
)
"""Files that repeat the version, each with where it stands there."""


def texts(root: Path) -> Iterator[tuple[Path, str]]:
    """Every tracked file that is a text."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        path = root / name
        if path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            if b"\0" not in data:
                yield path, data.decode("utf-8", errors="replace")


def repository(root: Path) -> str:
    """``OWNER/NAME`` of the address that ``pyproject.toml`` gives."""
    found = SETTING.search((root / "pyproject.toml").read_text(encoding="utf-8"))
    assert found is not None, "pyproject.toml has no Homepage on GitHub"
    return found[2]


def others(root: Path) -> list[str]:
    """Places that name another repository of this project."""
    own = repository(root)
    return [
        f"{path.relative_to(root)}: {name}"
        for path, text in texts(root)
        for name in NAMED.findall(text)
        if name != own and path not in EXAMPLES
    ]


def old_versions(root: Path) -> list[str]:
    """Places that name no version, or another one than the package has."""
    found = []
    for name, pattern in RELEASES:
        said = pattern.findall((root / name).read_text(encoding="utf-8"))
        if said != [__version__]:
            found.append(f"{name}: {said or 'no version'}")
    return found


def move(root: Path, address: str) -> list[str]:
    """Write an address in place of the present one, and return the files that were changed."""
    new = SETTING.search(f'Homepage = "{address}"')
    assert new is not None, f"{address} is not https://github.com/OWNER/NAME"
    old = re.compile(rf"(?<![\w.-]){re.escape(repository(root))}(?![\w-])")
    changed = []
    for path, text in texts(root):
        moved = old.sub(new[2], text)
        if moved != text:
            path.write_text(moved, encoding="utf-8")
            changed.append(str(path.relative_to(root)))
    return changed


if __name__ == "__main__":
    print(*move(ROOT, sys.argv[1]), sep="\n")
