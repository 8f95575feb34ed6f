"""Transformer Engine's own Python, imported from a wheel or checkout without its extension."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch

from ringproof.rehearsal.standins import attention, compiler, extension, kernels
from ringproof.rehearsal.standins.guard import StandInFinder, missing, replace_everywhere

PACKAGE = "transformer_engine"
ATTENTION = f"{PACKAGE}.pytorch.attention.dot_product_attention"
# New enough for every attention of cuDNN that Transformer Engine asks a version for.
CUDNN_VERSION = (9, 20, 0)
COMPILED = ("triton", "onnxscript", "onnx", "cutlass", "cuda")
DRIVEN = "triton"
"""Asks for a GPU's driver where its kernels are declared, and runs none on a CPU."""


class _Anything:
    """What a compiler's decorators, types and constants are on a machine without it.

    A call with a tensor is not part of an import, and raises `StandInMissing`.
    """

    def __init__(self, name: object = "", *_: object, **__: object) -> None:
        self._name = name if isinstance(name, str) else type(self).__name__

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if any(isinstance(value, torch.Tensor) for value in (*arguments, *named.values())):
            missing(self._name)()
        if arguments and isinstance(arguments[0], types.FunctionType):
            return _Kernel(self._name, arguments[0])
        return arguments[0] if arguments and callable(arguments[0]) else _Anything(self._name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(f"{self._name}.{name}")

    def __getitem__(self, _: Any) -> Any:
        return _Anything(self._name)

    def __or__(self, _: Any) -> Any:
        return _Anything(self._name)

    __ror__ = __or__


class _Kernel:
    """A function that a compiler's decorator was given; to launch or call it is refused."""

    def __init__(self, decorator: str, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._refuse = missing(f"{function.__module__}.{function.__qualname__} of {decorator}")

    def __call__(self, *_: object, **__: object) -> NoReturn:
        self._refuse()

    def __getitem__(self, _: object) -> Callable[..., NoReturn]:
        return self._refuse


AttentionKernels = tuple[Callable[[Any], Any], Callable[[Any], Any]]
COMPUTING: AttentionKernels = (attention.fused_attn_fwd, attention.fused_attn_bwd)


def install(
    root: Path, version: str, dtype: torch.dtype, wrap: extension.Wrap,
    fused: AttentionKernels = COMPUTING,
) -> None:  # fmt: skip
    """Import Transformer Engine from ``root`` and put stand-ins in the place of its kernels.

    Args:
        version: Value of ``transformer_engine.__version__``.
        dtype: Dtype besides bfloat16 in which fused attention is allowed to run; ``float16``, as
            upstream allows, leaves upstream's choice as it is.
        wrap: Put around each kernel's stand-in.
        fused: Stand-ins of fused attention, forward and backward.
    """
    # Upstream compares Triton's version where it is imported.
    sys.meta_path.insert(0, StandInFinder(placeholders(), _Anything, "3.4.0"))
    source = (root / PACKAGE / "pytorch" / "cpp_extensions" / "fused_attn.py").read_text()
    sys.modules[extension.NAME] = extension.build(
        has_short_backend=extension.SHORT_BACKEND in source, wrap=wrap
    )
    package: Any = types.ModuleType(PACKAGE)
    package.__path__ = [str(root / PACKAGE)]
    # Other packages ask importlib for it, which refuses a module without a specification.
    package.__spec__ = importlib.machinery.ModuleSpec(PACKAGE, None, is_package=True)
    package.__version__ = version
    package.__file__ = str(root / PACKAGE / "__init__.py")
    # The package's own __init__ would load the compiled library, so that it does not run.
    sys.modules[PACKAGE] = package
    common: Any = importlib.import_module(f"{PACKAGE}.common")
    # It looks for the file of the extension, in whose place a module stands already.
    common.load_framework_extension = lambda *_: None
    package.common = common
    with compiler.left_out():
        package.pytorch = importlib.import_module(f"{PACKAGE}.pytorch")
    if dtype is torch.float64:  # the kernels' stand-ins compute in it, the real ones do not
        constants = importlib.import_module(f"{PACKAGE}.pytorch.constants")
        constants.TE_DType.setdefault(torch.float64, kernels.FLOAT64)
    _replace_kernels(dtype, wrap, fused)


def placeholders() -> tuple[str, ...]:
    """Return the compilers in whose place `_Anything` stands here."""
    return tuple(
        name for name in COMPILED if name == DRIVEN or importlib.util.find_spec(name) is None
    )


def _replace_kernels(dtype: torch.dtype, wrap: extension.Wrap, fused: AttentionKernels) -> None:
    bindings = importlib.import_module(f"{PACKAGE}.pytorch.cpp_extensions.fused_attn")
    originals = (bindings.fused_attn_fwd, bindings.fused_attn_bwd)
    replaced = {
        original: wrap(original.__name__, attention.bound(original, stand_in))
        for original, stand_in in zip(originals, fused, strict=True)
    }
    utils = importlib.import_module(f"{ATTENTION}.utils")
    if dtype is not torch.float16:
        replaced[utils.get_attention_backend] = _any_float(utils.get_attention_backend)
    replaced[utils.get_cudnn_version] = lambda: CUDNN_VERSION
    replace_everywhere(replaced, PACKAGE.__eq__)
    backends: Any = importlib.import_module(f"{ATTENTION}.backends")
    backends.torch = WideTorch(dtype)


class WideTorch(types.ModuleType):
    """``torch`` as upstream's dtype tests see it: ``float16`` is the dtype that runs here."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__("torch")
        self.float16 = dtype

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _any_float(choose: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Let upstream choose for float32 and float64 as it does for bfloat16."""

    def choice(attention_params: Any = None) -> Any:
        if attention_params.qkv_dtype in (torch.float32, torch.float64):
            # cuDNN has no float32, so that upstream would fall back to another implementation.
            attention_params = dataclasses.replace(attention_params, qkv_dtype=torch.bfloat16)
        return choose(attention_params)

    return choice
