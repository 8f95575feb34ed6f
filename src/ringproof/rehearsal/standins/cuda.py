"""A CPU in the place of CUDA devices, for one process that runs an upstream program.

Everything that ``torch.cuda`` and device arguments do is answered on the host: devices are the CPU,
streams and events are ordered already, memory statistics are zero, generators are the CPU's.
Functions of ``torch.cuda`` that are not replaced raise `StandInMissing`.
"""

from __future__ import annotations

import contextlib
import functools
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ringproof.rehearsal.standins.guard import missing, put

FACTORIES = (
    "arange", "as_tensor", "asarray", "empty", "empty_like", "empty_permuted", "empty_strided",
    "eye", "from_file", "full", "full_like", "linspace", "logspace", "normal", "ones", "ones_like",
    "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "randperm",
    "scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros", "zeros_like",
    "hann_window", "hamming_window", "blackman_window",
)  # fmt: skip
TENSOR_FACTORIES = ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor",
                    "new_zeros")  # fmt: skip
TYPE_NAMES = types.MappingProxyType({
    torch.float32: "Float", torch.float64: "Double", torch.float16: "Half",
    torch.bfloat16: "BFloat16", torch.int64: "Long", torch.int32: "Int", torch.int16: "Short",
    torch.uint8: "Byte", torch.int8: "Char", torch.bool: "Bool",
})  # fmt: skip


# Upstream asks for most features by the compute capability; on Hopper it offers nearly all, and
# not yet those of Blackwell, whose kernels have no stand-in.
NAME = "NVIDIA H100 80GB HBM3"  # the GPU whose properties upstream sees
CAPABILITY = (9, 0)
MEMORY_BYTES = 85_899_345_920
PROPERTIES = types.SimpleNamespace(
    name=NAME,
    major=CAPABILITY[0],
    minor=CAPABILITY[1],
    total_memory=MEMORY_BYTES,
    multi_processor_count=132,
    warp_size=32,
    uuid="00000000-0000-0000-0000-000000000000",
)
# Functions of torch.cuda that give the same answer to every call.
ANSWERS = (
    (None, (
        "init", "_lazy_init", "synchronize", "ipc_collect", "set_sync_debug_mode", "set_stream",
        "reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached",
        "reset_accumulated_memory_stats", "empty_cache", "set_per_process_memory_fraction",
    )),
    (0, (
        "utilization", "temperature", "power_draw", "clock_rate", "get_sync_debug_mode",
        "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved",
        "memory_cached", "max_memory_cached", "device_memory_used",
    )),
    (True, ("is_available", "is_initialized", "is_bf16_supported")),
    (False, ("is_current_stream_capturing",)),
    ("", ("memory_summary",)),
    (NAME, ("get_device_name",)),
    (CAPABILITY, ("get_device_capability",)),
    (PROPERTIES, ("get_device_properties",)),
    ((MEMORY_BYTES, MEMORY_BYTES), ("mem_get_info",)),
)  # fmt: skip
# Names of torch.cuda that stay as they are; every other function raises when it is called.
KEPT = frozenset({
    "amp", "nvtx", "random", "memory", "graphs", "streams", "jiterator", "profiler", "nccl",
    "tunable", "sparse", "OutOfMemoryError", "AcceleratorError", "check_error", "CudaError",
    "device_of", "StreamContext",
})  # fmt: skip
RANDOM = ("get_rng_state", "set_rng_state", "manual_seed", "initial_seed", "manual_seed_all")
RANGES = ("range_push", "range_pop", "mark", "range_start", "range_end")
Patch = tuple[object, str, Any]


def host(device: Any) -> Any:
    """Map a device given as string, ordinal or object to the CPU; leave ``meta`` and ``None``."""
    if isinstance(device, bool) or device is None:
        return device
    if isinstance(device, int):
        return "cpu"
    if isinstance(device, str):
        return "cpu" if device.split(":")[0] == "cuda" else device
    if isinstance(device, REAL_DEVICE) and device.type == "cuda":
        return REAL_DEVICE("cpu")
    return device


