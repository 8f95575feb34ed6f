"""Calls of functions whose parameters differ between releases."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ringproof.rehearsal.standins.guard import refuse

PROGRAM = "the program in the place of pretrain_gpt.py"
LEFT_OUT = (
    "use_legacy_models", "yaml_cfg", "fim_data", "logits_load_dir", "per_dataset_sequences_path",
)  # fmt: skip


def called(function: Callable[..., Any], *given: Any, **offered: Any) -> Any:
    """Call a function with those of the offered arguments that are among its parameters."""
    known = inspect.signature(function).parameters
    return function(*given, **{name: value for name, value in offered.items() if name in known})


def named(source: Any, names: Iterable[str]) -> Mapping[str, Any]:
    """Return the attributes of an object that it has among ``names``."""
    return {name: getattr(source, name) for name in names if hasattr(source, name)}


def refuse_left_out(args: argparse.Namespace) -> None:
    """Raise `StandInMissing` for an option that upstream's program has and ours has not."""
    refuse(PROGRAM, **named(args, LEFT_OUT))
