"""Running Megatron-LM's dev branch without Triton: what its import needs and never calls here.

For fresh interpreters only: the stand-ins must never reach another test.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any

import torch

from checks.skills.te_hand_off import StandInFinder

TRITON = "triton"


class TritonFinder(StandInFinder):
    """Answers every import below ``triton`` with a stand-in."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A spec for names of the package, nothing for others."""
        if fullname.split(".")[0] != TRITON:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module: types.ModuleType) -> None:
        """Only the package itself has anything: its version."""
        if module.__name__ == TRITON:
            vars(module)["__version__"] = "3.0.0"


def uncompiled(function: Any = None, **_: Any) -> Any:
    """`torch.compile` that leaves a function as it is: its backend would look into Triton."""
    return function if function is not None else uncompiled


def prepare() -> None:
    """To be called before anything of Megatron-core is imported."""
    torch.compile = uncompiled
    sys.meta_path.insert(0, TritonFinder())
