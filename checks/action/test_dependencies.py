"""What ringproof imports is what it declares; nothing comes in through another package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from checks.action.installed import ROOT, declared, lent_packages
from checks.running import ran

# Every module of the package, without what runs under
# torch, numpy or pytest.
IMPORT_ALL = """
import importlib, pathlib, sys
root = pathlib.Path(sys.argv[2])
sys.path[:0] = [sys.argv[1], str(root)]
for path in sorted((root / "ringproof").rglob("*.py")):
    name = ".".join(path.relative_to(root).with_suffix("").parts)
    if ".reference." in name or name.endswith(("__main__", ".worker", ".recorder", ".planting")):
        continue
    if ".rehearsal." in name:  # behind `rehearse` and `conform`, which ask for the extra
        continue
    importlib.import_module(name)
    print(name)
"""


def imported(folder: Path, requirements: list[str]) -> subprocess.CompletedProcess[str]:
    lent = lent_packages(folder, requirements)
    # -S leaves site-packages out, -I the environment and the working directory.
    command = [sys.executable, "-I", "-S", "-c", IMPORT_ALL, str(lent), str(ROOT / "src")]
    return ran(*command)


def test_the_declared_dependencies_suffice(tmp_path: Path) -> None:
    done = imported(tmp_path / "lent", declared("project", "dependencies"))
    assert done.returncode == 0, done.stderr
    assert "ringproof.findings.formats" in done.stdout.splitlines()


def test_a_missing_one_is_noticed(tmp_path: Path) -> None:
    fewer = [item for item in declared("project", "dependencies") if not item.startswith("rich")]
    fewer = [item for item in fewer if not item.startswith("typer")]  # which needs rich itself
    done = imported(tmp_path / "lent", fewer)
    assert done.returncode == 1 and "ModuleNotFoundError" in done.stderr
