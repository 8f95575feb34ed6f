"""Forks ranks from one interpreter that has imported everything already.

Importing torch, Transformer Engine and Megatron takes seconds per process; a fork takes none. The
server reads one JSON line per run from its standard input and answers with one line when the ranks
of that run have started. Ranks end with the server, and the server with whoever started it.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from ringproof.rehearsal.program import Program, Upstream
from ringproof.rehearsal.rank import bootstrap

PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Let the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """Prepare as the first line says, then serve runs until the input ends."""
    end_with_parent()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what imports print is not an answer
    setup = json.loads(sys.stdin.readline())
    upstream = TypeAdapter(Upstream).validate_python(setup["upstream"])
    error = _prepared(upstream, setup)
    print(json.dumps({"error": error}), file=answers, flush=True)
    if error is not None:
        return
    for line in sys.stdin:
        request = json.loads(line)
        if "reap" in request:
            answer: dict[str, Any] = {"ended": _reap(request["reap"])}
        else:
            program = TypeAdapter(Program).validate_python(request["program"])
            answer = {"pids": _start(program, request)}
        print(json.dumps(answer), file=answers, flush=True)


def _prepared(upstream: Upstream, setup: Mapping[str, Any]) -> dict[str, Any] | None:
    try:
        bootstrap.prepare(upstream, setup["dtype"])
        if setup["preload"]:
            bootstrap.preload(upstream, setup["preload"])
    except BaseException as raised:
        traceback.print_exc()
        described = bootstrap.describe(raised, upstream.roots)
        return dataclasses.asdict(described)
    return None


def _start(program: Program, request: Mapping[str, Any]) -> list[int]:
    folder = Path(request["folder"])
    started = []
    for rank in range(program.ranks):
        seat = bootstrap.Seat(rank, request["port"], folder)
        pid = os.fork()
        if pid == 0:
            end_with_parent()
            os.setpgid(0, 0)
            status = 1
            with contextlib.suppress(BaseException):
                status = 0 if bootstrap.run(program, seat) else 1
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        with contextlib.suppress(OSError):  # whoever is first: the group must exist before a kill
            os.setpgid(pid, pid)
        started.append(pid)
    return started


def _reap(pids: list[int]) -> dict[int, int]:
    """Collect the exit codes of ranks that have ended."""
    ended = {}
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                ended[pid] = os.waitstatus_to_exitcode(status)
    return ended


if __name__ == "__main__":
    main()
