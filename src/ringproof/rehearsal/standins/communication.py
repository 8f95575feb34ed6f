"""Gloo in the place of NCCL, with what differs mended, and a record of what each group carries.

Differences that are mended: NCCL's options and device arguments are dropped; a request may be
waited for twice, as on NCCL (gloo would wait for ever); the memory of a tensor that ``isend``
reads lives until the request was waited for, whatever upstream does with the tensor meanwhile;
ranks may gather and scatter tensors of different lengths.
"""

from __future__ import annotations

import contextlib
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from ringproof.rehearsal.protocol.board import Board
from ringproof.rehearsal.protocol.traffic import GroupTraffic
from ringproof.rehearsal.standins.guard import calling_place, put, replace_everywhere, wrapped

# Functions of torch.distributed by the parameter with what a rank sends or contributes.
OUTGOING = (
    ("tensor", ("all_reduce", "broadcast", "reduce", "all_gather", "gather", "isend", "send")),
    ("input_tensor", ("all_gather_into_tensor",)),
    ("input_list", ("reduce_scatter",)),
    ("input", ("reduce_scatter_tensor", "all_to_all_single")),
    ("input_tensor_list", ("all_to_all",)),
    ("scatter_list", ("scatter",)),
    (None, (
        "irecv", "recv", "barrier", "batch_isend_irecv", "all_gather_object",
        "broadcast_object_list", "gather_object", "scatter_object_list", "monitored_barrier",
    )),
)  # fmt: skip
# Functions by the parameter with the tensors of all ranks.
UNEVEN = MappingProxyType({"all_gather": "tensor_list", "reduce_scatter": "input_list"})
ALIASES = MappingProxyType(
    {"_all_gather_base": "all_gather_into_tensor", "_reduce_scatter_base": "reduce_scatter_tensor"}
)


Patch = tuple[object, str, Any]


@dataclass(frozen=True)
class GroupName:
    """A process group as people know it: its description and its ranks."""

    description: str
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.description or 'unnamed group'} {list(self.ranks)}"


@dataclass
class Contributions:
    """What a rank contributed to each group.

    Attributes:
        bytes: Bytes that this rank sent or contributed, by group and operation.
        races: Tensors that were ``released`` or ``overwritten`` between their ``isend`` and the
            wait for it, by that word and the two places upstream. On a GPU such a send may read
            other data.
    """

    calls: Counter[tuple[GroupName, str]] = field(default_factory=Counter)
    bytes: Counter[tuple[GroupName, str]] = field(default_factory=Counter)
    races: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    def note(self, group: GroupName, operation: str, outgoing: object) -> None:
        """Count one call."""
        self.calls[group, operation] += 1
        self.bytes[group, operation] += _bytes(outgoing)

    def totals(self) -> tuple[GroupTraffic, ...]:
        """Return what each group and operation has carried."""
        return tuple(
            GroupTraffic(group.description, group.ranks, name, calls, self.bytes[group, name])
            for (group, name), calls in self.calls.items()
        )


def _bytes(value: object) -> int:
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    return sum(map(_bytes, value)) if isinstance(value, list | tuple) else 0


class SentTensor:
    """A tensor that is being sent: keeps its memory, and notes what upstream does to it."""

    def __init__(self, tensor: Tensor, races: Counter[tuple[str, str, str]]) -> None:
        self._tensor, self._races, self._place = tensor, races, calling_place()
        self._memory = tensor.detach()  # shares the memory, and keeps it if the tensor drops it
        self._version = self._memory._version

    def end(self) -> None:
        """Compare the tensor with what it was, and let its memory go."""
        if self._tensor.data_ptr() != self._memory.data_ptr():
            self._races["released", self._place, calling_place()] += 1
        elif self._memory._version != self._version:
            self._races["overwritten", self._place, calling_place()] += 1
        del self._tensor, self._memory


class RepeatableRequest:
    """A request that may be waited for again, as on NCCL."""

    def __init__(self, work: Any, board: Board, text: str, sent: SentTensor | None = None) -> None:
        self._work, self._board, self._text = work, board, text
        self._sent = sent
        self._done = False

    def wait(self, *arguments: Any, **named: Any) -> bool:
        """Wait unless that was done before."""
        if not self._done:
            self._board.write(self._text)
            self._work.wait(*arguments, **named)
            self._done = True
            self._board.write()
            if self._sent is not None:
                self._sent.end()
        return True

    def synchronize(self) -> None:
        """Wait unless that was done before."""
        self.wait()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def group_name(group: Any) -> GroupName:
    """Name a group; ``None`` is the world."""
    if group is None or group is dist.GroupMember.WORLD:
        return GroupName("WORLD", tuple(range(dist.get_world_size())))
    if isinstance(group, dist.ProcessGroup):
        description = getattr(group, "group_desc", "")
        return GroupName(description, tuple(dist.get_process_group_ranks(group)))
    return GroupName(type(group).__name__, ())


def install(traffic: Contributions, board: Board) -> None:
    """Let every later call of ``torch.distributed`` go to gloo and be counted."""
    put_backend(_on_gloo)
    put(_both("barrier", wrapped(dist.barrier, _without_devices)))
    taken = {
        name: _watched(getattr(distributed_c10d, name), name, outgoing, traffic, board)
        for outgoing, names in OUTGOING
        for name in names
    }
    taken["_coalescing_manager"] = _coalesced(distributed_c10d._coalescing_manager, board)
    put_functions(taken)


def put_functions(taken: Mapping[str, Callable[..., Any]]) -> None:
    """Put functions in the place of those of ``torch.distributed``, wherever upstream has them."""
    taken = {**taken, **{alias: taken[name] for alias, name in ALIASES.items()}}
    originals = {getattr(distributed_c10d, name): value for name, value in taken.items()}
    for name, value in taken.items():
        put(_both(name, value))
    # Modules of upstream took functions from torch when they were imported.
    replace_everywhere(originals, lambda package: package not in ("torch", "ringproof"))


