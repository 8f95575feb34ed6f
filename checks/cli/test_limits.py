"""What a machine does not give is said in one line, and is no fault of ringproof."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from checks.running import ran, run_here
from ringproof.cli import main as command
from ringproof.cluster import RankFailure

ENTRY = 'import sys; from ringproof.cli.main import main; sys.argv[1:] = ["skills", "list"]; main()'


def _because(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "files: no more can be opened"),
        (BlockingIOError(errno.EAGAIN, "try again"), "processes: no more can be started"),
        (RuntimeError("can't start new thread"), "processes: no more can be started"),
        (MemoryError(), "memory: no more can be had"),
        (ImportError("x.so: failed to map segment from shared object"), "memory: no more"),
        (OSError(errno.ENOSPC, "No space left on device", "x"), "disk: no space is left"),
        (OSError(errno.EFBIG, "File too large"), "files: one would become larger"),
        (FileNotFoundError(2, "No usable temporary directory found in ['/x']"), "TMPDIR: no"),
        (RankFailure(0, "RuntimeError: Resource temporarily unavailable"), "threads: a rank can"),
        (RankFailure(0, "DistStoreError: File too large"), "files: one would become larger"),
        (PermissionError(errno.EACCES, "no", "a/b"), "files: 'a/b' is closed to this user; open"),
        (_because(EOFError(), OSError(errno.EMFILE, "")), "files: no more can be opened"),
    ],
)
def test_a_limit_of_the_machine_is_one_line(
    error: Exception, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(**_: object) -> None:
        raise error

    monkeypatch.setattr(command, "app", fails)
    done = run_here(tmp_path, ["plan"])
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"error: {said}") and "; " in done.stderr


@pytest.mark.parametrize(
    ("limit", "value", "said"),
    [("NOFILE", 3, "files: no more can be opened"), ("FSIZE", 1024, "--output: 's.json' cannot")],
)
def test_a_real_limit_is_one_line(tmp_path: Path, limit: str, value: int, said: str) -> None:
    words = ["card", "schema", "-o", "s.json"]
    lower = f"import resource; resource.setrlimit(resource.RLIMIT_{limit}, ({value}, {value}))"
    entry = f"import sys; from ringproof.cli.main import main; {lower}; sys.argv[1:] = {words}"
    done = ran(sys.executable, "-c", f"{entry}; main()", cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"error: {said}")


NO_SERVER = """
from ringproof.cli import main as command
from ringproof.cluster import cluster
def start(**_):
    with cluster.Cluster(1) as ranks:
        ranks.run(print)
cluster.WORKER_MODULE, command.app = "full", start
command.main()
"""


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [("MemoryError", 2, "memory: no more"), ("SystemError", 2, "memory: no more"),
     ("BlockingIOError(11, 'again')", 2, "processes: no more"),
     ("OSError(2, 'no')", 1, "rank 0 failed first: the process that starts ranks was ended")],
)  # fmt: skip
def test_a_limit_ends_the_server_of_ranks(error: str, code: int, said: str, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="ranks need it")
    (tmp_path / "full.py").write_text(f"raise {error}\n")
    done = ran(sys.executable, "-c", NO_SERVER, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    *before, last = done.stderr.splitlines()
    assert done.returncode == code and last.startswith(f"error: {said}"), done.stderr
    assert bool(before) == (code == 1), "nobody but a limit ends it without a traceback"


NOTHING_LEFT = """
import sys
class Full:
    def find_spec(self, name, *_):
        if name == "typer":
            raise {error}
sys.meta_path.insert(0, Full())
from ringproof.__main__ import start
start()
"""


@pytest.mark.parametrize(
    ("error", "code"),
    [("MemoryError", 2), ("ImportError('x.so: failed to map segment from x')", 2),
     ("ImportError('no typer')", 1)],
)  # fmt: skip
def test_too_little_memory_to_load_the_command(error: str, code: int, tmp_path: Path) -> None:
    done = ran(sys.executable, "-c", NOTHING_LEFT.format(error=error), cwd=tmp_path)
    assert done.returncode == code
    said = "error: memory: there is too little for ringproof; raise `ulimit -v`\n"
    assert (done.stderr == said) == (code == 2)


def test_the_command_is_what_says_so() -> None:
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert '\nringproof = "ringproof.__main__:start"\n' in project


def test_other_errors_stay_internal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(**_: object) -> None:
        raise FileNotFoundError(2, "No such file or directory", "x")

    monkeypatch.setattr(command, "app", fails)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert run_here(tmp_path, ["plan"]).returncode == 3


def test_a_user_without_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    done = run_here(tmp_path, ["upstream", "list", "--skills", str(_skills())])
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: --cache: this user has no home folder")


def _skills() -> Path:
    return Path(__file__).parents[2] / "skills"


def test_a_folder_that_was_deleted(tmp_path: Path) -> None:
    script = f"mkdir gone && cd gone && rmdir ../gone && exec {sys.executable} -c '{ENTRY}'"
    done = ran("sh", "-c", script, cwd=tmp_path, env=os.environ)
    assert done.returncode == 2
    assert done.stderr == (
        "error: current folder: it cannot be used (No such file or directory); "
        "change to one that exists\n"
    )
