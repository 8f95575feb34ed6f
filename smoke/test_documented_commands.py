"""Every command of README.md and of docs/commands.md runs as it is written there.

The commands run one after the other in an empty folder that has what the page takes for granted: a
training script, a log, skills of others, and Megatron-LM beside it where it is at hand.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringproof.harness.proofs.anchoring import UPSTREAM_OPTION
from smoke.processes import ringproof

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs" / "commands.md")
MEGATRON = "NVIDIA/Megatron-LM"
LONGEST_SECONDS = 120
"""How long a command may take where it needs no code of upstream. The page says 30 seconds on two
cores; here, other tests run beside it."""
ELSEWHERE = {
    "npx": "the client of skills is npm's",
    "pip install": "the packages are installed here",
    "ringproof evals run": "needs an assistant; `checks/evals` runs it with scripts in its place",
    "ringproof conform": "runs for hours; `checks/rehearsal` runs parts of its matrix",
    "ringproof upstream fetch": "needs the network; `checks/upstreams` runs it on the loopback",
    "ringproof prove": "is `make prove`",
    "ringproof doctor train.sh": "`checks/doctor` rehearses a launch",
    "ringproof rehearse": "`checks/skills` rehearses the launches of the skills",
    "ringproof fences": "names a commit of the reader's; `checks/fences` runs it",
    "ringproof card import": "names a skill of Megatron-Bridge; `checks/importing` runs it",
}
"""What this test leaves out, by the beginning of the command, and why. The commands of the README's
other blocks, `make prove` and `make test`, are those of `.ci/run`."""
FINDS = ("ringproof anchors drift", "ringproof doctor", "ringproof lint")
"""Commands that find problems, so that exit code 1 is as good as 0."""


def documented() -> Iterator[str]:
    """The commands of the pages in order, each on one line without its comment."""
    texts = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    for block in re.findall(r"```bash\n(.*?)```", texts, re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            if words := shlex.split(line, comments=True):
                yield shlex.join(words)


def run_here() -> list[str]:
    return [line for line in documented() if not line.startswith(tuple(ELSEWHERE))]


def test_what_is_left_out_is_on_the_page() -> None:
    commands = list(documented())
    assert len(commands) > 20
    for beginning in ELSEWHERE:
        assert any(line.startswith(beginning) for line in commands), beginning
    assert len(run_here()) > len(commands) / 2


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Path:
    """The folder in which the commands run."""
    folder = tmp_path_factory.mktemp("documented") / "here"
    (folder / "path" / "to").mkdir(parents=True)
    for name in ("skills", "cards", "evidence"):
        shutil.copytree(ROOT / name, folder / name)
        shutil.copytree(ROOT / name, folder / "path" / "to" / name)
    log = str(folder / "run.log")
    made = ringproof(
        "parity",
        "attention",
        "--comm",
        "a2a+p2p",
        "--hcp",
        "2,2",
        "--nproc",
        "4",
        "--rank-log",
        log,
    )
    assert made.returncode == 0, made.stderr
    for entry in pytestconfig.getoption(UPSTREAM_OPTION, default=None) or ():
        name, _, spec = entry.partition("=")
        if name == MEGATRON and spec.startswith("git:") and "@" not in spec:
            (folder.parent / "Megatron-LM").symlink_to(spec.removeprefix("git:"))
    return folder


@pytest.mark.timeout(900)
def test_commands_run_as_written(place: Path) -> None:
    """In the order of the page, because some read what those before them wrote."""
    wrong = [f"{line}: {problem}" for line in run_here() for problem in problems(line, place)]
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
