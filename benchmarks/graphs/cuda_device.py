"""The device of a measurement: how it is timed, and what a reader has to know of it."""

from __future__ import annotations

import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

Run = Callable[[], object]
CLOCKS = "name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit,compute_mode"


def compare(ways: Mapping[str, Run], device: torch.device, rounds: int) -> dict[str, Any]:
    """Medians and quartiles in milliseconds. Rounds alternate, so that all see the same clocks.

    Args:
        ways: What to run, by name. Each has run before.
        device: By whose clock.
        rounds: Of each, at least two.

    Returns:
        For each way ``device`` (from the first kernel's start to the last one's end, waiting for
        the host included) and ``host`` (until the host has launched all), each as
        ``[lower quartile, median, upper quartile]``.
    """
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, run in ways.items():
            found[way].append(_milliseconds(run, device))
    return {
        way: dict(zip(("device", "host"), map(_quartiles, zip(*times, strict=True)), strict=True))
        for way, times in found.items()
    }


def median(times: Mapping[str, Any], way: str, clock: str = "device") -> float:
    """Of what :func:`compare` found."""
    return float(times[way][clock][1])


def describe(device: torch.device) -> dict[str, Any]:
    """Versions, GPU, driver and present clocks."""
    found: dict[str, Any] = {"python": platform.python_version(), "torch": torch.__version__}
    if device.type != "cuda":
        return {**found, "device": "cpu"}
    return {
        **found,
        "device": torch.cuda.get_device_name(device),
        "gpus": torch.cuda.device_count(),
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "nvidia-smi": clocks(),
    }


def clocks() -> list[dict[str, str]]:
    """What ``nvidia-smi`` says of each GPU now; nothing where it does not run."""
    command = ["nvidia-smi", f"--query-gpu={CLOCKS}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    lines = (line.split(", ") for line in done.stdout.splitlines())
    return [dict(zip(CLOCKS.split(","), line, strict=False)) for line in lines]


def outside_of_torch(device: torch.device) -> int:
    """Bytes of the GPU that are taken, but not by torch's allocator: the driver's own, too."""
    if device.type != "cuda":
        return 0
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return int(total - free - torch.cuda.memory_reserved(device))


def _milliseconds(run: Run, device: torch.device) -> tuple[float, float]:
    if device.type != "cuda":
        start = time.perf_counter()
        run()
        elapsed = (time.perf_counter() - start) * 1e3
        return elapsed, elapsed
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    start = time.perf_counter()
    before.record()
    run()
    after.record()
    launched = (time.perf_counter() - start) * 1e3
    torch.cuda.synchronize(device)
    return before.elapsed_time(after), launched


def _quartiles(values: tuple[float, ...]) -> list[float]:
    return [round(value, 5) for value in statistics.quantiles(values, n=4, method="inclusive")]
