"""Operations whose large results have an address and a size, but no content.

A hollow tensor is an ordinary tensor on the CPU whose storage is virtual memory that nobody
touches. Addresses, views and version counters are torch's own. An operation computes if all its
inputs have content and are small; otherwise only its results are made, in the shapes of torch's
meta kernels.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from ringproof.rehearsal.hollow.storages import Storages

REAL_ELEMENTS = 1 << 20
"""Floating-point tensors with more elements are hollow from their birth."""
REAL_INTEGERS = 1 << 28
"""So are integers and booleans with more elements."""
MAPPED_BYTES = 1 << 31
"""Storages from here on are mapped without a claim on memory, which the system would refuse."""
ZEROS_BYTES = 1 << 20
"""Integers and booleans that nothing computed are mapped from here on, and zero untouched."""
NORESERVE = 0x4000
NESTED = (list, tuple)
_EMPTY = torch.empty_strided
FACTORIES = frozenset({
    "empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "zeros", "zeros_like",
    "new_zeros", "ones", "ones_like", "new_ones", "full", "full_like", "new_full", "rand", "randn",
    "rand_like", "randn_like", "scalar_tensor", "arange", "eye", "normal", "linspace",
})  # fmt: skip
PLAIN = frozenset({"set_", "resize_", "lift_fresh", "_resize_output_"})
"""Operations that move memory about and compute nothing."""
FACTORS: Mapping[str, int] = MappingProxyType(
    {"mm": 0, "bmm": 0, "addmm": 1, "addmm_": 1, "baddbmm": 1, "baddbmm_": 1}
)
"""Products of matrices by the position of their first factor."""


@dataclass(frozen=True)
class Signature:
    """What the schema of an operation says.

    Attributes:
        written: Positions and names of the arguments that it writes into.
        aliases: Whether its result is a view, or it only changes how its argument is seen.
    """

    name: str
    written: tuple[tuple[int, str], ...]
    returns: int
    aliases: bool
    takes_device: bool


class HollowMode(TorchDispatchMode):
    """Skips the arithmetic of large tensors, and tells `Storages` what each operation makes.

    Args:
        computes: Whether everything is computed nevertheless, to compare.

    Attributes:
        flops: Floating-point operations of the products of matrices, two per multiply-add.
        crowded: Whether the largest of unknown numbers are the first ones, and not spread evenly.
    """

    def __init__(self, storages: Storages, *, computes: bool = False) -> None:
        super().__init__()
        self.storages, self._computes = storages, computes
        self.flops = 0
        self.crowded = False
        self._known: dict[Any, Signature] = {}
        self._made: dict[Any, Any] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one operation, or only make its results."""
        kwargs = kwargs or {}
        signature = self._signature(func)
        tensors = _tensors(args)
        if kwargs:
            tensors += _tensors(kwargs.values())
        on_device = self.storages.take_part(tensors)
        if self._computes or signature.aliases or signature.name in PLAIN or _is_meta(
            tensors, kwargs
        ):  # fmt: skip
            out = func(*args, **kwargs)
        else:
            out = self._run(func, signature, tensors, args, kwargs)
        if on_device and signature.name != "copy_":  # its target stays where it is
            self.storages.enter(out, signature.name)
        return out

    def _signature(self, func: Any) -> Signature:
        if func not in self._known:
            schema = func._schema
            arguments = list(enumerate(schema.arguments))
            views = any(r.alias_info and not r.alias_info.is_write for r in schema.returns)
            self._known[func] = Signature(
                name=schema.name.split("::")[1],
                written=tuple(
                    (at, a.name) for at, a in arguments if a.alias_info and a.alias_info.is_write
                ),
                returns=len(schema.returns),
                aliases=views or torch.Tag.inplace_view in func.tags,
                takes_device=any(a.name == "device" for _, a in arguments),
            )
        return self._known[func]

    def _run(
        self, func: Any, signature: Signature, tensors: list[Any], args: Any, kwargs: Any
    ) -> Any:
        """Compute with content; without it, make the results."""
        name, storages = signature.name, self.storages
        # What is as large as a tensor without content, and empty or filled, has content itself.
        unknown = name not in FACTORIES and any(map(storages.is_hollow, tensors))
        if name in ("_local_scalar_dense", "equal") and unknown:
            storages.invent(f"{name} of {tuple(tensors[0].shape)}")
            number = 0.0 if tensors[0].is_floating_point() else 0
            return True if name == "equal" else number
        self._count(name, args)
        if signature.written:
            return self._write(func, signature, unknown, args, kwargs)
        if not unknown and not (self.crowded and name == "topk"):
            if name in FACTORIES:
                real = not self._is_large(self._shapes(func, signature, args, kwargs))
            else:
                real = not any(t.is_floating_point() and self._is_large(t) for t in tensors)
            if real:
                return func(*args, **kwargs)
        if name in BY_CONTENT:
            found = BY_CONTENT[name](self, args)
            if found is not None:
                return found
        if name == "index":
            args = (args[0], _positions(args[1]))
        made = self._shapes(func, signature, args, kwargs)
        if isinstance(made, torch.Tensor):  # nearly always
            return self._filled(made)
        return tree_map_only(torch.Tensor, self._filled, made)

    def _write(self, func: Any, signature: Signature, unknown: bool, args: Any, kwargs: Any) -> Any:
        """Write into arguments, or skip that and return them."""
        targets = [args[at] if at < len(args) else kwargs.get(n) for at, n in signature.written]
        flat = _tensors(targets)
        for tensor in flat:
            self.storages.written(tensor)
        if not unknown and not any(t.is_floating_point() and self._is_large(t) for t in flat):
            return func(*args, **kwargs)
        for tensor in flat:
            if tensor.is_floating_point():
                self.storages.make_hollow(tensor)
            elif not self.storages.is_hollow(tensor):
                self.storages.invent(f"{signature.name} into {tuple(tensor.shape)}")
        return None if not signature.returns else targets[0] if signature.returns == 1 else (
            tuple(targets)
        )  # fmt: skip

    def _is_large(self, made: Any) -> bool:
        if not isinstance(made, torch.Tensor):
            return False
        limit = REAL_ELEMENTS if made.is_floating_point() else REAL_INTEGERS
        return made.numel() > limit

    def _shapes(self, func: Any, signature: Signature, args: Any, kwargs: Any) -> Any:
        """Return the results on the meta device; those of the same inputs are made once."""
        kept = {k: v for k, v in kwargs.items() if k not in ("pin_memory", "generator")}
        if signature.takes_device:
            kept["device"] = "meta"
        key = (func, torch.get_default_dtype(), _described(args), _described(kept))
        if key not in self._made:
            on_meta, named = tree_map_only(torch.Tensor, _on_meta, (args, kept))
            self._made[key] = func(*on_meta, **named)
        return self._made[key]

    def _filled(self, made: torch.Tensor) -> torch.Tensor:
        """Return a tensor on the CPU for one on the meta device."""
        if not made.is_meta:
            return made
        exact = not (made.is_floating_point() or made.is_complex())
        limit = ZEROS_BYTES if exact else MAPPED_BYTES
        new = vacant(tuple(made.size()), tuple(made.stride()), made.dtype, limit)
        if made.is_floating_point() or made.is_complex() or self._is_large(made):
            return self.storages.make_hollow(new)
        self.storages.invent(f"{made.dtype} {tuple(made.shape)}".removeprefix("torch."))
        return new if new.nbytes >= ZEROS_BYTES else new.zero_()

    def _count(self, name: str, args: Any) -> None:
        at = FACTORS.get(name)
        if at is not None:
            self.flops += 2 * args[at].numel() * args[at + 1].shape[-1]


