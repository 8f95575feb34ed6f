"""What the ranks run to show that a bank on a device is what it is on the tape; on any device."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch

from checks.model.device_labels import GPU, PretendedGpu
from ringproof.errors import InputError
from ringproof.harness.cluster import RankContext
from ringproof.harness.tape.backend import TapeBackend, choose_backend
from ringproof.harness.tape.memory import TapePool
from ringproof.reference.graphs.backend import GraphMemory
from ringproof.reference.graphs.scopes import Part
from ringproof.reference.training.assembly import assembly
from ringproof.reference.training.options import TrainOptions
from smoke.bank_cases import STATIC, Trained, trained
from smoke.training_matrix import Series


@dataclass(frozen=True)
class BankMemory:
    """What the bank of one rank holds.

    Args:
        entries: By the name of a graph.
        left: Entries that still hold something after the reset.
        allocated: Bytes on the device without a bank, with it, and after its reset; 0 on a CPU.
    """

    entries: dict[str, GraphMemory]
    left: int
    allocated: tuple[int, int, int]


def memory(rank: RankContext, *, options: TrainOptions) -> BankMemory:
    """Make what a run has, without a bank and with, and free the bank."""
    with assembly(replace(options, graphs=STATIC), rank.device):
        without = _allocated(rank.device)
    backend = choose_backend("auto", rank.device)
    with assembly(options, rank.device, backend=backend) as parts:
        graphs = [pair for bank in parts.banks for pair in bank.memory.items()]
        full = _allocated(rank.device)
        for bank in parts.banks:
            bank.reset()
        left = sum(len(bank.memory) for bank in parts.banks)
        empty = _allocated(rank.device)
    return BankMemory({str(key): held for key, held in graphs}, left, (without, full, empty))


def refused_then_eager(rank: RankContext, *, options: TrainOptions) -> tuple[str, Series]:
    """The last rank's parts read a value while they are captured; all go on without graphs.

    Returns:
        What is said of the capture, and what the same packs then train without one.
    """
    run = Part.run

    def reads(part: Part, call: Callable[..., Any], x: torch.Tensor, batch: Any) -> Any:
        if rank.rank == rank.world_size - 1:
            x.sum().item()
        return run(part, call, x, batch)

    said = ""
    with mock.patch.object(Part, "run", reads):
        try:
            trained(rank, options=options)
        except InputError as error:
            said = str(error)
    return said, trained(rank, options=replace(options, graphs=STATIC)).series


def pretended(rank: RankContext, *, options: TrainOptions) -> Trained:
    """Train where no tensor of the host may meet one of a GPU; graphs are the tape's."""
    reserve = TapePool.reserve

    def reserve_on_gpu(pool: TapePool, size: int) -> int:
        gpu.labels.hold(pool.scratch)
        return reserve(pool, size)

    with (
        mock.patch.object(TapePool, "reserve", reserve_on_gpu),
        PretendedGpu() as gpu,
    ):
        return trained(replace(rank, device=GPU), options=options, backend=TapeBackend())


def _allocated(device: torch.device) -> int:
    """Bytes of live tensors: without what cuBLAS keeps for each stream that it has seen."""
    gc.collect()
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize(device)
    torch._C._cuda_clearCublasWorkspaces()
    return int(torch.cuda.memory_allocated(device))
