"""Options that programs have in common which measure launches at full size."""

from __future__ import annotations

import argparse
from pathlib import Path


def parser_of(description: str | None, out: str) -> argparse.ArgumentParser:
    """Return a parser that asks for an upstream, its commit and a record.

    Args:
        description: Docstring of the program; its first line is shown.
        out: Folder for logs without ``--out``.
    """
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--upstream", required=True)
    parser.add_argument("--commit", required=True, help="its commit, for the record")
    parser.add_argument("--te", default="pip:transformer-engine==2.20.2")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path(out))
    return parser
