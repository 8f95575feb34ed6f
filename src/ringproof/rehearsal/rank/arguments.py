"""Let Megatron-LM's own parser, argument checks and configuration classes judge a launch.

They run as on rank 0 before anything else, with the launch as it is. Nothing is allocated and no
group is made.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"  # which a rehearsal sets
BLACKWELL = 10
"""Major number of the architecture from which some checks hold no longer."""
MORE = (("megatron.post_training.arguments", "add_modelopt_args"),)
"""Options that upstream's programs take besides those of its parser, where they can be imported."""


def check(launch: Mapping[str, Any], *, more: bool = True) -> None:
    """Parse and check a launch.

    Args:
        launch: ``arguments`` (list of words), ``world`` (number of ranks), ``environment`` and,
            where the GPUs are Blackwell, ``blackwell``.
        more: Whether the parser also gets the options of `MORE`, which it takes once.

    Raises:
        BaseException: What upstream raises, a `SystemExit` of its parser included.
    """
    arguments = importlib.import_module("megatron.training.arguments")
    environment = {name: value for name, value in os.environ.items() if name != CONNECTIONS}
    environment |= {"WORLD_SIZE": str(launch["world"]), "RANK": "0", "LOCAL_RANK": "0"}
    environment |= launch.get("environment", {})
    newer = mock.patch.object(arguments, "get_device_arch_version", lambda: BLACKWELL)
    with (
        mock.patch.dict(os.environ, environment, clear=True),
        mock.patch.object(sys, "argv", ["pretrain_gpt.py", *launch["arguments"]]),
        newer if launch.get("blackwell") else contextlib.nullcontext(),
    ):
        args = arguments.parse_args(_more_options() if more else None)
        arguments.validate_args(args, {})
        arguments.core_transformer_config_from_args(args)


def _more_options() -> Callable[[Any], Any] | None:
    """Return what adds the options of the programs to a parser, or ``None`` for nothing."""
    for module, name in MORE:
        with contextlib.suppress(ImportError):
            return vars(importlib.import_module(module)).get(name)
    return None
