"""A Slurm cluster of one node on this machine, for as long as a job runs on it.

It installs nothing and changes nothing outside of one temporary folder: munged, slurmctld and
slurmd run in the foreground with keys, configuration and state of their own. They are Debian's,
from ``apt-get install slurm-wlm munge``, and need root::

    python -m smoke.slurm.cluster JOB.sh
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "sinfo")
READY_SECONDS = 60.0
END_SECONDS = 10.0
CONFIGURATION = """
ClusterName=ringproof
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/linear
MpiDefault=none
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Return why no cluster can be started here; empty where it can."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"needs {', '.join(absent)} (apt-get install slurm-wlm munge)"
    return "" if os.geteuid() == 0 else "needs root to start Slurm"


@contextlib.contextmanager
def one_node() -> Iterator[Mapping[str, str]]:
    """Run a cluster; yield the environment in which Slurm's commands reach it."""
    with tempfile.TemporaryDirectory(prefix="ringproof-slurm-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # munge refuses a socket that not everybody can reach
        for part in ("state", "spool"):
            (folder / part).mkdir()
        key, configuration = folder / "munge.key", folder / "slurm.conf"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        configuration.write_text(
            CONFIGURATION.format(
                host=socket.gethostname().partition(".")[0],
                ports=_free_ports(2),
                folder=folder,
                cpus=len(os.sched_getaffinity(0)),
            )
        )
        environment = {**os.environ, "SLURM_CONF": str(configuration)}
        munge = ["munged", "--foreground", "--force", f"--key-file={key}"]
        munge += [f"--{kind}={folder}/munge.{kind.partition('-')[0]}" for kind in
                  ("socket", "pid-file", "log-file", "seed-file")]  # fmt: skip
        with contextlib.ExitStack() as stack:
            for command in (munge, ["slurmctld", "-D"], ["slurmd", "-D"]):
                stack.enter_context(_running(command, folder, environment))
            _wait(environment, folder)
            yield environment


def submit(
    script: Path, output: Path, environment: Mapping[str, str], *, seconds: float = 1800
) -> int:
    """Run a job to its end; return its exit code. What it prints is in the file ``output``."""
    command = ["sbatch", "--wait", f"--output={output}", str(script)]
    done = subprocess.run(
        command, env=environment, timeout=seconds, check=False, capture_output=True, text=True
    )
    if not output.is_file():
        raise RuntimeError(f"sbatch did not start {script}: {done.stderr}")
    return done.returncode


@contextlib.contextmanager
def _running(
    command: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> Iterator[None]:
    """Run a daemon in the foreground, and end it with its children."""
    with (folder / f"{command[0]}.out").open("w") as log:
        daemon = subprocess.Popen(
            command, stdout=log, stderr=log, env=environment, start_new_session=True
        )
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(daemon.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(END_SECONDS)


def _wait(environment: Mapping[str, str], folder: Path) -> None:
    """Wait until the node is idle."""
    deadline, state = time.monotonic() + READY_SECONDS, ""
    while time.monotonic() < deadline:
        done = subprocess.run(
            ["sinfo", "-h", "-o", "%T"],
            env=environment,
            check=False,
            capture_output=True,
            text=True,
        )
        state = done.stdout.strip() or done.stderr.strip()
        if state == "idle":
            return
        time.sleep(0.5)
    said = "".join(path.read_text()[-500:] for path in sorted(folder.glob("*.out")))
    raise RuntimeError(f"Slurm is not ready: {state}\n{said}")


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def main(words: list[str]) -> int:
    """Run the job that is named, print what it printed, and return its exit code."""
    reason = missing() or ("" if len(words) == 1 else "usage: python -m smoke.slurm.cluster JOB.sh")
    if reason:
        print(f"error: {reason}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder, one_node() as environment:
        output = Path(folder) / "job.out"
        code = submit(Path(words[0]), output, environment)
        print(output.read_text(), end="")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
