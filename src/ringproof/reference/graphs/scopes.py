"""Parts of a model that one graph holds.

=======  ===============================  ========================================================
scope    a graph is                       models
=======  ===============================  ========================================================
layer    a layer, norms and residuals in  without experts: their dispatch reads counts back
attn     attention (GQA, MLA), no norm    with attention
router   scores, choice, balance loss     with experts; the dispatch that follows is eager
=======  ===============================  ========================================================

The router's balance loss counts choices over the CP group, so its graph has a CP size, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ringproof.reference.graphs.names import check_scope
from ringproof.reference.graphs.replay import Outputs
from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.model.moe import Router, Routing
from ringproof.reference.model.stage import Stage


@dataclass(frozen=True)
class Part:
    """A module that is captured. It is called with rows and the microbatch.

    Args:
        name: Prefix of the names of its parameters.
        flat: Converts the result of the module to that of a graph.
        restored: Converts the result of a graph to that of the module.
        recompute: Whether the graph's backward runs the forward again.
    """

    name: str
    module: nn.Module
    flat: Callable[[Any], Outputs] = lambda found: found
    restored: Callable[[Any], Any] = lambda found: found
    recompute: bool = False

    def run(self, call: Callable[..., Any], x: torch.Tensor, batch: PackedBatch) -> Outputs:
        """Run the module's own forward, ``call``, as it is captured."""
        if not (self.recompute and torch.is_grad_enabled()):
            return self.flat(call(x, batch))
        return self.flat(checkpoint(call, x, batch, use_reentrant=False, preserve_rng_state=False))


def parts_of(stage: Stage, scope: str) -> tuple[Part, ...]:
    """Return the captured parts of a stage, in the order of its forward; there may be none.

    Raises:
        InputError: See :func:`~ringproof.reference.graphs.names.check_scope`.
    """
    layers: dict[str, Any] = {f"layers.{i}": layer for i, layer in stage.layers.items()}
    feed_forwards = [layer.kind.feed_forward for layer in layers.values()]
    check_scope(feed_forwards, scope, recompute=stage.recompute)
    if scope == "layer":
        return tuple(Part(name, layer, recompute=stage.recompute) for name, layer in layers.items())
    if scope == "attn":
        return tuple(
            Part(f"{name}.attention", layer.get_submodule("attention"))
            for name, layer in layers.items()
            if layer.kind.mixer is not None
        )
    return tuple(
        Part(
            name,
            module,
            flat=lambda found: (*found[0], found[1]),
            restored=lambda found: (Routing(*found[:-1]), found[-1]),
        )
        for name, module in stage.named_modules()
        if isinstance(module, Router) and name.startswith("layers.")
    )
