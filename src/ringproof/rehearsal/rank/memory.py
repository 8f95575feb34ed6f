"""A rank at full size: put in place what counts its memory, watch upstream's steps, report."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules import module as modules

from ringproof.launch.full.size import expandable
from ringproof.rehearsal.hollow import devices, groups, shapes
from ringproof.rehearsal.hollow.classify import Sorted
from ringproof.rehearsal.hollow.ledger import Ledger
from ringproof.rehearsal.hollow.mode import HollowMode
from ringproof.rehearsal.hollow.storages import Storages
from ringproof.rehearsal.protocol.board import Board
from ringproof.rehearsal.protocol.memory import MemoryReport, StepMemory
from ringproof.rehearsal.protocol.program import FullSize, Program
from ringproof.rehearsal.protocol.traffic import GroupTraffic
from ringproof.rehearsal.standins import engine, extension
from ringproof.rehearsal.standins.communication import Contributions
from ringproof.rehearsal.standins.guard import put

TRAINING = "megatron.training.training"
RECOMPUTING, SHARING = "megatron.core.tensor_parallel.random", "_get_share_storage"
OFFLOADING = "megatron.core.pipeline_parallel.fine_grained_activation_offload"
OFFLOADER, OFFLOADABLE = "ChunkOffloadHandler", "_can_manage_tensor_for_offload"
PIPELINE = "megatron.core.pipeline_parallel.utils"
AFFINITY = "set_ideal_affinity_for_current_gpu"
OPTIMIZERS = ("megatron.core.optimizer.optimizer", "megatron.core.optimizer.distrib_optimizer")


class MemoryWatch:
    """What counts the memory of one rank.

    Args:
        computes: Whether everything is computed nevertheless, to compare.
    """

    def __init__(self, *, computes: bool = False) -> None:
        self.computes = computes
        self._ledger = Ledger()
        self._storages = Storages(self._ledger)
        self._mode = HollowMode(self._storages, computes=computes)
        self._attention = shapes.HollowAttention()
        self._seconds: list[float] = []
        self._logged: list[tuple[int, int]] = []
        self._sent: tuple[GroupTraffic, ...] = ()
        self._flops = 0

    def install(self) -> tuple[extension.Wrap, engine.AttentionKernels]:
        """Put it in the place of what `cuda.install` has put there; before upstream is imported.

        Returns:
            What stand-ins of kernels are put behind, and those of fused attention.
        """
        # With deterministic algorithms, torch would write into all memory that it allocates.
        torch.utils.deterministic.fill_uninitialized_memory = False
        devices.install(self._storages)
        as_kernel = shapes.compiled(self._storages)
        put(((torch, "compile", as_kernel), (torch.jit, "script", as_kernel)))
        fused = engine.COMPUTING
        if not self.computes:
            functional = torch.nn.functional
            put(((functional, "dropout", shapes.dropout), (torch, "dropout", shapes.dropout)))
            fused = (self._attention.forward, self._attention.backward)
        return shapes.boundary(self._storages, computes=self.computes), fused

    def finish(self) -> None:
        """Let Transformer Engine allocate as many workspaces as on a GPU; once it is imported."""
        sys.modules[extension.NAME].get_num_cublas_streams = (  # type: ignore[attr-defined]
            lambda: shapes.CUBLAS_STREAMS
        )

    def install_groups(
        self, traffic: Contributions, rank: int, program: Program, folder: Path
    ) -> None:
        """Let all ranks that do not run be numbers."""
        port = int(os.environ["MASTER_PORT"])
        store = groups.store(port, serves=False) if program.exchanges else None
        board = Board(folder / f"rank-{rank}.board")
        peers = groups.Peers(store, program.started, rank, board)
        groups.install(self._storages, traffic, peers, program.ranks)

    @contextlib.contextmanager
    def watching(self, traffic: Contributions, size: FullSize) -> Iterator[None]:
        """Count what upstream's program does in the block."""
        self._mode.crowded = size.routing == "worst"
        self._ledger.allocator.expandable = expandable(os.environ)
        modules.register_module_forward_pre_hook(self._entered)
        modules.register_module_forward_hook(self._left, always_call=True)
        recomputing: Any = sys.modules.get(RECOMPUTING)
        if hasattr(recomputing, SHARING):  # which upstream would compile
            setattr(recomputing, SHARING, lambda: self._storages.share)
        handler: Any = getattr(sys.modules.get(OFFLOADING), OFFLOADER, None)
        if hasattr(handler, OFFLOADABLE):  # it asks for tensors on ``cuda``
            asked = devices.naming_cuda(self._storages, getattr(handler, OFFLOADABLE))
            setattr(handler, OFFLOADABLE, staticmethod(asked))
        training: Any = sys.modules.get(TRAINING)
        if training is not None:
            if size.first:
                training.train_step = _begun_with(size.first, training)
            self._watch_training(training, traffic)
        for name in OPTIMIZERS:
            for value in list(vars(sys.modules.get(name, object)).values()):
                if isinstance(value, type) and "step" in vars(value):
                    value.step = self._optimizing(value.step)  # type: ignore[attr-defined]
        with self._mode:
            yield

    def _watch_training(self, training: Any, traffic: Contributions) -> None:
        training.train_step = self._stepping(training.train_step, traffic)
        training.training_log = self._logging(training.training_log)
        training.build_train_valid_test_data_loaders = _training_everywhere(
            training.build_train_valid_test_data_loaders, training.get_args
        )
        for module in (training, sys.modules.get(PIPELINE)):
            if hasattr(module, AFFINITY):  # of the host's cores, asked of a GPU's driver
                setattr(module, AFFINITY, lambda: None)
        setup = training.setup_model_and_optimizer

        @functools.wraps(setup)
        def set_up(*arguments: Any, **named: Any) -> Any:
            built = setup(*arguments, **named)
            self._name_parameters(built[0])
            return built

        training.setup_model_and_optimizer = set_up

    def _entered(self, module: Any, _: object) -> None:
        number = getattr(module, "layer_number", None)
        layer = f" of layer {number}" if isinstance(number, int) else ""
        self._storages.scopes.append(type(module).__name__ + layer)

    def _left(self, *_: object) -> None:
        if self._storages.scopes:
            self._storages.scopes.pop()

    def _name_parameters(self, model: Any) -> None:
        """Say which blocks hold parameters and their gradients."""
        for parameter in (p for chunk in model for p in chunk.parameters()):
            self._name(getattr(parameter, "main_grad", None), "gradients")
            self._name(parameter.grad, "gradients")
            self._name(parameter, "parameters")

    def _name(self, tensor: torch.Tensor | None, kind: str) -> None:
        number = None if tensor is None else self._storages.number(tensor)
        if number is not None:
            self._ledger.blocks[number].kind = kind

    def _stepping(self, step: Callable[..., Any], traffic: Contributions) -> Callable[..., Any]:
        @functools.wraps(step)
        def train_step(*arguments: Any, **named: Any) -> Any:
            calls, sizes = traffic.calls.copy(), traffic.bytes.copy()
            flops, began = self._total_flops(), time.perf_counter()
            self._ledger.mark("begins")
            self._storages.phase = "step"
            try:
                return step(*arguments, **named)
            finally:
                self._ledger.mark("ends")
                self._storages.phase = "between"
                self._seconds.append(time.perf_counter() - began)
                self._sent = _difference(traffic, calls, sizes)
                self._flops = self._total_flops() - flops

        return train_step

    def _total_flops(self) -> int:
        return self._mode.flops + self._attention.flops

    def _logging(self, log: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(log)
        def training_log(*arguments: Any, **named: Any) -> Any:
            self._logged.append((self._ledger.bytes, self._ledger.peak))
            return log(*arguments, **named)

        return training_log

    def _optimizing(self, step: Callable[..., Any]) -> Callable[..., Any]:
        storages = self._storages

        @functools.wraps(step)
        def optimizer_step(*arguments: Any, **named: Any) -> Any:
            before, storages.phase = storages.phase, "optimizer"
            try:
                return step(*arguments, **named)
            finally:
                storages.phase = before

        return optimizer_step

    def report(self, relative: Callable[[str], str]) -> MemoryReport:
        """Return what was counted.

        Args:
            relative: Makes paths relative to the folders of upstream code.
        """
        ledger, blocks = self._ledger, Sorted(self._ledger, relative)
        began = [mark for mark in ledger.marks if mark.name == "begins"]
        ended = [mark for mark in ledger.marks if mark.name == "ends"]
        steps = [
            StepMemory(start.bytes, end.peak, end.bytes, seconds)
            for start, end, seconds in zip(began, ended, self._seconds, strict=False)
        ]
        made = blocks.at_peak()
        return MemoryReport(
            peak=ledger.peak,
            steady=ended[-1].bytes if ended else ledger.bytes,
            at_peak=blocks.kinds(ledger.peak_event),
            at_rest=blocks.kinds(ended[-1].event if ended else len(ledger.events)),
            place=relative(made.place),
            module=made.module,
            phase=blocks.phase(made),
            highest=blocks.highest(),
            largest=blocks.largest(ledger.peak_event),
            steps=tuple(steps),
            logged=tuple(self._logged),
            timeline=blocks.timeline(began[-1].event, ended[-1].event) if ended else (),
            sent=self._sent,
            flops=self._flops,
            invented={relative(what): n for what, n in self._storages.invented.most_common(50)},
        )


def _begun_with(microbatches: int, training: Any) -> Callable[..., Any]:
    """Return upstream's training step, the first one with so many microbatches."""
    step, count = training.train_step, training.get_num_microbatches
    counts = iter([lambda: microbatches])

    @functools.wraps(step)
    def train_step(*arguments: Any, **named: Any) -> Any:
        training.get_num_microbatches = next(counts, count)
        try:
            return step(*arguments, **named)
        finally:
            training.get_num_microbatches = count

    return train_step


def _training_everywhere(
    build: Callable[..., Any], get_args: Callable[[], Any]
) -> Callable[..., Any]:
    """Let a stage without data train: rank 0, which has data, would tell it so by a broadcast."""

    @functools.wraps(build)
    def built(*arguments: Any, **named: Any) -> Any:
        loaders = build(*arguments, **named)
        get_args().do_train = True
        return loaders

    return built


def _difference(
    traffic: Contributions, calls: Counter[Any], sizes: Counter[Any]
) -> tuple[GroupTraffic, ...]:
    """Return what was carried since the counters were copied."""
    since = Contributions(traffic.calls - calls, traffic.bytes - sizes)
    return since.totals()
