"""Forks ranks from one interpreter that has imported everything already.

Importing torch, Transformer Engine and Megatron takes seconds per process; a fork takes none. The
server answers one question after the other over the connection whose descriptor is its only
argument: first what is to be imported, then programs to start and processes to collect. Ranks and
all that they start end with the server, and the server with whoever started it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from ringproof.rehearsal.hollow import groups
from ringproof.rehearsal.protocol.program import FullSize, Program, Upstream
from ringproof.rehearsal.protocol.reports import Failure
from ringproof.rehearsal.rank import bootstrap
from ringproof.rehearsal.rank.memory import MemoryWatch
from ringproof.supervisor import (
    adopt_orphans,
    descendants,
    end_descendants,
    end_with_parent,
)


def main() -> None:
    """Answer questions until the other side ends."""
    end_with_parent()
    adopt_orphans()
    server = _Server()
    answers: dict[str, Callable[..., object]] = {
        "prepare": server.prepare, "start": server.start, "reap": _reap, "end": server.end,
    }  # fmt: skip
    with Connection(int(sys.argv[1])) as parent, contextlib.suppress(EOFError):
        while True:
            name, *given = parent.recv()
            parent.send(answers[name](*given))


class _Server:
    """What ranks are forked from.

    Attributes:
        packages: What `bootstrap.prepare` returned. Each rank has a copy of its own.
        memory: What watches memory in programs of full size.
        own: Processes that the imports have started.
        store: Through which ranks without content exchange numbers; of the last program.
    """

    def __init__(self) -> None:
        self.own = set[int]()
        self.packages = set[str]()
        self.memory: MemoryWatch | None = None
        self.store: object = None

    def prepare(
        self, upstream: Upstream, dtype: str, script: str, full_size: FullSize | None
    ) -> Failure | None:
        """Import upstream; return why that is not possible."""
        if full_size is not None:
            self.memory = MemoryWatch(computes=full_size.computes)
        try:
            self.packages = bootstrap.prepare(upstream, dtype, script, self.memory)
        except BaseException as raised:
            traceback.print_exc()
            return bootstrap.describe(raised, upstream, "import", -1)
        self.own = descendants()
        return None

    def end(self) -> None:
        """End what the ranks of a program have left, whatever its sessions are."""
        end_descendants(self.own)
        self.store = None

    def start(self, program: Program, port: int, folder: Path) -> dict[int, int]:
        """Fork the ranks of a program; return their process identifiers, by rank."""
        if program.exchanges:  # no rank serves the others, who could end after it
            store = groups.store(0, serves=True)
            self.store, port = store, store.port  # which nobody else can have taken
        started = {}
        # Fork, not spawn: a rank has everything imported, and shares its memory until it writes.
        for rank in program.started:
            pid = os.fork()
            if pid == 0:
                end_with_parent()
                os.setpgid(0, 0)
                status = 1
                with contextlib.suppress(BaseException):
                    bootstrap.enter(program, rank, port, folder)
                    passed = bootstrap.execute(program, rank, folder, self.packages, self.memory)
                    status = 0 if passed else 1
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
            with contextlib.suppress(OSError):  # the group must exist before a kill
                os.setpgid(pid, pid)
            started[rank] = pid
        return started


def _reap(pids: list[int]) -> dict[int, int]:
    """Collect the exit codes of processes that have ended."""
    ended = {}
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                ended[pid] = os.waitstatus_to_exitcode(status)
    return ended


if __name__ == "__main__":
    main()