def _coalesced(original: Callable[..., Any], board: Board) -> Callable[..., Any]:
    """Name what a rank waits for at the end of a block of coalesced calls."""

    @contextlib.contextmanager
    def manager(group: Any = None, *arguments: Any, **named: Any) -> Iterator[Any]:
        text = f"coalesced calls in {group_name(group)} at {calling_place()}"
        with contextlib.ExitStack() as stack:
            stack.callback(board.write)
            calls = stack.enter_context(original(group, *arguments, **named))
            yield calls
            board.write(text)
        calls.works = [RepeatableRequest(work, board, text) for work in calls.works]

    return manager


def _both(name: str, value: Any) -> tuple[Patch, Patch]:
    """Return the places where torch and upstream find a function."""
    return (distributed_c10d, name, value), (dist, name, value)


def put_backend(create: Callable[[inspect.BoundArguments, Callable[[], Any]], Any]) -> None:
    """Let another backend take the place of NCCL.

    Args:
        create: Gets the arguments of a call that creates groups, and a function that makes it.
    """
    put(_backend(create))


def _backend(create: Callable[[inspect.BoundArguments, Callable[[], Any]], Any]) -> Iterator[Patch]:
    for name in ("init_process_group", "new_group", "new_subgroups_by_enumeration", "split_group"):
        original = getattr(distributed_c10d, name, None)
        if original is not None:
            yield from _both(name, wrapped(original, create))
    yield from _both("_make_nccl_premul_sum", ScaledSum)
    yield from _both("is_nccl_available", lambda: True)
    if not hasattr(dist, "ProcessGroupNCCL"):  # its options are dropped below
        yield dist, "ProcessGroupNCCL", SimpleNamespace(Options=_options)


def _options(**given: Any) -> SimpleNamespace:
    return SimpleNamespace(config=SimpleNamespace(), **given)


def _without_devices(given: inspect.BoundArguments, barrier: Callable[[], Any]) -> Any:
    given.arguments.pop("device_ids", None)  # gloo refuses them
    return barrier()


def _on_gloo(given: inspect.BoundArguments, create: Callable[[], Any]) -> Any:
    """Create a process group of gloo, whatever is asked for."""
    if "backend" in given.signature.parameters:
        given.arguments["backend"] = "gloo"
    for dropped in ("pg_options", "device_id"):
        given.arguments.pop(dropped, None)
    return create()


def _watched(
    original: Callable[..., Any],
    name: str,
    outgoing: str | None,
    traffic: Contributions,
    board: Board,
) -> Callable[..., Any]:
    """Count the calls of a function, and say while it runs what the rank waits for."""

    def call(bound: inspect.BoundArguments, run: Callable[[], Any]) -> Any:
        given = bound.arguments
        _scale_first(given, outgoing)
        group = group_name(_group_of(given))
        traffic.note(group, name, given.get(outgoing) if outgoing else None)
        text = f"{name} in {group} at {calling_place()}"
        board.write(text)
        result = run() if _even(name, given) else _padded(name, given, original)
        board.write()
        if name in ("isend", "irecv") or given.get("async_op"):
            sent = SentTensor(given["tensor"], traffic.races) if name == "isend" else None
            return None if result is None else RepeatableRequest(result, board, text, sent)
        if name == "batch_isend_irecv":
            return [
                work
                if isinstance(work, RepeatableRequest)
                else RepeatableRequest(work, board, text)
                for work in result
            ]
        return result

    return wrapped(original, call)


def _even(name: str, given: dict[str, Any]) -> bool:
    """Return whether gloo can run a call: its tensors have one shape, or it is not waited for."""
    tensors: Sequence[Tensor] = given.get(UNEVEN.get(name, ""), ())
    return len({tensor.shape for tensor in tensors}) < 2 or bool(given.get("async_op"))


def _padded(name: str, given: dict[str, Any], original: Callable[..., Any]) -> Any:
    """Run a call with tensors whose first dimensions differ, which NCCL can and gloo cannot."""
    several: Sequence[Tensor] = given[UNEVEN[name]]
    most = max(len(tensor) for tensor in several)

    def longest(tensor: Tensor) -> Tensor:
        return torch.cat([tensor, tensor.new_zeros(most - len(tensor), *tensor.shape[1:])])

    padded = [longest(tensor) for tensor in several]
    rest = {key: given[key] for key in ("op", "group") if key in given}
    if name == "all_gather":
        original(padded, longest(given["tensor"]), **rest)
        for tensor, found in zip(several, padded, strict=True):
            tensor.copy_(found[: len(tensor)])
        return None
    output = longest(given["output"])
    original(output, padded, **rest)
    given["output"].copy_(output[: len(given["output"])])
    return None


@dataclass(frozen=True)
class ScaledSum:
    """NCCL's sum of scaled inputs, which gloo does not have."""

    factor: Any


def _scale_first(given: dict[str, Any], outgoing: str | None) -> None:
    """Scale the input of a sum of scaled inputs, and let it be a plain sum."""
    operation = given.get("op")
    if not isinstance(operation, ScaledSum) or outgoing is None:
        return
    given["op"] = dist.ReduceOp.SUM
    if outgoing == "tensor":  # input and output
        given[outgoing].mul_(operation.factor)
    else:
        given[outgoing] = given[outgoing] * operation.factor


def _group_of(given: dict[str, Any]) -> Any:
    if "p2p_op_list" in given:
        operations: Sequence[Any] = given["p2p_op_list"]
        return operations[0].group if operations else None
    return given.get("group")
