"""Holds what a CUDA graph reads, by addresses, against what the caller of its module gives."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import itertools
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ringproof.rehearsal.standins.guard import wrapped

Given = Mapping[str, torch.Tensor]


@dataclasses.dataclass
class _Graph:
    """A captured graph: the tensors that it was captured with, and the ranks of its CP group."""

    number: int
    inputs: Mapping[str, weakref.ref[torch.Tensor]] = dataclasses.field(default_factory=dict)
    ranks: tuple[int, ...] = ()
    replays: int = 0


class ReplayWatch:
    """Watches the captures and replays of this process."""

    def __init__(self) -> None:
        self._numbers, self._captured = itertools.count(1), _Graph(0)
        self._expected: tuple[str, str, Sequence[int], Given, Callable[[str], None]] | None = None
        self._earlier: dict[tuple[str, str, bytes], str] = {}
        kind: Any = torch.cuda.CUDAGraph
        kind.capture_begin = wrapped(kind.capture_begin, self._begins)
        kind.replay = wrapped(kind.replay, self._replays)

    def called(self, given: Given) -> None:
        """Note the tensors with which a module is called if it is captured."""
        if torch.cuda.is_current_stream_capturing():
            # Upstream keeps them: what it lets go is not kept from being freed.
            self._captured.inputs = {name: weakref.ref(one) for name, one in given.items()}

    def captures(self) -> bool:
        """Return whether modules run for a capture, or to warm up for one."""
        graphs: Any = sys.modules["transformer_engine.pytorch.graph"]
        return torch.cuda.is_current_stream_capturing() or bool(graphs.is_graph_capturing())

    def attends(self, named: Mapping[str, Any]) -> None:
        """Note the CP group that a module is called with in a capture.

        Attention itself has its own group again when it ends.
        """
        if "cp_group" in named and torch.cuda.is_current_stream_capturing():
            given = named["cp_group"]
            groups = given if isinstance(given, list) else [given]
            own, ranks = [torch.distributed.get_rank()], torch.distributed.get_process_group_ranks
            found = {rank for group in groups for rank in (ranks(group) if group else own)}
            self._captured.ranks = tuple(sorted(found))

    def expect(
        self, module: str, moment: str, ranks: Sequence[int], given: Given,
        note: Callable[[str], None],
    ) -> None:  # fmt: skip
        """Note what the next replay takes from elsewhere than from the caller of a module.

        Args:
            moment: The step and microbatch, which ``ranks`` share, in words.
        """
        self._expected = module, moment, ranks, given, note

    def _begins(self, given: inspect.BoundArguments, begin: Callable[[], Any]) -> Any:
        given.args[0].watched = self._captured = _Graph(next(self._numbers))
        return begin()

    def _replays(self, called: inspect.BoundArguments, replay: Callable[[], Any]) -> Any:
        graph: _Graph = called.args[0].watched
        graph.replays += 1
        if self._expected is not None:
            (module, moment, ranks, given, note), self._expected = self._expected, None
            which = f"replay {graph.replays} of graph {graph.number}"
            if stale := self._stale(graph, module, moment, given):
                note(f"input {stale}, where {which} does not read what the caller gives")
            if graph.ranks and set(graph.ranks) != set(ranks):
                group = f"the CP group of its capture (ranks {str(graph.ranks)[1:-1].strip(',')})"
                note(f"output, which {which} computes with {group} and not of the microbatch")
        return replay()

    def _stale(self, graph: _Graph, module: str, moment: str, given: Given) -> str:
        stale = []
        for name, tensor in given.items():
            mine, static = _digest(tensor, tensor), graph.inputs.get(name, lambda: None)()
            read = mine if static is None else _digest(static, tensor)
            if read != mine:
                earlier = self._earlier.get((module, name, read))
                stale.append(f"{name} (as in {earlier})" if earlier else name)
            self._earlier[module, name, mine] = moment
        return ", ".join(stale)


def _digest(tensor: torch.Tensor, like: torch.Tensor) -> bytes:
    """Return a digest of the values of a tensor, as the dtype of another one holds them."""
    values = tensor.detach().to(like.dtype).reshape(-1).contiguous().view(torch.uint8)
    return hashlib.blake2b(values.cpu().numpy().tobytes(), digest_size=16).digest()
