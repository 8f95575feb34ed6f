"""A Slurm cluster on this machine, for as long as a job runs on it.

It has one node, or several: network namespaces with host names of their own. It installs nothing
and changes nothing outside of temporary folders: munged, slurmctld and slurmd run in the foreground
with keys, configuration and state of their own. They are Debian's, from
``apt-get install slurm-wlm munge``, and need root::

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
from dataclasses import dataclass
from pathlib import Path

from smoke.hosts.network import Host

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "sinfo")
READY_SECONDS = 60.0
END_SECONDS = 10.0
CONFIGURATION = """
ClusterName=ringproof
SlurmctldHost={first.name}({first.address})
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/linear
MpiDefault=none
ReturnToService=2
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
#: Takes a host name and a file of hosts, and becomes the command that follows.
ENTER = 'hostname "$1" && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"'


@dataclass(frozen=True)
class Node:
    """A node of the cluster.

    Attributes:
        enter: Words before a command that let it run on the node.
    """

    name: str
    address: str
    enter: tuple[str, ...] = ()


def this_machine() -> tuple[Node, ...]:
    """Return the only node of a cluster of one."""
    return (Node(socket.gethostname().partition(".")[0], "127.0.0.1"),)


def nodes_of(hosts: Sequence[Host], folder: Path) -> tuple[Node, ...]:
    """Return nodes that are connected hosts, each with a name that the others resolve.

    Args:
        folder: Folder for a file of hosts, which the nodes have in the place of ``/etc/hosts``.
    """
    file = folder / "hosts"
    named = [(host, f"node-{number}") for number, host in enumerate(hosts)]
    lines = ["127.0.0.1 localhost", *(f"{host.address} {name}" for host, name in named)]
    file.write_text("\n".join(lines) + "\n")
    # Not by ip netns exec, which mounts a /sys without the control groups that slurmd looks for.
    own = ("unshare", "--uts", "--mount", "bash", "-c", ENTER, "node")
    return tuple(
        Node(
            name,
            host.address,
            ("nsenter", f"--net=/run/netns/{host.namespace}", *own, name, str(file)),
        )
        for host, name in named
    )


def missing() -> str:
    """Return why no cluster can be started here; empty where it can."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"needs {', '.join(absent)} (apt-get install slurm-wlm munge)"
    return "" if os.geteuid() == 0 else "needs root to start Slurm"


@contextlib.contextmanager
def running_cluster(nodes: Sequence[Node]) -> Iterator[Mapping[str, str]]:
    """Run a cluster; yield the environment in which Slurm's commands on its first node reach it."""
    with tempfile.TemporaryDirectory(prefix="ringproof-slurm-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # munge refuses a socket that not everybody can reach
        (folder / "state").mkdir()
        munge, environment = _configured(folder, nodes)
        daemons = [munge, [*nodes[0].enter, "slurmctld", "-D"]]
        daemons += [[*node.enter, "slurmd", "-D"] for node in nodes]
        with contextlib.ExitStack() as stack:
            for number, command in enumerate(daemons):
                log = folder / f"daemon-{number}.out"
                stack.enter_context(_running(command, log, environment))
            _wait(nodes[0], environment, folder)
            yield environment


def _configured(folder: Path, nodes: Sequence[Node]) -> tuple[list[str], Mapping[str, str]]:
    """Write key and configuration; return munge's command and the environment of the others."""
    key, configuration = folder / "munge.key", folder / "slurm.conf"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    cpus = len(os.sched_getaffinity(0))
    lines = [f"NodeName={n.name} NodeAddr={n.address} CPUs={cpus} State=UNKNOWN" for n in nodes]
    text = CONFIGURATION.format(first=nodes[0], ports=_free_ports(2), folder=folder)
    configuration.write_text("\n".join([*lines, text]))
    munge = ["munged", "--foreground", "--force", f"--key-file={key}"]
    for kind in ("socket", "pid-file", "log-file", "seed-file"):
        munge.append(f"--{kind}={folder}/munge.{kind.partition('-')[0]}")
    return munge, {**os.environ, "SLURM_CONF": str(configuration)}


def submit(
    script: Path, output: Path, node: Node, environment: Mapping[str, str], *, seconds: float = 1800
) -> int:
    """Run a job to its end; return its exit code. What it prints is in the file ``output``."""
    command = [*node.enter, "sbatch", "--wait", f"--output={output}", str(script)]
    done = subprocess.run(
        command, env=environment, timeout=seconds, check=False, capture_output=True, text=True
    )
    if not output.is_file():
        raise RuntimeError(f"sbatch did not start {script}: {done.stderr}")
    return done.returncode


@contextlib.contextmanager
def _running(command: Sequence[str], place: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """Run a daemon in the foreground, and end it with its children."""
    with place.open("w") as log:
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


def _wait(node: Node, environment: Mapping[str, str], folder: Path) -> None:
    """Wait until all nodes are idle."""
    command, state = [*node.enter, "sinfo", "-h", "-o", "%T"], ""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
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
    nodes = this_machine()
    with tempfile.TemporaryDirectory() as folder, running_cluster(nodes) as environment:
        output = Path(folder) / "job.out"
        code = submit(Path(words[0]), output, nodes[0], environment)
        print(output.read_text(), end="")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