def vacant(
    size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, mapped: int = MAPPED_BYTES
) -> torch.Tensor:
    """Return a tensor whose memory is not touched, however large it is.

    Args:
        mapped: From so many bytes on it is mapped, and zero where it is read.
    """
    last = sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    count = (1 + last if all(size) else 0) * dtype.itemsize
    if count < mapped:
        return _EMPTY(size, stride, dtype=dtype)
    area = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE)
    return torch.frombuffer(area, dtype=dtype).as_strided(size, stride)


def _tensors(items: Iterable[Any]) -> list[Any]:
    """Return the tensors in the arguments of an operation: lists of them at most."""
    found = []
    for item in items:
        if isinstance(item, torch.Tensor):
            found.append(item)
        elif isinstance(item, NESTED):
            found += _tensors(item)
    return found


def _described(tree: Any) -> Any:
    """Return what an operation's shapes follow from, as a key."""
    if isinstance(tree, torch.Tensor):
        return tree.dtype, tree.size(), tree.stride()
    if isinstance(tree, dict):
        return tuple((name, _described(item)) for name, item in tree.items())
    if isinstance(tree, NESTED):
        return tuple(map(_described, tree))
    return type(tree), tree


def _is_meta(tensors: list[Any], kwargs: Mapping[str, Any]) -> bool:
    return any(t.is_meta for t in tensors) or str(kwargs.get("device")) == "meta"


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    return _EMPTY(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")


def _positions(indices: Any) -> list[Any]:
    """Return indices with masks replaced by the positions that they choose."""
    found: list[Any] = []
    for index in indices:
        masks = index is not None and index.dtype in (torch.bool, torch.uint8)
        found += index.nonzero(as_tuple=True) if masks else [index]
    return found


# -- results whose shape or value depends on the content -------------------------------------------


def _largest(mode: HollowMode, args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose the largest of unknown numbers so that every position is chosen equally often.

    Where the mode is ``crowded``, the first ones are chosen.
    """
    x, count = args[0], args[1]
    axis = (args[2] if len(args) > 2 else -1) % x.dim()
    others = [size for at, size in enumerate(x.shape) if at != axis]
    chosen = torch.arange(math.prod(others) * count) % (count if mode.crowded else x.shape[axis])
    chosen = chosen.reshape(*others, count).movedim(-1, axis).contiguous()
    values = vacant(tuple(chosen.shape), tuple(chosen.stride()), x.dtype)
    return mode.storages.make_hollow(values), chosen


def _selected(mode: HollowMode, args: Any) -> torch.Tensor | None:
    """Select by a mask that has content."""
    if mode.storages.is_hollow(args[1]):
        return None
    count = int(args[1].expand(torch.broadcast_shapes(args[0].shape, args[1].shape)).sum())
    return mode.storages.make_hollow(vacant((count,), (1,), args[0].dtype))


def _nowhere(mode: HollowMode, args: Any) -> torch.Tensor:
    """Find no position in a tensor without content."""
    mode.storages.invent(f"nonzero of {tuple(args[0].shape)}")
    return torch.zeros((0, args[0].dim()), dtype=torch.int64)


BY_CONTENT: Mapping[str, Callable[[HollowMode, Any], Any]] = MappingProxyType(
    {"topk": _largest, "masked_select": _selected, "nonzero": _nowhere}
)
