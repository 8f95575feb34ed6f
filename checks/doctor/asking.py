"""Ask Megatron-LM's own argument checks about launches, at their full size, in one process.

Nothing is allocated and no group is made: the parser, ``validate_args`` and the configuration
classes run, as they do on rank 0 before anything else.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import warnings
from collections.abc import Mapping
from typing import Any
from unittest import mock

from ringproof.rehearsal.rank.arguments import check

SHORT = 600  # characters of a message that are kept


def answers(launches: list[dict[str, Any]]) -> list[str | None]:
    """Return the message that refuses each launch, or ``None`` where upstream accepts it.

    Args:
        launches: ``arguments`` (list of words), ``world`` (number of ranks), ``environment`` and,
            where the GPUs are Blackwell, ``blackwell``.
    """
    arguments = importlib.import_module("megatron.training.arguments")
    build, built = arguments.add_megatron_arguments, []

    def once(parser: Any) -> Any:
        """Let one parser serve every launch; building upstream's takes most of the time."""
        built.extend([] if built else [build(parser)])
        return built[0]

    with mock.patch.object(arguments, "add_megatron_arguments", once):
        return [_answer(launch) for launch in launches]


def option_names(_: object) -> list[str]:
    """Return the options of upstream's parser, with their dashes."""
    arguments = importlib.import_module("megatron.training.arguments")
    parser = arguments.add_megatron_arguments(argparse.ArgumentParser())
    return [name for action in parser._actions for name in action.option_strings]


def bytes_of_mask(length: int) -> dict[str, int]:
    """Return the bytes of a sample's mask in Megatron's own data set, kept and left out."""
    import torch
    from megatron.core.datasets.gpt_dataset import _get_ltor_masks_and_position_ids

    def held(*, kept: bool) -> int:
        tokens = torch.arange(length)
        mask = _get_ltor_masks_and_position_ids(tokens, 0, False, False, False, kept)[0]
        return 0 if mask is None else mask.numel() * mask.element_size()

    return {"kept": held(kept=True), "left out": held(kept=False)}


def _answer(launch: Mapping[str, Any]) -> str | None:
    printed = io.StringIO()
    with (
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        try:
            check(launch, more=False)
        except SystemExit:
            lines = printed.getvalue().strip().splitlines()
            return (lines or [""])[-1][:SHORT]
        except Exception as error:
            return " ".join(str(error).split())[:SHORT]
    return None
