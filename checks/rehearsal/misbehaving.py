"""Functions that are called in every rank and do not end well on the ranks they are told."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


def raise_on(rank: int) -> None:
    """One rank raises; the others wait for it in a collective."""
    if dist.get_rank() == rank:
        raise ValueError(f"rank {rank} does not want to")
    dist.all_reduce(torch.ones(1))


def refuse_an_option(_: Any) -> None:
    """A parser refuses the command line, as upstream's does."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", type=int)
    parser.parse_args(["--sizes", "2 2"])


def seen_variables(names: list[str]) -> list[str | None]:
    """The values of variables in a rank."""
    return [os.environ.get(name) for name in names]


def die_on(rank: int) -> None:
    """One rank is killed; the others wait for it in a collective."""
    if dist.get_rank() == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1))


def die_for_memory(path: str) -> None:
    """Both ranks are killed, and the kernel's record says that it was for memory."""
    Path(path).write_text("oom 1\noom_kill 2\n")
    os.kill(os.getpid(), signal.SIGKILL)


def leave(code: int | None) -> None:
    """All ranks end before they can report; without a code as if all were well."""
    os._exit(code or 0)


def need_a_package(name: str) -> None:
    """Import what is not installed here, or say so as upstream does."""
    if name:
        importlib.import_module(name)
    raise RuntimeError("Fast kernels are missing: someattention is not installed.")


def ask_for_memory(_: Any) -> None:
    """Allocate more than any machine has."""
    torch.empty(1 << 60, dtype=torch.uint8)


def find_no_number(_: Any) -> None:
    """Report a loss that is not a number as Megatron does, and fail while that is reported."""
    logging.getLogger("megatron.core.rerun_state_machine").error(
        "Unexpected result nan on rank 0 at iteration #3 invocation #1 "
        "(message='found NaN in a loss')"
    )
    os.fspath(None)  # type: ignore[call-overload]  # as with no folder for checkpoints


def never_send(rank: int) -> None:
    """One rank waits for a message, the others for that rank in a collective."""
    pair = dist.new_group([0, 1], group_desc="PAIR")
    if dist.get_rank() == rank:
        dist.irecv(torch.ones(1), src=0, group=pair).wait()
    dist.all_reduce(torch.ones(1))


def wait_twice(_: Any) -> float:
    """A request is waited for twice, as NCCL allows."""
    value = torch.full((1,), float(dist.get_rank()))
    other = 1 - dist.get_rank()
    found = torch.zeros(1)
    work = [dist.isend(value, other), dist.irecv(found, other)]
    for request in work + work:
        request.wait()
    return float(found)


def start_a_child(_: Any) -> int:
    """A rank leaves a process behind."""
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    return child


def start_a_daemon(_: Any) -> int:
    """A rank leaves a process behind that is in no group or session of the rank."""
    told, tell = os.pipe()
    if os.fork() == 0:
        os.setsid()
        daemon = os.fork()
        if daemon == 0:
            time.sleep(60)
        os.write(tell, f"{daemon}".encode())
        os._exit(0)
    return int(os.read(told, 20))


def kill_the_server(_: Any) -> None:
    """A rank kills the process that has started it."""
    if dist.get_rank() == 0:
        os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


def replace_reports(kind: str) -> None:
    """Ranks end as if all were well, with reports that upstream's code wrote."""
    rank = dist.get_rank()
    report = Path("/proc/self/fd/1").readlink().with_suffix(".json")
    if kind == "pipe":
        os.mkfifo(report)
    else:
        other = f'{{"rank": {1 - rank}, "error": null}}'
        texts = {"empty": "", "deep": "[" * 100_000, "number": "3", "other rank": other}
        report.write_text(texts[kind])
    os._exit(0)


def leave_quietly(_: Any) -> None:
    """Rank 0 ends as if all were well, and the other loses its neighbour."""
    if dist.get_rank() == 0:
        os._exit(0)
    dist.barrier()


def import_mine(_: Any) -> None:
    """Import a module of a folder of the user."""
    importlib.import_module("mine")


def call_missing(name: str) -> None:
    """Call a symbol of the extension that no stand-in implements."""
    import transformer_engine_torch

    getattr(transformer_engine_torch, name)()
