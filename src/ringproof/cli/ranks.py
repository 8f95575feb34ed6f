"""What the commands that start ranks have alike: options, lists of integers, the ranks' log."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, TextIO

import typer

from ringproof.errors import InputError

BackendOption = Annotated[
    str, typer.Option(help="Backend of torch.distributed: auto, gloo or nccl.")
]
ShareOption = Annotated[
    bool,
    typer.Option(
        "--share-gpus",
        help="Let NCCL ranks share GPUs where there are fewer GPUs than ranks (slow).",
    ),
]
JsonOption = Annotated[
    str, typer.Option("--json", help="Write the result as JSON to this file; - is stdout.")
]


def integers(option: str, text: str, example: str) -> tuple[int, ...]:
    """Return the integers of a comma-separated list; an empty text has none.

    Raises:
        InputError: A part is not an integer.
    """
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise InputError(option, text, "not a list of integers", f"write it as {example}") from None


@contextlib.contextmanager
def rank_log_stream(path: str, *, first: bool) -> Iterator[TextIO | None]:
    """Open the file of ``--rank-log`` for appending, since ranks of torchrun share it.

    Args:
        path: File; ``-`` is standard error, and an empty path gives ``None``.
        first: Whether to empty the file, so that it holds nothing of an earlier run.

    Raises:
        InputError: The file cannot be written.
    """
    if path in ("", "-"):
        yield sys.stderr if path else None
        return
    try:
        if first:
            Path(path).write_text("", encoding="utf-8")
        stream = Path(path).open("a", encoding="utf-8")  # noqa: SIM115 - closed below
    except OSError as error:
        raise InputError("--rank-log", path, str(error.strerror), "choose another file") from error
    with stream:
        yield stream


def rank_log_sink(stream: TextIO | None) -> Callable[[int, str], None]:
    """Return the function that writes each line of a rank to the stream, where there is one."""

    def write(rank: int, line: str) -> None:
        if stream is not None:
            stream.write(f"[rank{rank}]: {line}\n")

    return write
