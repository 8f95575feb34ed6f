"""Process groups of any size in one process, in which every other rank holds what this one holds.

They are torch's own groups of the backend ``fake``. Tensors without content are not moved. Small
tensors with content are combined as if all ranks had the same: a sum is multiplied, a gather
copies. Whole numbers of ranks that run beside this one are gathered from them.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_leaves

from ringproof.rehearsal.hollow.storages import Storages
from ringproof.rehearsal.protocol.board import Board
from ringproof.rehearsal.standins.communication import (
    OUTGOING,
    Contributions,
    ScaledSum,
    group_name,
    put_backend,
    put_functions,
)
from ringproof.rehearsal.standins.guard import calling_place, wrapped

Given = dict[str, Any]
LOOPBACK, FOREVER = "127.0.0.1", timedelta(days=7)
"""Where ranks meet, and how long they wait: who started them ends them before."""


class Done:
    """A request that is done already, and holds its tensors until it is waited for, as NCCL's do.

    Args:
        held: The tensors.
    """

    def __init__(self, held: Sequence[torch.Tensor] = ()) -> None:
        self._held = held

    def wait(self, *_: object, **__: object) -> bool:
        """Return at once."""
        self._held = ()
        return True

    def is_completed(self) -> bool:
        """Return that it is."""
        return True

    def synchronize(self) -> None:
        """Return at once."""

    block_current_stream = synchronize


class Peers:
    """The ranks that run beside this one, each in a process of its own.

    Args:
        store: Through which they exchange numbers; ``None`` if this rank runs by itself.
        ranks: All that run, this one included.
        board: Where this rank says what it waits for.
    """

    def __init__(
        self, store: dist.Store | None, ranks: Sequence[int], rank: int, board: Board
    ) -> None:
        self._ranks, self.rank = frozenset(ranks), rank
        self._store, self._board = store, board
        self._calls: Counter[tuple[int, ...]] = Counter()

    def gather(self, source: torch.Tensor, group: Any) -> list[torch.Tensor]:
        """Return what each member of a group gives; those that do not run give the same as this.

        Only whole numbers are exchanged: lengths, counts and tokens. Every rank has them.
        """
        # torch 2.6 takes no ``None`` for the whole world.
        members = tuple(dist.get_process_group_ranks(group or dist.group.WORLD))
        store, others = self._store, self._ranks.intersection(members) - {self.rank}
        if store is None or not others or source.is_floating_point():
            return [source] * len(members)
        self._calls[members] += 1
        key = f"{members} {self._calls[members]}"
        store.set(f"{key} {self.rank}", source.numpy().tobytes())
        self._board.write(f"gather of whole numbers in {group_name(group)} at {calling_place()}")
        given = [store.get(f"{key} {one}") if one in others else b"" for one in members]
        self._board.write()
        return [
            torch.frombuffer(bytearray(data), dtype=source.dtype) if data else source
            for data in given
        ]


def store(port: int, *, serves: bool) -> dist.TCPStore:
    """Connect to the store on a port, or serve it (0: on a free one); who waits does not poll."""
    return dist.TCPStore(LOOPBACK, port, None, serves, FOREVER, wait_for_workers=False)


def install(storages: Storages, traffic: Contributions, peers: Peers, world: int) -> None:
    """Let every later call of ``torch.distributed`` act on this process alone, and be counted.

    Args:
        peers: Ranks of a world of ``world`` ranks that run.
    """
    put_backend(lambda given, create: _created(given, create, peers.rank, world))
    effects = _Effects(storages, peers)
    taken: dict[str, Callable[..., Any]] = {
        name: _counted(getattr(distributed_c10d, name), name, outgoing, traffic, effects)
        for outgoing, names in OUTGOING
        for name in names
    }
    taken["batch_isend_irecv"] = _batch
    taken["_coalescing_manager"] = _coalescing
    put_functions(taken)


def _created(
    given: inspect.BoundArguments, create: Callable[[], Any], rank: int, world: int
) -> Any:
    """Create a process group of the backend ``fake``, whatever is asked for."""
    arguments = given.arguments
    if "backend" in given.signature.parameters:
        arguments["backend"] = "fake"
    for dropped in ("pg_options", "device_id", "init_method"):
        arguments.pop(dropped, None)
    if "world_size" in given.signature.parameters:
        arguments.update(store=FakeStore(), rank=rank, world_size=world)
    return create()


def _batch(p2p_op_list: list[Any]) -> list[Any]:
    return [op.op(op.tensor, op.peer, op.group, op.tag) or Done() for op in p2p_op_list]


@contextlib.contextmanager
def _coalescing(*_: object, **__: object) -> Iterator[Any]:
    calls = Done()
    vars(calls).update(works=[], append=lambda *_: None)
    yield calls


def _counted(
    original: Callable[..., Any], name: str, outgoing: str | None, traffic: Contributions,
    effects: _Effects,
) -> Callable[..., Any]:  # fmt: skip
    def call(bound: inspect.BoundArguments, _: Callable[[], Any]) -> Any:
        given = bound.arguments
        traffic.note(group_name(given.get("group")), name, given[outgoing] if outgoing else None)
        EFFECTS.get(name, _Effects.nothing)(effects, given)
        if name in ("isend", "irecv") or given.get("async_op"):
            return Done([leaf for leaf in tree_leaves(dict(given)) if torch.is_tensor(leaf)])
        return None

    return wrapped(original, call)


class _Effects:
    """What a call does to its tensors."""

    def __init__(self, storages: Storages, peers: Peers) -> None:
        self._storages, self._peers = storages, peers

    def nothing(self, given: Given) -> None:
        """Leave what every rank has already."""

    def all_reduce(self, given: Given) -> None:
        self._multiply(given["tensor"], given)

    def _multiply(self, tensor: torch.Tensor, given: Given) -> None:
        operation = given.get("op", dist.ReduceOp.SUM)
        sums = not isinstance(operation, ScaledSum) and operation == dist.ReduceOp.SUM
        if sums and not self._storages.is_hollow(tensor):
            tensor.mul_(dist.get_world_size(given.get("group")))

    def _copy(self, target: torch.Tensor, make: Callable[[], torch.Tensor], *sources: Any) -> bool:
        """Write into what is received if all sources have content; return whether that is so."""
        storages = self._storages
        storages.received(target)
        if not any(map(storages.is_hollow, (target, *sources))):
            target.copy_(make())
            return True
        if target.is_floating_point():
            storages.make_hollow(target)
        else:
            storages.invent(f"received {tuple(target.shape)}")
        return False

    def all_gather_into_tensor(self, given: Given) -> None:
        out, source = given["output_tensor"], given["input_tensor"]
        parts = self._peers.gather(source, given.get("group"))
        flat = (part.reshape(-1) for part in parts)
        self._copy(out, lambda: torch.cat([*flat]).reshape(out.shape), source)

    def all_gather(self, given: Given) -> None:
        source, outputs = given["tensor"], given["tensor_list"]
        parts = self._peers.gather(source, given.get("group"))
        for out, part in zip(outputs, parts, strict=True):
            self._copy(out, functools.partial(part.reshape, out.shape), source)

    def reduce_scatter_tensor(self, given: Given) -> None:
        out, source, group = given["output"], given["input"], given.get("group")
        size, rank = dist.get_world_size(group), dist.get_rank(group)
        if self._copy(out, lambda: source.reshape(size, *out.shape)[rank].clone(), source):
            self._multiply(out, given)

    def reduce_scatter(self, given: Given) -> None:
        out, sources = given["output"], given["input_list"]
        own = sources[dist.get_rank(given.get("group"))]
        if self._copy(out, own.clone, own):
            self._multiply(out, given)

    def all_to_all_single(self, given: Given) -> None:
        self._exchange(given["output"], given["input"])

    def all_to_all(self, given: Given) -> None:
        pairs = zip(given["output_tensor_list"], given["input_tensor_list"], strict=True)
        for out, source in pairs:
            self._exchange(out, source)

    def _exchange(self, out: torch.Tensor, source: torch.Tensor) -> None:
        """Keep what is sent, where the peers send as much."""
        if out.shape == source.shape:
            self._copy(out, source.clone, source)
        else:
            self._copy(out, lambda: torch.zeros_like(out), source)

    def receive(self, given: Given) -> None:
        tensor, storages = given["tensor"], self._storages
        storages.received(tensor)
        if tensor.is_floating_point():
            storages.make_hollow(tensor)
        else:
            storages.invent(f"received {tuple(tensor.shape)}")

    def all_gather_object(self, given: Given) -> None:
        given["object_list"][:] = [given["obj"]] * len(given["object_list"])

    def gather_object(self, given: Given) -> None:
        gathered = given.get("object_gather_list")
        if gathered is not None:
            gathered[:] = [given["obj"]] * len(gathered)

    def scatter_object_list(self, given: Given) -> None:
        if given.get("scatter_object_input_list"):
            given["scatter_object_output_list"][0] = given["scatter_object_input_list"][0]


EFFECTS: Mapping[str, Callable[[_Effects, Given], None]] = MappingProxyType({
    "all_reduce": _Effects.all_reduce,
    "all_gather": _Effects.all_gather,
    "all_gather_into_tensor": _Effects.all_gather_into_tensor,
    "reduce_scatter": _Effects.reduce_scatter,
    "reduce_scatter_tensor": _Effects.reduce_scatter_tensor,
    "all_to_all": _Effects.all_to_all,
    "all_to_all_single": _Effects.all_to_all_single,
    "irecv": _Effects.receive,
    "recv": _Effects.receive,
    "all_gather_object": _Effects.all_gather_object,
    "gather_object": _Effects.gather_object,
    "scatter_object_list": _Effects.scatter_object_list,
})  # fmt: skip
