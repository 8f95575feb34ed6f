"""A script that calls one function of ours in every rank, with groups up, and hands its value over.

Its command line is ``MODULE:FUNCTION JSON``; the function is called with the JSON value as its only
argument and returns what JSON can hold. Where it is only preloaded, it imports what makes
Megatron's groups, so that each rank has it when it is forked.
"""

from __future__ import annotations

import argparse
import importlib
import json
import runpy
import sys
from typing import Any, NoReturn

from ringproof.rehearsal.rank.probe import hand_over, world

SIGN = "--num-layers"  # an option that only Megatron's parser has


def main() -> None:
    """Call the function."""
    name, argument = sys.argv[1:]
    module, _, function = name.partition(":")
    with world():
        hand_over(getattr(importlib.import_module(module), function)(json.loads(argument)))


class _Parsed(Exception):
    """Upstream's parser was asked to read a command line."""


def known_options(script: str) -> list[str] | None:
    """Return the options that the parser of a training script knows, or nothing without a parser.

    The script runs as its own program up to the first command line of Megatron-LM that it parses.
    """
    kind: Any = argparse.ArgumentParser
    original, found = kind.parse_known_args, None

    def parse(parser: argparse.ArgumentParser, *arguments: Any, **named: Any) -> Any:
        if SIGN in parser._option_string_actions:
            stop(parser)
        return original(parser, *arguments, **named)

    def stop(parser: argparse.ArgumentParser) -> NoReturn:
        nonlocal found
        found = sorted(parser._option_string_actions)
        raise _Parsed

    kind.parse_known_args = parse
    sys.argv = [script]
    try:
        runpy.run_path(script, run_name="__main__")
    except _Parsed:
        return found
    return None


if __name__ == "__main__":
    main()
elif __name__ == "__ringproof_preload__":  # `bootstrap.PRELOADED`
    importlib.import_module("megatron.core.process_groups_config")
