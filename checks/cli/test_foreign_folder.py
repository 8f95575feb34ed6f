"""No module that lies in the current folder is executed, whatever its name."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from checks.anchors.wheelhouse import fill_cache
from checks.prove.miniature import Miniature, anchor, claim, miniature
from checks.running import ran, run_here
from ringproof import programs
from ringproof.cards import load_card
from ringproof.rehearsal.fixtures import SessionServers

ROOT = Path(__file__).parents[2]
CARD = ROOT / "cards" / "hierarchical-context-parallel" / "card.yaml"
SCRIPT = str(Path(sys.executable).with_name("ringproof"))
# What a program of ringproof may import, and what Python imports on its own.
INSTALLED = (
    "_pytest", "click", "execnet", "jinja2", "markdown_it", "megatron", "numpy", "packaging", "pip",
    "psutil", "pydantic", "pytest", "rich", "ringproof", "sitecustomize", "torch", "typer",
    "transformer_engine", "usercustomize", "xdist", "yaml",
)  # fmt: skip
NAMES = sorted({*sys.stdlib_module_names, *INSTALLED} - {*sys.builtin_module_names})
LAUNCH = "torchrun --nproc-per-node 2 pretrain_gpt.py " + (
    "--num-layers 1 --hidden-size 64 --num-attention-heads 4 --seq-length 64 "
    "--max-position-embeddings 64 --micro-batch-size 1 --global-batch-size 2 --train-iters 2 "
    "--lr 1e-3 --tokenizer-type NullTokenizer --vocab-size 127 --mock-data --eval-iters 1 "
    "--eval-interval 9 --split 99,1,0 --context-parallel-size 2 "
    "--transformer-impl transformer_engine"
)
TRAIN = "train --dp 2 --steps 1 --global-batch 4 --max-length 64 --max-tokens-per-rank 128"
DEMO = "--cache cache --upstream demo=pip:demo-upstream==9.9"
FETCH = "upstream fetch --skills skills --wheels --cache elsewhere --from some/demo=file:///nowhere"
# Each of them starts programs: pip for a wheel that the cache lacks, git, pytest or ranks.
COMMANDS = (
    "stack --upstream pip:megatron-core==0.0.1 --cache cache",
    FETCH,
    "prove --skills skills --jobs 2 --offline --cache cache",
    "plan --lengths 100,200,300 --ranks 4 --max-tokens-per-rank 128",
    TRAIN,
)
# These start what those above start, too.
ALSO = (
    "doctor train.sh --upstream pip:megatron-core==0.0.1",
    f"anchors check --skills skills {DEMO}",
    f"fences README.md {DEMO}",
    "parity attention --ranks 2",
)
SLOW = (
    "conform --upstream {megatron} --te {engine} --case static-p2p-cp2 --steps 1",
    "fit --upstream {megatron} --te {engine} -- env CUDA_DEVICE_MAX_CONNECTIONS=1 " + LAUNCH,
    "rehearse --upstream {megatron} --te {engine} -- env CUDA_DEVICE_MAX_CONNECTIONS=1 " + LAUNCH,
    "smoke megatron --upstream {megatron} --te {engine} --feature hcp --device cpu "
    "--ranks-per-node 4 --steps 1",
)
REFUSED = re.compile(
    r"^error: (?:Got unexpected extra|No such |.*(?:is unknown; |is missing; |needs a value; "
    r"|is not a valid |does not take a value|is not in the range))",
    re.MULTILINE,
)
"""What is said of a command line that is none, so that nothing was tried."""


class Foreign:
    """A folder of somebody whose modules say which of them was executed."""

    def __init__(self, folder: Path) -> None:
        self.repository: Miniature = miniature(folder / "foreign")
        self.root = self.repository.root
        claims = [claim("says", "anchor:a-build"), claim("runs", "checks/test_a.py::test_a")]
        self.repository.card(anchors=[anchor("a-build")], claims=claims)
        self.repository.file("checks/test_a.py", "def test_a():\n    pass\n")
        self.repository.file("README.md", "```1:2:lib/a.py\nx = 1\n```\n")
        self.repository.file("train.sh", f"{LAUNCH}\n")
        (self.root / "cache").mkdir()
        fill_cache(self.root / "cache")
        self.marker = folder / "executed"
        self.marker.touch()

    def plant(self, *names: str) -> None:
        for name in names:
            text = f"open({str(self.marker)!r}, 'a').write('{name}\\n')\n"
            (self.root / f"{name}.py").write_text(text)

    def executed(self, *command: str, **variables: str) -> list[str]:
        """Run a command in the folder, and return the modules there that were executed."""
        environment = {**os.environ, "PIP_NO_INDEX": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        environment.pop("PYTHONPATH", None)
        done = ran(*command, cwd=self.root, env={**environment, **variables}, timeout=300)
        assert done.returncode in (0, 1, 2), done.stderr[-3000:]
        assert not REFUSED.search(done.stderr), done.stderr
        return sorted(set(self.marker.read_text().split()))


@pytest.fixture
def foreign(tmp_path: Path) -> Foreign:
    made = Foreign(tmp_path)
    made.plant(*NAMES)
    return made


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "command",
    [*COMMANDS, *(pytest.param(one, marks=pytest.mark.slow) for one in ALSO)],
    ids=lambda text: "-".join(text.split()[:2]),
)
def test_nothing_is_executed(foreign: Foreign, command: str) -> None:
    assert foreign.executed(SCRIPT, *command.split()) == []


@pytest.mark.parametrize(
    "words",
    [
        "trian",
        "train extra",
        "train --dq 2",
        "train --dp x",
        "train --dp",
        "fit a",
        "lint --format x",
        "train --no-resume=1",
        "parity attention --comm x",
        "train --zzz",
    ],
)
def test_a_command_line_that_is_refused_is_seen(words: str) -> None:
    assert REFUSED.search(run_here(Path(), words.split()).stderr)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("command", SLOW, ids=lambda text: text.split()[0])
def test_nothing_is_executed_by_ranks_of_upstream(
    foreign: Foreign, stage: SessionServers, command: str
) -> None:
    named = load_card(CARD).upstreams["megatron-lm-main"]
    upstream = stage.upstream(f"{named.repo}@{named.commit}")
    words = command.format(megatron=upstream.megatron, engine=upstream.engine).split()
    assert foreign.executed(SCRIPT, *words) == []


@pytest.mark.slow
def test_as_a_module_only_what_python_imports_first_is_executed(tmp_path: Path) -> None:
    """``python -m`` has the folder on its path until ringproof runs."""
    made = Foreign(tmp_path)
    first = "import runpy, sys; print('ringproof', *[m.partition('.')[0] for m in sys.modules])"
    known = set(ran(sys.executable, "-c", first).stdout.split())
    made.plant(*(name for name in NAMES if name not in known))
    assert made.executed(sys.executable, "-m", "ringproof", *TRAIN.split()) == []


@pytest.mark.slow
def test_programs_are_not_those_of_the_folder(
    foreign: Foreign, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty entry of ``PATH`` means the current folder."""
    for name in ("git", "g++"):
        (foreign.root / name).write_text(f"#!/bin/sh\necho {name} >> {foreign.marker}\n")
        (foreign.root / name).chmod(0o755)
    words = FETCH.split()
    assert foreign.executed(SCRIPT, *words, PATH=f"{os.pathsep}{os.environ['PATH']}") == []
    monkeypatch.chdir(foreign.root)
    monkeypatch.setenv("PATH", os.pathsep)
    assert programs.program("git") is None


