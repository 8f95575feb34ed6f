"""Errors that one line shows: faults of devices, ended processes, refused arguments, schedulers."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Any

_REFUSED = "unrecognized arguments|argument |the following arguments|ambiguous option"
_USAGE = re.compile(rf"^(?:\S+: )?(?:[\w./-]*\.py: error: |[\w./ -]+: error: (?={_REFUSED}))(.+)$")
_OVERRIDE = re.compile(r"^Could not override '[^']*'.*")
_DEVICE = re.compile(r"(?:what\(\): *|terminated with exception: )(.{0,160}?CUDA error: .*)")
_TERMINATED = re.compile(
    r"(?:watchdog thread terminated with|raised the following async) exception: (.+)"
)
# What a C++ library prints of its own: file, line and function in front of the message.
_NATIVE = re.compile(
    r"^(?![\w.]*(?:Error|Exception)\b)(?:[\w.]+: )?(/\S+\.(?:cu|cuh|cpp|h):\d+ in function \S+: .+)"
)
_WHAT = re.compile(r"^\s*what\(\): +(.+)")
_ENDED = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+)")
_KERNEL = re.compile(
    r"\.cuh?:\d{1,9}: .{0,300}?(block: \[[\d,]{1,30}\], thread: .{0,20} Assertion `.{0,300})"
)
_SLURM_TASKS = re.compile(r"srun: error: \S+ tasks? ([\d,-]+): (.+)")
_SLURM = re.compile(r"(?:slurmstepd|srun): (?:error|Force Terminated): (.+)")
_MPI = re.compile(
    r"(?:process rank (\d{1,6}) .{0,300}exited on signal |exits with return code = -)(\d{1,2})\b"
)
_XID = re.compile(r"NVRM: Xid \([^)]{0,80}\): (\d+)(?:, *(.*))?")
_PRESSURE = re.compile(
    r"(?:killed due to memory pressure|Out of memory: Killed process"
    r"|exceeds the memory usage threshold).{0,160}"
)
# A path has a limit and one place to begin, so that the time grows with the length of the line.
_CHECK = re.compile(
    r"(?<![\w/.-])[\w/.-]{1,200}\.(?:cc|cpp|cu|h):\d{1,7}:?\]? {1,8}Check failed: .{0,300}"
)
_EXPERTS = re.compile(r"DeepEP [\w ()-]{0,60}timeout.{0,160}")
_LOST_GPU = ("fallen off the bus", "GPU is lost")
_NCCL = re.compile(r"NCCL WARN (.+)")
_FATAL = re.compile(r"^Fatal Python error: (.+)")
_SIGNAL = re.compile(
    r"(?:^|[:\s])(Segmentation fault|Bus error)(?: \(core dumped\)| ?\(\d+\)|[,.:]|$)"
)
# A shell and a container engine add 128 to the number of the signal.
_STATUS = re.compile(r"(?i)\bexit(?:ed with)?(?: exit)?[ -]?code:? {1,12}(13[4579]|143)\b")
_CAUGHT = re.compile(r"\*\*\* SIG(ABRT|SEGV|BUS) received at ")
_CAUGHT_NUMBERS = MappingProxyType({"ABRT": -6, "SEGV": -11, "BUS": -7})
_SYMBOL = re.compile(r"(?:symbol lookup error: .{0,300}|Cannot load symbol \w{1,80})")
_RAYLET = re.compile(r"A worker died or was killed while executing a task.{0,120}")
_SIGNALS = MappingProxyType(
    {"Segmentation fault": -11, "Bus error": -7, "Killed": -9, "Aborted": -6}
)


def shown_alone(body: str, file: str, name: str) -> dict[str, Any]:
    """Return the fields of the error that a line shows without others; empty for none.

    Args:
        name: The host or pod that wrote it, where the line says so.
    """
    if device := _DEVICE.search(body):
        return {"error": "CUDA error", "message": device[1]}
    if kernel := _KERNEL.search(body):
        return {"error": "CUDA error", "message": kernel[1], "weak": True}
    if what := _WHAT.match(body) or _TERMINATED.search(body) or _NATIVE.match(body):
        return {"error": "C++ exception", "message": what[1], "weak": True}
    if ended := _ENDED.search(body):
        return {
            "who": f"local rank {ended[2]} of {name or file}",
            "error": f"exit code {ended[1]}",
        }
    if usage := _USAGE.match(body):
        return {"error": "usage", "message": usage[1]}
    if override := _OVERRIDE.match(body):
        return {"error": "usage", "message": override[0]}
    return _of_system(body)


def _of_system(body: str) -> dict[str, Any]:
    """Return the fields of an error that a scheduler, a driver or the interpreter reports."""
    if tasks := _SLURM_TASKS.search(body):
        return _of_tasks(tasks[1], tasks[2])
    if slurm := _SLURM.search(body):
        return _of_scheduler(slurm[1])
    if xid := _XID.search(body):
        return {"error": f"Xid {xid[1]}", "message": xid[2] or ""}
    if "NVRM" in body and any(text in body for text in _LOST_GPU):
        return {"error": "NVRM", "message": body.strip()[:200]}
    if nccl := _NCCL.search(body):
        return {"error": "NCCL warning", "message": nccl[1], "weak": True}
    if fatal := _FATAL.match(body):
        # What ends by abort() has said why before, such as the watchdog of NCCL.
        error = "exit code -6" if fatal[1].startswith("Aborted") else "Fatal Python error"
        return {"error": error, "message": fatal[1]}
    if signal := _SIGNAL.search(body):
        return {"error": f"exit code {_SIGNALS[signal[1]]}", "message": body.strip()[:200]}
    if "OOMKilled" in body:
        return {"error": "exit code -9", "message": body.strip()[:200]}
    return _of_host(body)


def _of_host(body: str) -> dict[str, Any]:
    """Return the fields of an error that the host, a container engine or a launcher reports."""
    said = body.strip()[:200]
    if pressure := _PRESSURE.search(body):
        return {"error": "host memory", "message": pressure[0]}
    if experts := _EXPERTS.search(body):
        return {"error": "DeepEP", "message": experts[0]}
    if "node was low on resource" in body:
        return {"error": "evicted", "message": said}
    if "watchdog hang" in body or "watchdog got stuck" in body:
        return {"error": "watchdog stuck", "message": said}
    if symbol := _SYMBOL.search(body):
        return {"error": "symbol", "message": symbol[0]}
    if worker := _RAYLET.search(body):
        return {"error": "WorkerCrashedError", "message": worker[0]}
    if check := _CHECK.search(body):
        return {"error": "C++ exception", "message": check[0], "weak": True}
    if caught := _CAUGHT.search(body):
        return {"error": f"exit code {_CAUGHT_NUMBERS[caught[1]]}", "message": said}
    if status := _STATUS.search(body):
        return {"error": f"exit code {128 - int(status[1])}", "message": said}
    if ended := _MPI.search(body):
        fields = {"error": f"exit code -{ended[2]}", "message": said}
        return {**fields, "who": f"rank {int(ended[1])}"} if ended[1] else fields
    return {}


def _of_tasks(tasks: str, said: str) -> dict[str, Any]:
    """Return the fields of what Slurm says of some of its tasks."""
    who = {"who": f"rank {int(tasks)}"} if tasks.isdecimal() else {}
    status = _STATUS.search(said)
    number = 128 - int(status[1]) if status else None
    number = next((code for word, code in _SIGNALS.items() if said.startswith(word)), number)
    if number is not None:
        return {**who, "error": f"exit code {number}", "message": said}
    return {**who, **_of_scheduler(said)}


def _of_scheduler(said: str) -> dict[str, Any]:
    if "oom_kill" in said or "oom-kill" in said or said.startswith("Out Of Memory"):
        return {"error": "host memory", "message": said}
    return {"error": "scheduler", "message": said, "weak": True}
