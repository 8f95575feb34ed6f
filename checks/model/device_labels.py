"""A GPU that is none: tensors lie on the CPU, and know whether a GPU would have them.

What is made with ``device=GPU``, or moved there, gets a label, and so does all that is computed
from it, forward and backward. Asked for their device, labelled tensors say the GPU's. An operation
on both kinds is what a GPU refuses: ``Expected all tensors to be on the same device``. Numbers
(0-dim tensors of the host) are welcome everywhere but in communication: NCCL has no host.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch
from torch.distributed import distributed_c10d
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
COPIES = frozenset({"aten::copy_", "aten::set_"})
"""Operations that take from one place to the other."""
WITHOUT_DATA = frozenset({"c10d::barrier", "c10d::monitored_barrier_"})
TO_HOST = frozenset({"cpu", "numpy", "__array__"})


class Labels:
    """Which memory is the GPU's."""

    def __init__(self) -> None:
        self._held: dict[int, torch.UntypedStorage] = {}  # so that no address is given out twice

    def on_gpu(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._held

    def put(self, value: Any) -> Any:
        for tensor in tensors(value):
            self.hold(tensor.untyped_storage())
        return value

    def hold(self, storage: torch.UntypedStorage) -> None:
        self._held[storage._cdata] = storage

    def drop(self, tensor: torch.Tensor) -> torch.Tensor:
        """The copy of a labelled tensor that has gone to the host."""
        del self._held[tensor.untyped_storage()._cdata]
        return tensor


class _Operations(TorchDispatchMode):
    """Hands labels on, and refuses operations on both kinds."""

    def __init__(self, labels: Labels) -> None:
        super().__init__()
        self._labels = labels

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = tensors((args, kwargs))
        found = [self._labels.on_gpu(tensor) for tensor in given]
        hosts = [t for t, gpu in zip(given, found, strict=True) if not gpu and t.dim() > 0]
        name = func.name().partition(".")[0]
        if name.startswith("c10d::") and name not in WITHOUT_DATA and not all(found):
            raise AssertionError(f"{name}: NCCL takes no tensor of the host")
        if name in COPIES or not any(found):
            return func(*args, **(kwargs or {}))
        if hosts:
            raise AssertionError(f"{name}: a tensor on the host, {list(hosts[0].shape)}")
        return self._labels.put(func(*args, **(kwargs or {})))


class _Calls(TorchFunctionMode):
    """Takes the GPU out of calls, and gives what they return the label."""

    def __init__(self, labels: Labels) -> None:
        super().__init__()
        self._labels = labels

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        asked = getattr(func, "__self__", None)
        if asked is torch.Tensor.device:
            return GPU if self._labels.on_gpu(args[0]) else func(*args)
        if asked is torch.Tensor.is_cuda:
            return self._labels.on_gpu(args[0])
        name = getattr(func, "__name__", "")
        moved = next((d for d in tree_iter((args, kwargs)) if isinstance(d, torch.device)), None)
        if name in TO_HOST and self._labels.on_gpu(args[0]):
            if name != "cpu":
                raise AssertionError(f"{name} of a tensor on the GPU")
            return self._labels.drop(args[0].clone())
        args, kwargs = tree_map(_on_host, (args, kwargs))
        result = func(*args, **kwargs)
        if moved != GPU or func is torch.device:
            return result
        fresh = name != "to" or self._labels.on_gpu(args[0])
        return self._labels.put(result if fresh else result.clone())


class PretendedGpu(ExitStack):
    """Inside of it :data:`GPU` can be used."""

    def __enter__(self) -> PretendedGpu:
        super().__enter__()
        self.labels = Labels()
        self.enter_context(_Operations(self.labels))
        calls = self.enter_context(_Calls(self.labels))
        engine = torch.autograd._engine_run_backward

        def run_backward(*arguments: Any, **options: Any) -> Any:
            with calls:  # which is off in whatever it was asked to call, such as ``backward``
                return engine(*arguments, **options)

        for place, name, pretended in (
            (torch.autograd, "_engine_run_backward", run_backward),
            (torch.cuda, "get_device_name", lambda _: "none"),
            (torch.cuda, "get_rng_state", lambda _: torch.get_rng_state()),
            (distributed_c10d, "_get_object_coll_device", lambda _: GPU),  # as of NCCL
        ):
            self.enter_context(mock.patch.object(place, name, pretended))
        return self


def _on_host(value: Any) -> Any:
    return CPU if isinstance(value, torch.device) and value == GPU else value


def tensors(value: Any) -> list[torch.Tensor]:
    """Every tensor in it."""
    return [one for one in tree_iter(value) if isinstance(one, torch.Tensor)]
