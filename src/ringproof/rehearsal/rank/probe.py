"""What a rank sees of upstream while it runs: losses, attention calls, iterations.

A script of ours that runs in the place of a training program reports the same by `hand_over`,
`log_step` and `log_evaluation`.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import time
import types
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist

from ringproof.rehearsal.protocol.reports import DIGESTS, AttentionCall, Iteration
from ringproof.rehearsal.standins.engine import ATTENTION, PACKAGE
from ringproof.rehearsal.standins.guard import replace_everywhere, wrapped

MODELS = types.MappingProxyType({
    "megatron.core.models.gpt.gpt_model": "GPTModel",
    "megatron.core.models.hybrid.hybrid_model": "HybridModel",
    "megatron.core.models.mamba.mamba_model": "MambaModel",
})  # fmt: skip
"""Classes whose ``forward`` gets labels and the mask of the loss, by their module."""
MODULE = "ringproof_probe"  # under which scripts in the same process find the probe


class RankProbe:
    """Collects what one rank does; the only mutable record of a run."""

    def __init__(self) -> None:
        self.results: Any = None
        self.built: Callable[[Any], None] = lambda _: None
        self.iterations: list[Iteration] = []
        self.evaluations: list[Mapping[str, float]] = []
        self.attention: list[AttentionCall] = []
        self._evaluating = False
        self._stepped = 0
        self._seen: Counter[tuple[int, str, int, bool]] = Counter()
        self._path: tuple[str, tuple[tuple[int, ...], ...]] | None = None
        self._since = time.perf_counter()
        self._tokens: tuple[int, int] | None = None

    @property
    def iteration(self) -> int:
        """Number of the step that is being computed."""
        return len(self.iterations) + 1

    @property
    def moment(self) -> int:
        """Number of the step that is being computed; that of an evaluation is negative."""
        return (
            -len(self.evaluations) - 1
            if self._evaluating
            else max(self.iteration, self._stepped + 1)
        )

    def stepped(self) -> None:
        """Note that the optimizer has made its step, which not every rank may log."""
        self._stepped += 1

    def watch_training(self, training: Any, evaluation: Any) -> None:
        """Watch the modules that call ``training_log`` and that define ``evaluate``."""
        training.training_log = wrapped(training.training_log, self._logged)
        evaluation.evaluate = wrapped(evaluation.evaluate, self._evaluated)

    def step(self, losses: Mapping[str, float], grad_norm: float | None) -> None:
        """Note the end of a training step."""
        now = time.perf_counter()
        seconds = now - self._since
        self.iterations.append(Iteration(self.iteration, losses, grad_norm, seconds, self._tokens))
        self._since, self._tokens = now, None

    def watch_attention(self) -> None:
        """Watch Transformer Engine's attention module and its context parallel functions."""
        module = sys.modules[f"{ATTENTION}.dot_product_attention"].DotProductAttention
        module.forward = wrapped(module.forward, self._attended)
        cp = sys.modules[f"{ATTENTION}.context_parallel"].attn_forward_func_with_cp
        replace_everywhere({cp: wrapped(cp, self._communicated)}, PACKAGE.__eq__)

    def watch_models(self) -> None:
        """Watch what the loaded model classes of Megatron are trained on."""
        for name, kind in MODELS.items():
            if name in sys.modules:
                model = getattr(sys.modules[name], kind)
                model.forward = wrapped(model.forward, self._trained)

    def _trained(self, given: inspect.BoundArguments, forward: Callable[[], Any]) -> Any:
        labels, mask = given.arguments.get("labels"), given.arguments.get("loss_mask")
        if getattr(given.args[0], "post_process", False):
            self.count(labels, mask)
        return forward()

    def count(self, labels: torch.Tensor | None, mask: torch.Tensor | None) -> None:
        """Count the targets of a microbatch whose loss is computed here, by their mask."""
        if labels is None or mask is None or self._evaluating:
            return
        targets = labels.reshape(-1)[mask.reshape(-1) > 0].to(torch.int64)
        count, digest = self._tokens or (0, 0)
        self._tokens = count + len(targets), (digest + digest_of(targets)) % DIGESTS

    def _logged(self, given: inspect.BoundArguments, training_log: Callable[[], Any]) -> Any:
        norm = given.arguments.get("grad_norm")
        losses = _numbers(given.arguments["loss_dict"])
        self.step(losses, None if norm is None else float(norm))
        return training_log()

    def _evaluated(self, _: inspect.BoundArguments, evaluate: Callable[[], Any]) -> Any:
        self._evaluating = True
        try:
            found = evaluate()
        finally:
            self._evaluating = False
        losses = found[0] if isinstance(found, tuple) else found
        self.evaluations.append(_numbers(losses or {}))
        return found

    def _attended(self, given: inspect.BoundArguments, forward: Callable[[], Any]) -> Any:
        self._path = None
        result = forward()
        module, query, *_ = given.args
        self._note(module, query, given.arguments.get("qkv_format") or module.qkv_format)
        return result

    def _note(self, module: Any, query: torch.Tensor, layout: str) -> None:
        layer = module.layer_number or 0
        own = getattr(module, "config", None)
        without_cp = getattr(own, "context_parallel_size", None) == 1
        comm_type, ranks = self._path or ("none", ((dist.get_rank(),),))
        phase = "evaluate" if self._evaluating else "train"
        # Inside of a backward pass attention is called again only to recompute activations.
        if torch._C._current_graph_task_id() != -1:
            phase = "recompute"
        if torch.cuda.is_current_stream_capturing():
            phase = "capture"
        elif sys.modules[f"{PACKAGE}.pytorch.graph"].is_graph_capturing():
            phase = "warmup"
        place = (self.iteration, phase, layer, without_cp)
        microbatch = self._seen[place]
        self._seen[place] += 1
        rows = query.shape[0] if layout == "thd" else query.shape[0] * query.shape[1]
        sizes = tuple(map(len, ranks))
        noted = (self.iteration, phase, layer, microbatch, comm_type, sizes, ranks, layout, rows)
        self.attention.append(AttentionCall(*noted, without_cp))

    def _communicated(self, given: inspect.BoundArguments, communicate: Callable[[], Any]) -> Any:
        groups = given.arguments["cp_group"]
        levels = groups if isinstance(groups, list) else [groups]
        ranks = tuple(tuple(dist.get_process_group_ranks(level)) for level in levels)
        self._path = (given.arguments.get("cp_comm_type", "p2p"), ranks)
        return communicate()