OTHERS = sorted((Path.home() / ".pyenv" / "versions").glob("3.1[0-9].*/bin/python"))


@pytest.mark.parametrize("interpreter", OTHERS or [None], ids=str)
def test_every_python_starts_modules_and_code_alike(
    foreign: Foreign, monkeypatch: pytest.MonkeyPatch, interpreter: Path | None
) -> None:
    """Python 3.10 has no ``-P``."""
    if interpreter is None:
        pytest.skip("no other Python is installed by pyenv")
    version = tuple(map(int, interpreter.parents[1].name.split(".")[:2]))
    monkeypatch.setattr(programs, "_NO_FOLDER", ("-P",) if version >= (3, 11) else ())
    monkeypatch.setattr(sys, "executable", str(interpreter))
    (foreign.root / "lib").mkdir()
    (foreign.root / "lib" / "mine.py").write_text("print('mine')\n")
    monkeypatch.chdir(foreign.root)
    monkeypatch.setenv("PYTHONPATH", f"{os.pathsep}lib")
    module = programs.run([*programs.python(module="pip"), "--version"])
    assert module.code == 0 and module.out.startswith("pip "), module.log
    code = programs.run(programs.python(code="import json, mine, multiprocessing.forkserver"))
    assert (code.code, code.out) == (0, "mine\n"), code.log
    assert foreign.marker.read_text() == ""


def test_the_environment_names_no_folder_by_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{os.pathsep}lib{os.pathsep}/opt/x")
    monkeypatch.setenv("PYTHONSTARTUP", "start.py")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    found = programs.variables(without=("NCCL_",))
    assert found["PYTHONPATH"] == f"{tmp_path / 'lib'}{os.pathsep}/opt/x"
    assert not found.keys() & {"PYTHONSTARTUP", "NCCL_DEBUG"}


def test_a_module_of_the_folder_would_be_seen(foreign: Foreign) -> None:
    assert foreign.executed(sys.executable, "-m", "json.tool", "--help") != []
    assert shutil.which("true") and subprocess.run(["true"], check=True)
