"""Two hosts on one machine: network namespaces that only a pair of virtual interfaces connects.

Processes in one namespace reach those of the other over the interface ``wire``, and nothing else.
What one process sends to another in the same namespace does not pass it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

INTERFACE = "wire"
PORT = 29500
ROOT = Path(__file__).resolve().parents[2]
UNABLE = ("not permitted", "Permission denied", "Unknown device type", "mount")
"""Signs that a machine does not let a process make namespaces or virtual interfaces."""


@dataclass(frozen=True)
class Host:
    """One namespace and its address; the first host holds the rendezvous."""

    namespace: str
    address: str
    first: bool

    def command(self, words: Sequence[str], launcher: Sequence[str]) -> list[str]:
        """Return a torchrun command for this host.

        Args:
            words: torchrun with its options, from the interpreter on.
            launcher: How many of these start torchrun: ``PYTHON -m torch.distributed.run``.
        """
        more = ["--local-addr", self.address, "--rdzv-conf", f"is_host={str(self.first).lower()}"]
        begin = ["ip", "netns", "exec", self.namespace, *launcher]
        return [*begin, *more, *words[len(launcher) :]]


@contextlib.contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Make two hosts that are connected.

    Raises:
        PermissionError: The machine does not let this process make network namespaces.
    """
    if shutil.which("ip") is None:
        raise PermissionError("needs the program ip (apt-get install iproute2)")
    hosts = tuple(
        Host(f"ringproof-{os.getpid()}-{place}", f"10.231.0.{place + 1}", place == 0)
        for place in range(2)
    )
    with contextlib.ExitStack() as stack:
        for host in hosts:
            _ip("netns", "add", host.namespace)
            stack.callback(_ip, "netns", "del", host.namespace)
        first, second = hosts
        peer = ("peer", "name", INTERFACE, "netns", second.namespace)
        _ip("link", "add", "name", INTERFACE, "netns", first.namespace, "type", "veth", *peer)
        for host in hosts:
            _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", INTERFACE)
            for interface in (INTERFACE, "lo"):
                _ip("-n", host.namespace, "link", "set", interface, "up")
        yield first, second


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    said = done.stderr.strip()
    if done.returncode and any(sign in said for sign in UNABLE):
        raise PermissionError(f"needs network namespaces: {said}")
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {said}")


def sent_bytes(host: Host) -> int:
    """Return how many bytes a host has sent to the other."""
    read = ["ip", "netns", "exec", host.namespace, "cat", str(statistics("tx_bytes"))]
    return int(subprocess.run(read, capture_output=True, text=True, check=True).stdout)


def statistics(name: str) -> Path:
    """Return the counter of the link, as processes of a host see it."""
    return Path("/sys/class/net") / INTERFACE / "statistics" / name


def run_on(
    commands: Mapping[Host, Sequence[str]],
    *,
    environment: Mapping[str, str],
    folder: Path,
    seconds: float,
) -> dict[Host, str]:
    """Run a command on each host at the same time; return what each printed.

    Raises:
        RuntimeError: A command failed, or did not end in time.
    """
    logs = {host: folder / f"{host.namespace}.log" for host in commands}
    started: list[subprocess.Popen[bytes]] = []
    try:
        for host, words in commands.items():
            with logs[host].open("w") as log:
                started.append(
                    subprocess.Popen(
                        words, stdout=log, stderr=log, env={**os.environ, **environment},
                        start_new_session=True, cwd=ROOT,
                    )
                )  # fmt: skip
        codes = [process.wait(seconds) for process in started]
    except subprocess.TimeoutExpired:
        codes = [-1]
    finally:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    printed = {host: log.read_text() for host, log in logs.items()}
    if any(codes):
        raise RuntimeError("\n".join(text[-3000:] for text in printed.values()))
    return printed
