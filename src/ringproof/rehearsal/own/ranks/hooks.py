"""What a rank watches and changes round a user's program on megatron-core, and why.

Nothing is known of the program but the library that it calls. Its steps are the calls of its
optimizer, its loss is what the model returns for its labels, and its layout is what it asks
``initialize_model_parallel`` for.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.optimizer import optimizer as optimizers
from megatron.core.pipeline_parallel import schedules
from megatron.core.transformer import TransformerConfig
from torch.optim import optimizer as torch_optimizer

from ringproof.rehearsal.own.report import OF_LABELS, REPORTED, STEPS, WITHOUT_CP
from ringproof.rehearsal.protocol.reports import DIGESTS
from ringproof.rehearsal.rank import weights
from ringproof.rehearsal.rank.probe import MODELS, digest_of, hand_over, log_step
from ringproof.rehearsal.standins.guard import replace_everywhere, wrapped

PASSES = (
    "forward_backward_no_pipelining",
    "forward_backward_pipelining_without_interleaving",
    "forward_backward_pipelining_with_interleaving",
)
DYNAMIC = ("hybrid_context_parallel", "dynamic_context_parallel")
NO_CP: Mapping[str, Any] = MappingProxyType(
    {
        "context_parallel_size": 1,
        "hierarchical_context_parallel_sizes": None,
        **dict.fromkeys(DYNAMIC, False),
    }
)
"""Arguments and fields that ask for CP, with the values that ask for none."""


def install() -> None:
    """Prepare the rank for the program that is run next, as the variables of `report` say."""
    # A script that Python runs finds the modules beside it.
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    watch = _Watch(int(os.environ[STEPS]))
    without = bool(os.environ.get(WITHOUT_CP))
    watch.watch_layout(without_cp=without)
    watch.watch_models()
    watch.watch_passes()
    watch.watch_optimizers()


class _Watch:
    """Collects what one rank of the program does, step by step."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._stepping = False
        self._norm, self._tokens = 0.0, (0, 0)
        self._told: dict[str, Any] = {"steps": [], "layout": None, "comm_types": [], "bf16": False}
        self._sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        hand_over(self._told)

    def watch_layout(self, *, without_cp: bool) -> None:
        """Note the layout that the program asks for, and take CP out of it where that is asked."""

        def groups(given: inspect.BoundArguments, initialize: Callable[[], Any]) -> Any:
            given.apply_defaults()
            asked = given.arguments
            self._told["layout"] = {
                "tensor": asked["tensor_model_parallel_size"],
                "pipeline": asked["pipeline_model_parallel_size"],
                "context": asked["context_parallel_size"],
                "levels": asked.get("hierarchical_context_parallel_sizes"),
                "dynamic": any(asked.get(name) for name in DYNAMIC),
            }
            if without_cp:
                asked.update({name: value for name, value in NO_CP.items() if name in asked})
            return initialize()

        def checked(given: inspect.BoundArguments, post_init: Callable[[], Any]) -> Any:
            config = given.args[0]
            kinds = config.cp_comm_type or "p2p"
            self._told["comm_types"] = [kinds] if isinstance(kinds, str) else list(kinds)
            self._told["bf16"] = config.params_dtype is torch.bfloat16 or config.bf16
            config.hidden_dropout = config.attention_dropout = 0.0
            for name, value in NO_CP.items() if without_cp else ():
                if hasattr(config, name):
                    setattr(config, name, value)
            return post_init()

        initialize = parallel_state.initialize_model_parallel
        replace_everywhere({initialize: wrapped(initialize, groups)}, "megatron".__eq__)
        TransformerConfig.__post_init__ = wrapped(TransformerConfig.__post_init__, checked)

    def watch_models(self) -> None:
        """Draw the weights of each model by their place, and add up what its labels cost."""

        def built(given: inspect.BoundArguments, build: Callable[[], Any]) -> Any:
            build()
            try:
                weights.draw(given.args[0])
            except Exception as error:  # the program's own class need not say how it is sharded
                self._told["undrawn"] = f"{type(error).__name__}: {error}"

        def computed(given: inspect.BoundArguments, forward: Callable[[], Any]) -> Any:
            found = forward()
            model, labels = given.args[0], given.arguments.get("labels")
            if labels is not None and model.post_process and torch.is_grad_enabled():
                mask = given.arguments.get("loss_mask")
                costs = found.detach().reshape(-1).double()
                counted = torch.ones_like(costs) if mask is None else mask.reshape(-1).double()
                self._add(OF_LABELS, float((costs * counted).sum()), float(counted.sum()))
                targets = labels.reshape(-1).to(torch.int64)
                count, digest = self._tokens
                digest = (digest + digest_of(targets)) % DIGESTS
                self._tokens = count + len(targets), digest
            return found

        for name, kind in MODELS.items():
            if name in sys.modules:
                model = getattr(sys.modules[name], kind)
                model.__init__ = wrapped(model.__init__, built)
                model.forward = wrapped(model.forward, computed)

    def watch_passes(self) -> None:
        """Add up what the program's own loss function reports."""

        def passed(given: inspect.BoundArguments, run: Callable[[], Any]) -> Any:
            found = run()
            for one in found if not given.arguments.get("forward_only") else ():
                for name, value in one.items() if isinstance(one, dict) else ():
                    numbers = _numbers(value)
                    if len(numbers) in (1, 2):
                        value, count = (*numbers, 1.0)[:2]
                        self._add(f"{REPORTED}{name}", value, count)
            return found

        found = {name: getattr(schedules, name) for name in PASSES}
        watched = {function: wrapped(function, passed) for function in found.values()}
        replace_everywhere(watched, "megatron".__eq__)

    def watch_optimizers(self) -> None:
        """End a step when an optimizer does: megatron-core's, or torch's where it is used alone."""
        for kind in _classes(optimizers.MegatronOptimizer):
            if "step" in vars(kind) and not inspect.isabstract(kind):
                kind.step = self._stepped(kind.step)
        torch_optimizer.register_optimizer_step_pre_hook(self._torch_step)
        torch_optimizer.register_optimizer_step_post_hook(self._torch_stepped)

    def _stepped(self, step: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(step)
        def run(*arguments: Any, **named: Any) -> Any:
            if self._stepping:  # an optimizer of optimizers
                return step(*arguments, **named)
            self._stepping = True
            found = step(*arguments, **named)
            self._stepping = False
            norm = found[1] if isinstance(found, tuple) and len(found) > 1 else None
            self._end_step(None if norm is None else float(norm), of_all=True)
            return found

        return run

    def _torch_step(self, optimizer: Any, *_: Any) -> None:
        if self._stepping:
            return
        total = 0.0
        for parameter in (one for group in optimizer.param_groups for one in group["params"]):
            gradient = getattr(parameter, "main_grad", None)
            gradient = parameter.grad if gradient is None else gradient
            total += 0.0 if gradient is None else float(gradient.double().square().sum())
        self._norm = total**0.5

    def _torch_stepped(self, *_: Any) -> None:
        if not self._stepping:
            self._end_step(self._norm, of_all=False)

    def _add(self, name: str, value: float, count: float) -> None:
        self._sums[name][0] += value
        self._sums[name][1] += count

    def _end_step(self, norm: float | None, *, of_all: bool) -> None:
        step = {"sums": dict(self._sums), "norm": norm, "of_all": of_all, "tokens": self._tokens}
        self._told["steps"].append(step)
        self._sums.clear()
        self._tokens = (0, 0)
        log_step({}, norm)
        if len(self._told["steps"]) == self._limit:
            raise SystemExit(0)  # every rank ends after the same step


def _numbers(value: Any) -> list[float]:
    """The first three numbers of a number, a tensor or a sequence; empty for anything else."""
    several = value.detach().reshape(-1) if isinstance(value, torch.Tensor) else value
    listed = several[:3] if isinstance(several, list | tuple | torch.Tensor) else [several]
    alone = [one for one in listed if not isinstance(one, torch.Tensor) or one.numel() == 1]
    return [float(one) for one in alone if isinstance(one, int | float | torch.Tensor)]


def _classes(kind: Any) -> set[Any]:
    """A class and all that derive from it."""
    return {kind}.union(*map(_classes, kind.__subclasses__()))
