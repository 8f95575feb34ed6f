"""What a rank changes round verl's unmodified code before it starts, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import verl.workers.engine.megatron.transformer_impl as engine
from megatron.core import parallel_state
from verl.utils.checkpoint import CheckpointHandler
from verl.utils.tracking import Tracking

from ringproof.rehearsal.rank import doubles
from ringproof.rehearsal.rank.probe import built, hand_over, log_step, stepped

PREFIX = "train/"
LEVELS = "a2a+p2p"


def install_float32() -> None:
    """Let the trainer of SFT compute in float32."""
    _install("float32")


def install_bfloat16() -> None:
    """Let the trainer of SFT compute in bfloat16."""
    _install("bfloat16")


def _install(dtype: str) -> None:
    """Prepare the engine, and watch what the trainer logs."""
    metrics = prepare_engine(dtype)
    log = Tracking.log

    def logged(tracking: Any, data: Mapping[str, Any], step: int, *rest: Any, **named: Any) -> Any:
        if f"{PREFIX}loss" in data:
            note_step({name.removeprefix(PREFIX): value for name, value in data.items()}, metrics)
        return log(tracking, data, step, *rest, **named)

    Tracking.log = logged
    # The trainer saves after its last step, which starts programs that have no stand-ins.
    CheckpointHandler.save_checkpoint = lambda *_, **__: None


def note_step(data: Mapping[str, Any], metrics: list[Mapping[str, float]]) -> None:
    """Report a training step: its loss and gradient norm, and whatever else verl logged of it."""
    found = {name: float(value) for name, value in data.items() if isinstance(value, int | float)}
    log_step({"loss": found.pop("loss")}, found.pop("grad_norm", None))
    metrics.append(found)


def prepare_engine(dtype: str) -> list[Mapping[str, float]]:
    """Let verl's Megatron engine compute in the precision of the rehearsal, on a host.

    Returns:
        What the rank hands over as its metrics of each step; empty so far.
    """
    metrics: list[Mapping[str, float]] = []
    lacking: list[str] = []
    hand_over({"doubles": doubles.installed(), "metrics": metrics, "lacking": lacking})
    own_start, own_ready = engine.MegatronEngine.__init__, engine.MegatronEngine.initialize
    own_build, own_step = (
        getattr(engine.MegatronEngine, name)
        for name in ("_build_megatron_module", "optimizer_step")
    )

    def start(self: Any, model_config: Any, engine_config: Any, *rest: Any, **named: Any) -> None:
        # The configuration only admits bfloat16 and float16, whose rounding hides defects.
        object.__setattr__(engine_config, "dtype", dtype)
        own_start(self, model_config, engine_config, *rest, **named)

    def ready(self: Any) -> None:
        own_ready(self)
        lacking.extend(_lacking_groups(self.tf_config))

    def build(self: Any) -> Any:
        chunks = own_build(self)  # with their weights loaded, and before the optimizer is made
        for chunk in chunks:
            built(chunk)
        return chunks

    def step(self: Any) -> Any:
        norm = own_step(self)
        stepped()
        return norm

    engine.MegatronEngine.__init__, engine.MegatronEngine.initialize = start, ready
    engine.MegatronEngine._build_megatron_module = build
    engine.MegatronEngine.optimizer_step = step
    own_count = getattr(engine.MegatronEngine, "_routed_num_tokens", None)
    if own_count is not None:
        # It returns an element of the batch's offsets, and verl adds up a copy of it on the GPU.
        # On a host the copy would be the element itself, and the batch would change.
        engine.MegatronEngine._routed_num_tokens = lambda self, data: own_count(self, data).clone()
    return metrics


def _lacking_groups(config: Any) -> Iterator[str]:
    """Yield a sentence where a type of communication has no groups."""
    kinds = config.cp_comm_type if isinstance(config.cp_comm_type, list) else [config.cp_comm_type]
    if LEVELS not in kinds or config.context_parallel_size == 1:
        return
    if not parallel_state.get_hierarchical_context_parallel_groups(check_initialized=False):
        yield (
            "The launch asks for a2a+p2p, but its groups were not built: Megatron was given no "
            "hierarchical_context_parallel_sizes, so that attention gets no CP group at all."
        )
