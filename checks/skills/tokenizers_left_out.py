"""Megatron-LM 0.16.1's program on a machine without two packages that it imports without need."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types


def use() -> None:
    """Let 0.16.1 import ``six`` and ``regex``, and watch its training loop.

    Where they are installed they are used: transformers, if it is there too, calls ``regex``.
    """
    for name in ("six", "regex"):
        if importlib.util.find_spec(name) is None:
            sys.modules[name] = types.ModuleType(name)
    importlib.import_module("megatron.training.training")  # before the script, to be watched
