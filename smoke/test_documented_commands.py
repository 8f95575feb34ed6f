"""Every command of the README, of docs/commands.md and of the how-tos runs as it is written.

The commands of a page run one after the other in a copy of `examples`, which has the launches and
logs that the pages name. Skills are there, too, and Megatron-LM beside it where it is at hand.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from checks.documented import PAGES as ALL_PAGES
from checks.documented import ROOT, documented
from ringproof.prove.anchoring import UPSTREAM_OPTION

pytestmark = pytest.mark.slow

PAGES = (
    "README.md",
    *(f"docs/{name}.md" for name in ("commands", "diagnose", "fences", "start")),
    *(name for name in ALL_PAGES if name.startswith("docs/how-to/")),
)
"""Pages whose commands are run; `checks/cli/test_documented.py` reads those of all pages."""
MEGATRON = "NVIDIA/Megatron-LM"
LONGEST_SECONDS = 120
"""How long a command may take where it needs no code of upstream. The page says 30 seconds on two
cores; here, other tests run beside it."""
ELSEWHERE = {
    "npx": "the client of skills is npm's",
    "pip install": "the packages are installed here",
    "ringproof conform": "runs for hours; `checks/rehearsal` runs parts of its matrix",
    "ringproof upstream fetch": "needs the network; `checks/upstream` runs it on the loopback",
    "ringproof prove": "is `make prove`",
    "ringproof doctor train.sh": "`checks/doctor` rehearses a launch",
    "ringproof rehearse": "`checks/skills` rehearses the launches of the skills",
}
"""What this test leaves out, by the beginning of the command, and why. The commands of the README's
other blocks, `make prove` and `make test`, are those of `.ci/run`."""
FINDS = (
    "ringproof anchors",
    "ringproof doctor",
    "ringproof fences",
    "ringproof lint",
    "ringproof logs diagnose",
    "ringproof logs groups run.log --expect hierarchical --hcp 2,2 --require-traffic",
)
"""Commands that find problems, so that exit code 1 is as good as 0."""


def run_here(page: str) -> list[str]:
    return [line for line in documented(page) if not line.startswith(tuple(ELSEWHERE))]


def test_what_is_left_out_is_on_the_pages() -> None:
    commands = [line for page in PAGES for line in documented(page)]
    assert len(commands) > 40
    for beginning in ELSEWHERE:
        assert any(line.startswith(beginning) for line in commands), beginning
    assert sum(len(run_here(page)) for page in PAGES) > len(commands) / 2
    assert all([*documented(page)] for page in PAGES)


@pytest.fixture
def place(tmp_path: Path, pytestconfig: pytest.Config) -> Path:
    """The folder in which the commands run."""
    folder = tmp_path / "here"
    folder.mkdir()
    for name in ("skills", "cards", "evidence"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copytree(ROOT / "examples", folder, dirs_exist_ok=True)
    for entry in pytestconfig.getoption(UPSTREAM_OPTION, default=None) or ():
        name, _, spec = entry.partition("=")
        if name == MEGATRON and spec.startswith("git:") and "@" not in spec:
            (folder.parent / "Megatron-LM").symlink_to(spec.removeprefix("git:"))
    return folder


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", PAGES)
def test_commands_run_as_written(page: str, place: Path) -> None:
    """In the order of the page, because some read what those before them wrote."""
    lines = run_here(page)
    wrong = [f"{line}: {problem}" for line in lines for problem in problems(line, place)]
    assert wrong == []


def problems(line: str, place: Path) -> Iterator[str]:
    """Run a command, and yield what is wrong."""
    upstream = "../Megatron-LM" in line
    if upstream and not (place.parent / "Megatron-LM").exists():
        return
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    started = time.monotonic()
    done = subprocess.run(
        line, shell=True, cwd=place, env={**os.environ, "PATH": programs}, text=True,
        capture_output=True, timeout=300, check=False,
    )  # fmt: skip
    seconds = time.monotonic() - started
    print(f"{seconds:6.1f} s  {line}")
    if done.returncode not in ((0, 1) if line.startswith(FINDS) else (0,)):
        yield f"exit code {done.returncode}: {done.stdout[-1000:]}{done.stderr[-1000:]}"
    if "Traceback" in done.stdout + done.stderr:
        yield f"traceback: {done.stderr[-1000:]}"
    if not upstream and seconds > LONGEST_SECONDS:
        yield f"took {seconds:.0f} s"
    words = shlex.split(line)
    for option in ("--log", "--html", "-o"):
        if option in words and not (place / words[words.index(option) + 1]).stat().st_size:
            yield f"{option} is empty"


def test_what_is_wrong_is_seen(tmp_path: Path) -> None:
    assert [*problems("exit 3", tmp_path)] == ["exit code 3: "]
    assert [*problems("echo Traceback >&2", tmp_path)] == ["traceback: Traceback\n"]
    assert [*problems("touch x; true --log x", tmp_path)] == ["--log is empty"]
    assert [*problems("ringproof --version", tmp_path)] == []
