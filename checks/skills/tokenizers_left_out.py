"""Megatron-LM 0.16.1's program on a machine without two packages that it imports without need."""

from __future__ import annotations

import importlib
import sys
import types


def use() -> None:
    """Let 0.16.1 import ``six`` and ``regex``, and watch its training loop."""
    for name in ("six", "regex"):
        sys.modules.setdefault(name, types.ModuleType(name))
    importlib.import_module("megatron.training.training")  # before the script, to be watched
