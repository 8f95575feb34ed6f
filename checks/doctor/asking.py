"""Ask Megatron-LM's own argument checks about launches, at their full size, in one process.

Nothing is allocated and no group is made: the parser, ``validate_args`` and the configuration
classes run, as they do on rank 0 before anything else.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

SHORT = 600  # characters of a message that are kept


def answers(launches: list[dict[str, Any]]) -> list[dict[str, str] | None]:
    """Return the refusal of each launch, or ``None`` where upstream accepts it.

    Args:
        launches: ``arguments`` (list of words), ``world`` (number of ranks), ``environment`` and,
            where the GPUs are Blackwell, ``blackwell``.

    Returns:
        ``type``, ``message`` and ``place`` (``FILE:LINE`` relative to the folder of Megatron) of
        the exception that upstream raises.
    """
    arguments = importlib.import_module("megatron.training.arguments")
    with _parser_built_once(arguments):
        return [_answer(arguments, launch) for launch in launches]


def option_names(_: object) -> list[str]:
    """Return the options of upstream's parser, with their dashes."""
    arguments = importlib.import_module("megatron.training.arguments")
    parser = arguments.add_megatron_arguments(argparse.ArgumentParser())
    return [name for action in parser._actions for name in action.option_strings]


@contextlib.contextmanager
def _parser_built_once(arguments: Any) -> Iterator[None]:
    """Let every launch be parsed by one parser; building upstream's takes most of the time."""
    build = arguments.add_megatron_arguments
    built: list[Any] = []

    def once(parser: Any) -> Any:
        if not built:
            built.append(build(parser))
        return built[0]

    arguments.add_megatron_arguments = once
    try:
        yield
    finally:
        arguments.add_megatron_arguments = build


def _answer(arguments: Any, launch: Mapping[str, Any]) -> dict[str, str] | None:
    printed = io.StringIO()
    with (
        _as_rank_zero(launch),
        _on_gpus(arguments, launch),
        contextlib.redirect_stdout(printed),
        _quiet(printed),
    ):
        try:
            _ask(arguments)
        except SystemExit:
            lines = printed.getvalue().strip().splitlines()
            return {"type": "SystemExit", "message": (lines or [""])[-1][:SHORT], "place": ""}
        except Exception as error:
            message = " ".join(str(error).split())[:SHORT]
            return {"type": type(error).__name__, "message": message, "place": _place(error)}
    return None


def _ask(arguments: Any) -> None:
    args = arguments.parse_args()
    arguments.validate_args(args, {})
    arguments.core_transformer_config_from_args(args)


@contextlib.contextmanager
def _as_rank_zero(launch: Mapping[str, Any]) -> Iterator[None]:
    before, words = dict(os.environ), sys.argv
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)  # which a rehearsal sets
    os.environ.update(launch.get("environment", {}))
    os.environ.update({"WORLD_SIZE": str(launch["world"]), "RANK": "0", "LOCAL_RANK": "0"})
    sys.argv = ["pretrain_gpt.py", *launch["arguments"]]
    try:
        yield
    finally:
        sys.argv = words
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _on_gpus(arguments: Any, launch: Mapping[str, Any]) -> Iterator[None]:
    """Let the argument checks see Blackwell, where the stand-ins have an H100's properties."""
    version = arguments.get_device_arch_version
    if launch.get("blackwell"):
        arguments.get_device_arch_version = lambda: 10
    try:
        yield
    finally:
        arguments.get_device_arch_version = version


@contextlib.contextmanager
def _quiet(printed: io.StringIO) -> Iterator[None]:
    with contextlib.redirect_stderr(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        parts = Path(frame.filename).parts
        if "megatron" in parts:
            return f"{'/'.join(parts[parts.index('megatron') :])}:{frame.lineno}"
    return ""
