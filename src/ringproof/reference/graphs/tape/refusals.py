"""Calls that no device can capture, and what to do instead.

Shapes that depend on data, and values that the host reads, make the host wait for the device, which
a stream that is being captured does not allow. On CUDA that is an error of the driver; here it has
a name and a line. Two views of the same program are searched: operations (:func:`why_refused`),
which are the same on every device, and Python calls (:func:`why_call_refused`), because a copy to
the host is not an operation on a CPU.

A tensor that is made in the capture without ``device=`` is taken to be on the host, and refused
where it meets others, since that is a copy. (A device that ``torch.set_default_device`` has set
before the capture is not known here.) Not visible on a CPU are such tensors that were made before
the capture, copies to pinned memory, ``.to(device)`` to the host where the device is in a variable,
streams and events, ``torch.cuda.synchronize()``, the device's own limits, transfers that the
program never waits for, and kernels that are launched without torch's dispatcher. All memory is
host memory here. So ``torch.tensor`` is refused wherever its result would go, and a tensor without
dimensions that a model keeps on the host is read at each replay, where a kernel on a GPU would have
got its value as a number of the capture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch


class Refusal(NamedTuple):
    """The call that cannot be captured, the reason, and the remedy."""

    what: str
    why: str
    remedy: str


READS = "the host reads a value, which synchronises the device during capture"
SHAPE = "its shape depends on data, which synchronises the device during capture"
COPIES = "copies from device to host, which synchronises the device during capture"
BRINGS = "copies from host to device, which synchronises the device during capture"
MOVES = "moves a tensor to another address, and graphs keep addresses"

KEEP = "keep the value on the device, or leave the call out of the graph"
MASK = "use torch.where or masked_fill, or leave the call out of the graph"
MAKE = "make the tensor before the capture and keep it, or pass it as a static input"
NAME_DEVICE = "name the device where it is made (device=x.device), or make it before the capture"
FIXED = "make it with its final size before the capture"
UNCHECKED = "use the variant that returns its status, as torch.linalg.inv_ex"
WAITS = "leave it out: a graph's operations are in order already"

# Operations whose tags (torch.Tag) do not say it.
OPERATIONS = MappingProxyType(
    {
        "aten::_local_scalar_dense": Refusal(".item()", READS, KEEP),
        "aten::equal": Refusal("torch.equal", READS, KEEP),
        "aten::lift_fresh": Refusal("a tensor from host data", BRINGS, MAKE),
        "aten::multinomial": Refusal("torch.multinomial", READS, KEEP),  # checks the weights
        "aten::_linalg_check_errors": Refusal("a check of a decomposition", READS, UNCHECKED),
        "aten::_pin_memory": Refusal(".pin_memory()", COPIES, MAKE),
        "aten::set_": Refusal(".set_()", MOVES, FIXED),
        "aten::resize_": Refusal(".resize_()", MOVES, FIXED),
        "c10d::barrier": Refusal("barrier", "the host waits for other ranks", WAITS),
        "c10d::monitored_barrier_": Refusal("barrier", "the host waits for other ranks", WAITS),
    }
)
CALLS = MappingProxyType(
    {
        "item": Refusal(".item()", READS, KEEP),
        "__bool__": Refusal("bool(tensor), as in `if tensor:`", READS, KEEP),
        "__int__": Refusal("int(tensor)", READS, KEEP),
        "__float__": Refusal("float(tensor)", READS, KEEP),
        "__index__": Refusal("a tensor as a Python index", READS, KEEP),
        "tolist": Refusal(".tolist()", COPIES, KEEP),
        "numpy": Refusal(".numpy()", COPIES, KEEP),
        "__repr__": Refusal("print(tensor)", COPIES, KEEP),
        "__array__": Refusal("numpy.asarray(tensor)", COPIES, KEEP),
        "cpu": Refusal(".cpu()", COPIES, KEEP),
        "cuda": Refusal(".cuda()", BRINGS, MAKE),
        "pin_memory": Refusal(".pin_memory()", COPIES, MAKE),
        "tensor": Refusal("torch.tensor", BRINGS, MAKE),
        "as_tensor": Refusal("torch.as_tensor", BRINGS, MAKE),
        "asarray": Refusal("torch.asarray", BRINGS, MAKE),
    }
)
FROM_TENSORS_TOO = frozenset({"as_tensor", "asarray"})
"""Calls that do nothing when they are given a tensor."""

_CONSTRUCTORS = (
    "arange empty empty_strided eye full linspace logspace ones rand randint randn zeros"
)
CONSTRUCTORS = frozenset([*_CONSTRUCTORS.split(), "randperm", "tril_indices", "triu_indices"])
"""Calls that make a tensor, on the host unless a device is named."""

INDEXING = frozenset({"aten::index", "aten::index_put", "aten::index_put_"})
"""By a mask they count its ones, also where one value of the device is written to all of them."""


def why_refused(
    operation: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> Refusal | None:
    """Return why an operation, an ``OpOverload``, cannot be captured."""
    name = operation.name().partition(".")[0]
    if name in OPERATIONS:
        return OPERATIONS[name]
    if name in INDEXING:
        kinds = [index.dtype for index in arguments[1] if index is not None]
        counts = torch.bool in kinds or torch.uint8 in kinds
        return Refusal("indexing by a mask", SHAPE, MASK) if counts else None
    if name == "aten::repeat_interleave" and keywords.get("output_size") is not None:
        return None
    short = name.partition("::")[2].strip("_0123456789")
    if torch.Tag.dynamic_output_shape in operation.tags:
        return Refusal(f"torch.{short}", SHAPE, MASK)
    if torch.Tag.data_dependent_output in operation.tags:
        return Refusal(f"torch.{short}", READS, KEEP)
    return None


def why_call_refused(
    name: str, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> Refusal | None:
    """Return why a function or method of torch cannot be captured, by its name."""
    if name in FROM_TENSORS_TOO and arguments and isinstance(arguments[0], torch.Tensor):
        return None
    if name == "to":
        places = (*arguments[1:2], keywords.get("device"))
        if any(isinstance(place, str) and place.startswith("cpu") for place in places):
            return Refusal('.to("cpu")', COPIES, KEEP)
        return None
    return CALLS.get(name)


def makes_on_host(name: str, keywords: Mapping[str, Any]) -> bool:
    """Return whether a call of torch makes a tensor on the host, on every machine."""
    made = name in CONSTRUCTORS and keywords.get("out") is None
    return made and keywords.get("device") is None