REAL_DEVICE = torch.device


class _Alias(type):
    """The type of a class whose instances are those of the ``real`` class."""

    real: type

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.real)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls.real, name)


class Device(metaclass=_Alias):
    """``torch.device`` in which every CUDA device is the CPU."""

    real = REAL_DEVICE

    def __new__(cls, *arguments: Any, **named: Any) -> Any:
        """Make a real device of the mapped type."""
        device = arguments[0] if arguments else named.get("type", named.get("device"))
        mapped = host(device)
        if mapped == "cpu":
            return REAL_DEVICE("cpu")
        return REAL_DEVICE(mapped, *arguments[1:])


class Generator(metaclass=_Alias):
    """``torch.Generator`` that lives on the CPU whatever device is named."""

    real = torch.Generator

    def __new__(cls, device: Any = "cpu") -> Any:
        """Make a real generator on the mapped device."""
        return cls.real(host(device))


@contextlib.contextmanager
def _nothing(*_: object, **__: object) -> Iterator[None]:
    yield


def _answers(value: Any) -> Callable[..., Any]:
    """Return a new function that answers every call with ``value``.

    A new one each time: torch's compiler refuses two names for one function.
    """

    def answer(*_: object, **__: object) -> Any:
        return value

    return answer


class Event:
    """A CUDA event on a host whose work is done when a call returns."""

    query = _answers(True)
    wait = synchronize = _answers(None)

    def __init__(self, *_: object, **__: object) -> None:
        self._recorded = time.perf_counter()

    def record(self, stream: object = None) -> None:
        """Remember the time."""
        self._recorded = time.perf_counter()

    def elapsed_time(self, end: Event) -> float:
        """Return milliseconds between two records."""
        return (end._recorded - self._recorded) * 1e3


