"""A script that hands over the options that an upstream training script's own parser knows.

Its command line is the path of the training script. The script runs as its own program up to the
first parse of a command line, and then ends.
"""

from __future__ import annotations

import argparse
import runpy
import sys
from typing import Any, NoReturn

from ringproof.rehearsal.rank.handing import hand_over

SIGN = "--num-layers"  # an option that only Megatron's parser has


def main() -> None:
    """Run the training script named on the command line until it parses its arguments."""
    script = sys.argv[1]
    sys.argv = [script]
    kind: Any = argparse.ArgumentParser
    original = kind.parse_known_args

    def parse(parser: argparse.ArgumentParser, *arguments: Any, **named: Any) -> Any:
        if SIGN in parser._option_string_actions:
            leave(parser)
        return original(parser, *arguments, **named)

    kind.parse_known_args = parse
    runpy.run_path(script, run_name="__main__")


def leave(parser: argparse.ArgumentParser) -> NoReturn:
    """Hand over a parser's option strings and end the program."""
    hand_over(sorted(parser._option_string_actions))
    sys.exit(0)


if __name__ == "__main__":
    main()
