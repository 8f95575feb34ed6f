"""One layer on one rank: eager, and replayed by a bank of one slot, timed side by side."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from ringproof.errors import InputError
from ringproof.reference.graphs.bank import BankOptions, GraphBank, capture_bank
from ringproof.reference.graphs.scopes import parts_of
from ringproof.reference.graphs.tape.backend import choose_backend
from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.model.config import AttentionShape, ModelConfig, preset
from ringproof.reference.model.stage import Stage
from ringproof.reference.model.static import load
from ringproof.reference.model.tensor_parallel import TensorParallel
from ringproof.reference.packing.sequences import Capacity
from ringproof.reference.topology.dynamic import ContextParallelGroup
from smoke.model_batches import capacity_batch, group_of_one, random_sequences

WAYS = ("plain", "eager", "replay", "load")
"""Pack as it is (flash attention), pack of capacity (masks), its replay, filling its slot."""
MULTIPLE, ENTRIES, SLOPE = 16, 6, 1e-3
SECONDS, LEAST_ROUNDS = 3.0, 5


@dataclass(frozen=True)
class Layer:
    """What is measured.

    Args:
        hidden: Width of the layer.
        rows: Rows of each rank.
        head_width: Width of a head; a quarter of the query heads are key/value heads.
        dtype: ``bfloat16`` or ``float64``.
    """

    hidden: int
    rows: int
    head_width: int = 128
    dtype: str = "bfloat16"

    @property
    def config(self) -> ModelConfig:
        """A model like Qwen3, with one such layer."""
        small, heads = preset("qwen3-tiny"), self.hidden // self.head_width
        shape = AttentionShape(
            heads=heads,
            kv_heads=max(1, heads // 4),
            head_width=self.head_width,
            normalise=True,
        )
        return replace(
            small,
            name=f"qwen3-like, hidden {self.hidden}",
            hidden=self.hidden,
            feed_forward=3 * self.hidden,
            layers=small.layers[:1],
            attention=shape,
        )

    def stage(self, device: torch.device) -> Stage:
        """The layer, without embedding or loss."""
        return Stage(
            self.config,
            layers=range(1),
            first=False,
            last=False,
            seed=0,
            dtype=getattr(torch, self.dtype),
            device=device,
            tensor_parallel=TensorParallel(),
        )

    def batch(
        self, group: ContextParallelGroup, device: torch.device, *, captured: bool = False
    ) -> PackedBatch:
        """A pack of three sequences, with padding and a dummy tail of an eighth of its rows.

        Args:
            group: CP group of the pack.
            device: Device of its tensors.
            captured: Whether it is the pack to capture with; replays compute another one.
        """
        rows = self.rows * group.size
        lengths = [rows // 2 - 5, rows // 4 - 3, rows // 8 - 1]
        lengths = lengths[::-1] if captured else lengths
        room = Capacity(rows=rows, entries=ENTRIES)
        return capacity_batch(
            random_sequences(lengths), group, room, multiple=MULTIPLE, device=device
        )

    def bank(
        self, stage: Stage, group: ContextParallelGroup, backend: str, device: torch.device
    ) -> GraphBank:
        """A bank of one slot and one CP size."""
        options = BankOptions(
            backend=choose_backend(backend, device),
            slots=1,
            warm_up=3,
            shape=(self.rows, self.hidden),
            dtype=getattr(torch, self.dtype),
            device=device,
        )
        return capture_bank(
            parts_of(stage, "layer"), [self.batch(group, device, captured=True)], options
        )


def measure(layer: Layer, backend: str, device: torch.device, rounds: int) -> dict[str, Any]:
    """Times and memory of a layer; or why there are none."""
    found: dict[str, Any] = {**asdict(layer), "backend": backend}
    try:
        with group_of_one() as alone:
            return {**found, **_measure(layer, alone, backend, device, rounds=rounds)}
    except (InputError, torch.cuda.OutOfMemoryError) as error:
        return {**found, "not measured": str(error).partition("\n")[0]}
    finally:
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _measure(
    layer: Layer, alone: ContextParallelGroup, backend: str, device: torch.device, *, rounds: int
) -> dict[str, Any]:
    stage, batch = layer.stage(device), layer.batch(alone, device)
    for run in ways(layer, stage, batch, batch).values():
        run()  # what is loaded at first use is loaded before the graphs are
    bank = layer.bank(stage, alone, backend, device)
    try:
        memory = [asdict(held) for held in bank.memory.values()]
        runs = ways(layer, stage, batch, bank.enter(batch))
        same = _same_bits(stage, runs["eager"], runs["replay"])
        for run in runs.values():
            run()
        times = compare(runs, device, rounds)
    finally:
        bank.reset()
    return {
        "milliseconds": times,
        **ratios(times),
        "same bits": same,
        "memory": memory,
    }


def ways(
    layer: Layer, stage: Stage, batch: PackedBatch, static: PackedBatch
) -> dict[str, Callable[[], Any]]:
    """Runs to compare, by name: forward and backward in three ways, and the copies into a slot.

    Args:
        layer: What is measured.
        stage: Has this layer only, which replays for the static batch.
        batch: Microbatch of capacity.
        static: Microbatch of a slot.
    """
    (module,) = stage.layers.values()
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(layer.rows, layer.hidden, generator=generator, dtype=torch.float64)
    x = drawn.to(batch.positions.device, getattr(torch, layer.dtype)).requires_grad_()
    gradient = torch.full_like(x, SLOPE)
    step = partial(_step, module, x, gradient)
    runs = (
        partial(step, replace(batch, metadata=None)),
        partial(step, batch),
        partial(step, static),
        partial(load, static, batch),
    )
    return dict(zip(WAYS, runs, strict=True))


def compare(
    ways: Mapping[str, Callable[[], object]], device: torch.device, rounds: int
) -> dict[str, Any]:
    """Time every way in turns, so that all see the same clocks.

    Args:
        ways: What to run, by name. Each has run before.
        device: Device whose clock is read.
        rounds: Most runs of each way. After ``SECONDS`` there are no more, but at least five.

    Returns:
        For each way ``device`` (from the first kernel's start to the last one's end, waiting for
        the host included) and ``host`` (until the host has launched all), each as
        ``[lower quartile, median, upper quartile]`` in milliseconds.
    """
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    end = time.monotonic() + SECONDS
    for done in range(rounds):
        if done >= LEAST_ROUNDS and time.monotonic() > end:
            break
        for way, run in ways.items():
            found[way].append(_milliseconds(run, device))
    return {
        way: dict(zip(("device", "host"), map(_quartiles, zip(*times, strict=True)), strict=True))
        for way, times in found.items()
    }


def median(times: Mapping[str, Any], way: str, clock: str = "device") -> float:
    """Median of what :func:`compare` found for a way."""
    return float(times[way][clock][1])


def _milliseconds(run: Callable[[], object], device: torch.device) -> tuple[float, float]:
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


def ratios(times: dict[str, Any]) -> dict[str, float]:
    """How often a replay fits into the time of the other; below 1 a replay is slower."""
    replay = median(times, "replay")
    return {
        "eager / replay": round(median(times, "eager") / replay, 4),
        "plain / replay": round(median(times, "plain") / replay, 4),
        "eager / replay, host": round(
            median(times, "eager", "host") / median(times, "replay", "host"), 4
        ),
    }


def _step(
    module: nn.Module, x: torch.Tensor, gradient: torch.Tensor, batch: PackedBatch
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Forward and backward; gradients add up in the parameters, as in a step of microbatches."""
    x.grad = None
    output = module(x, batch)[0]
    output.backward(gradient)
    return output, x.grad


def _same_bits(stage: Stage, eager: Callable[[], Any], replay: Callable[[], Any]) -> bool:
    """Whether outputs and all gradients are equal."""
    found = []
    for run in (eager, replay):
        stage.zero_grad()
        output, gradient = run()
        parameters = [p.grad.clone() for p in stage.parameters()]
        found.append([output.detach().clone(), gradient.clone(), *parameters])
    return all(torch.equal(*pair) for pair in zip(*found, strict=True))
