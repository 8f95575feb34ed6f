"""Which backend, for which device."""

from __future__ import annotations

import torch

from ringproof.errors import InputError
from ringproof.reference.graphs.backend import CaptureBackend
from ringproof.reference.graphs.cuda import CudaBackend
from ringproof.reference.graphs.names import DEVICES, NAMES
from ringproof.reference.graphs.tape.backend import TapeBackend
from ringproof.reference.graphs.transformer_engine import TransformerEngineBackend, is_installed


def choose_backend(name: str, device: torch.device) -> CaptureBackend:
    """A backend by name; ``auto`` is ``cuda`` on a GPU and ``tape`` on the CPU.

    Args:
        name: One of ``names.NAMES``.
        device: Where the captured functions run.

    Raises:
        InputError: An unknown name, a backend that does not work on the device, a GPU backend
            without a GPU, Transformer Engine where it is not installed.
    """
    if name == "auto":
        name = "cuda" if device.type == "cuda" else "tape"
    if name not in DEVICES:
        raise InputError("--graph-backend", name, "unknown", f"use one of {', '.join(NAMES)}")
    if DEVICES[name] == "cuda" and not torch.cuda.is_available():
        raise InputError("--graph-backend", name, "there is no GPU here", "use tape, or auto")
    if DEVICES[name] != device.type:
        other = "cuda" if device.type == "cuda" else "tape"
        raise InputError(
            "--graph-backend", name, f"the model is on {device.type}", f"use {other}, or auto"
        )
    if name == "tape":
        return TapeBackend()
    if name == "cuda":
        return CudaBackend(device)
    if not is_installed():
        raise InputError(
            "--graph-backend",
            name,
            "Transformer Engine is not installed",
            "install it, or use cuda",
        )
    return TransformerEngineBackend(device)