def digest_of(tokens: torch.Tensor) -> int:
    """Return a number below `DIGESTS` for a multiset of tokens [t], the same in every order.

    Digests of parts add up to that of the whole, modulo `DIGESTS`.
    """
    mixed = (tokens + 1) * 0x9E3779B1  # each value is spread over the number, then multiplied again
    return int(((mixed ^ (mixed >> 15)) * 0x85EBCA77 % DIGESTS).sum()) % DIGESTS


def open_for(probe: RankProbe) -> None:
    """Let scripts in this process report to ``probe``."""
    module: Any = types.ModuleType(MODULE)
    module.probe = probe
    sys.modules[MODULE] = module


def hand_over(value: Any) -> None:
    """Hand a value over to the caller of the run; the last one counts."""
    sys.modules[MODULE].probe.results = value


def built(model: Any) -> None:
    """Finish a model chunk that was built: draw its weights, disturb and record it, as asked."""
    sys.modules[MODULE].probe.built(model)


def stepped() -> None:
    """Report that the optimizer has made its step, on a rank that may not log it."""
    sys.modules[MODULE].probe.stepped()


def count_targets(labels: torch.Tensor | None, mask: torch.Tensor | None) -> None:
    """Report the targets of a microbatch of a program whose model does not get their mask."""
    sys.modules[MODULE].probe.count(labels, mask)


def log_step(losses: Mapping[str, float], grad_norm: float | None) -> None:
    """Report a training step of a program that is not Megatron's own."""
    sys.modules[MODULE].probe.step(losses, grad_norm)


def log_evaluation(losses: Mapping[str, float]) -> None:
    """Report an evaluation of a program that is not Megatron's own."""
    sys.modules[MODULE].probe.evaluations.append(losses)


@contextlib.contextmanager
def world() -> Iterator[int]:
    """Form the process group of the ranks that the environment names; yield their number."""
    size = int(os.environ["WORLD_SIZE"])
    dist.init_process_group("nccl", rank=int(os.environ["RANK"]), world_size=size)
    try:
        yield size
    finally:
        dist.destroy_process_group()


def _numbers(losses: Mapping[str, Any]) -> dict[str, float]:
    """Losses as numbers; a pair of sum and count is their quotient."""
    found = {}
    for name, value in losses.items():
        flat = [float(item) for item in value] if _is_pair(value) else [float(value)]
        found[name] = flat[0] / flat[1] if len(flat) == 2 and flat[1] else flat[0]
    return found


def _is_pair(value: Any) -> bool:
    return isinstance(value, list | tuple) or (isinstance(value, torch.Tensor) and value.dim() > 0)