class Stream:
    """A CUDA stream on a host: work issued to it is done when the call returns."""

    cuda_stream = stream_id = priority = 0
    query = _answers(True)
    synchronize = wait_event = wait_stream = _answers(None)
    priority_range = staticmethod(lambda: (0, -1))

    def __init__(self, *_: object, **__: object) -> None:
        self.device = torch.device("cpu")

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event, a new one unless given."""
        event = event or Event()
        event.record()
        return event


class _Zeros(dict[str, int]):
    """Memory statistics of a device that was never used."""

    def __missing__(self, _: str) -> int:
        return 0


def install(devices: int) -> None:
    """Put the CPU in the place of ``devices`` GPUs, for the rest of this process."""
    functions = _functions(devices)
    for name in set(torch.cuda.__all__) - KEPT - functions.keys():
        value = getattr(torch.cuda, name, None)
        if callable(value) and not isinstance(value, type):
            functions[name] = missing(f"torch.cuda.{name}")
    put((
        *((torch.cuda, name, value) for name, value in functions.items()),
        *((torch.cuda.random, name, functions[name]) for name in RANDOM),
        *((torch.cuda.nvtx, name, _answers(None)) for name in RANGES),
        (torch.cuda.nvtx, "range", _nothing),
        (torch.cuda.memory, "_record_memory_history", _answers(None)),
        (torch.cuda, "default_generators", (torch.default_generator,) * devices),
        *_device_arguments(),
        # A tensor says that it is on a GPU where upstream asks before it uses the tensor.
        (torch.Tensor, "is_cuda", property(lambda tensor: tensor.device.type == "cpu")),
        (torch.Tensor, "type", _cuda_type(torch.Tensor.type)),
    ))  # fmt: skip


def _functions(devices: int) -> dict[str, Any]:
    """What takes the place of functions of ``torch.cuda``."""
    # A cell, since torch remembers the device that was set and upstream asks for it again.
    chosen, stream = [0], Stream()

    def choose(device: Any) -> None:
        index = getattr(device, "index", device)
        chosen[0] = index if isinstance(index, int) else 0

    return {
        **{name: _answers(answer) for answer, names in ANSWERS for name in names},
        "_lazy_call": lambda action, **_: action(),
        "device_count": lambda: devices,
        "current_device": lambda: chosen[0],
        "set_device": choose,
        "device": _nothing,
        "get_arch_list": lambda: ["sm_90"],
        "Stream": Stream,
        "ExternalStream": Stream,
        "Event": Event,
        "stream": lambda *_: contextlib.nullcontext(),  # can be entered again, as torch's own
        "current_stream": lambda *_: stream,
        "default_stream": lambda *_: stream,
        "memory_stats": lambda *_, **__: _Zeros(),
        "memory_snapshot": lambda *_, **__: [],
        "get_rng_state": lambda *_, **__: torch.get_rng_state(),
        "set_rng_state": lambda new_state, *_, **__: torch.set_rng_state(new_state),
        "get_rng_state_all": lambda: [torch.get_rng_state()],
        "set_rng_state_all": lambda states: torch.set_rng_state(states[0]),
        "manual_seed": torch.default_generator.manual_seed,
        "manual_seed_all": torch.default_generator.manual_seed,
        "seed": torch.default_generator.seed,
        "seed_all": torch.default_generator.seed,
        "initial_seed": lambda: torch.initial_seed(),
    }


def _device_arguments() -> Iterator[Patch]:
    """Let every argument that names a CUDA device name the CPU."""
    yield torch, "device", Device
    yield torch, "Generator", Generator
    yield torch, "load", _on_host(torch.load, "map_location")
    yield torch, "set_default_device", _answers(None)
    yield from ((torch, name, _on_host(getattr(torch, name))) for name in FACTORIES)
    for name in TENSOR_FACTORIES:
        yield torch.Tensor, name, _on_host(getattr(torch.Tensor, name))
    for holder in (torch.Tensor, torch.nn.Module):
        yield holder, "to", _to_host(holder.to)
        yield holder, "cuda", lambda self, *_, **__: self
    # Tensor-like classes of other packages let torch parse the arguments of their own `to`.
    yield torch._C._nn, "_parse_to", _parsed_on_host(torch._C._nn._parse_to)
    yield torch.Tensor, "pin_memory", lambda tensor, *_, **__: tensor
    yield torch.Tensor, "record_stream", _answers(None)
    yield torch.Tensor, "get_device", _answers(0)


def _on_host(function: Callable[..., Any], name: str = "device") -> Callable[..., Any]:
    """Wrap a function so that a CUDA device among its arguments becomes the CPU."""

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        if name in named:
            named[name] = host(named[name])
        if named.get("pin_memory"):
            named["pin_memory"] = False
        return function(*arguments, **named)

    return call


def _to_host(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``to``, whose first argument may be a device."""
    mapped = _on_host(function)

    @functools.wraps(function)
    def call(holder: Any, *arguments: Any, **named: Any) -> Any:
        return mapped(holder, *map(host, arguments[:1]), *arguments[1:], **named)

    return call


def _parsed_on_host(parse: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap torch's parser of the arguments of ``to``, whose first one may be a device."""
    mapped = _on_host(parse)
    return lambda *arguments, **named: mapped(*map(host, arguments[:1]), *arguments[1:], **named)


def _cuda_type(real_type: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``Tensor.type`` so that it names types of CUDA."""

    def type_of(tensor: torch.Tensor, dtype: Any = None, *rest: Any, **named: Any) -> Any:
        if dtype is None:
            return f"torch.cuda.{TYPE_NAMES.get(tensor.dtype, 'Float')}Tensor"
        if isinstance(dtype, str):
            dtype = dtype.replace("torch.cuda.", "torch.")
        return real_type(tensor, dtype, *rest, **named)

    return type_of
