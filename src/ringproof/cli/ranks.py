"""What the commands that start ranks have alike: their options, and the log of the ranks."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from ringproof.cli.options import force_option, json_option
from ringproof.cluster import ClusterOptions, LogSink
from ringproof.errors import InputError
from ringproof.options import option


@dataclass(frozen=True, kw_only=True)
class RankOptions:
    """How ranks are started, and where the result and their log go."""

    backend: str = option("auto", "Backend of torch.distributed.", choices=("auto", "gloo", "nccl"))
    share_gpus: bool = option(
        False, "Let NCCL ranks share GPUs where there are fewer GPUs than ranks (slow)."
    )
    rank_log: str = option(
        "",
        "Write what all ranks print to this file. - writes it to standard error.",
        metavar="PATH",
    )
    json_path: str = json_option()
    force: bool = force_option()

    def cluster(self, timeout: float, sink: LogSink, **more: Any) -> ClusterOptions:
        """Return the options of the cluster; ``more`` are further ones of them."""
        return ClusterOptions(
            backend=self.backend,
            timeout_seconds=timeout,
            log_sink=sink,
            share_gpus=self.share_gpus,
            limited=not self.force,
            **more,
        )

    @contextlib.contextmanager
    def log(self, *, first: bool) -> Iterator[TextIO | None]:
        """Open the file of ``--rank-log`` for appending, since ranks of torchrun share it.

        Args:
            first: Whether to empty the file, so that it holds nothing of an earlier run.

        Yields:
            The stream; ``None`` where no log is wanted.

        Raises:
            InputError: The file cannot be written.
        """
        if self.rank_log in ("", "-"):
            yield sys.stderr if self.rank_log else None
            return
        try:
            if first:
                Path(self.rank_log).write_text("", encoding="utf-8")
            stream = Path(self.rank_log).open("a", encoding="utf-8")  # noqa: SIM115 - closed below
        except OSError as error:
            sentence = f"{self.rank_log} cannot be written ({error.strerror}); name another file"
            raise InputError("--rank-log", sentence) from error
        with stream:
            yield stream


def log_lines(stream: TextIO | None) -> LogSink:
    """Return the function that writes each line of a rank to the stream, where there is one."""

    def write(rank: int, line: str) -> None:
        if stream is not None:
            stream.write(f"[rank{rank}]: {line}\n")

    return write


def check_launched(world: tuple[int, int] | None, ranks: int, option: str, remedy: str) -> None:
    """Refuse a launch by torchrun with another number of ranks than the options say.

    Args:
        world: This rank and the number of ranks of the launch; ``None`` without a launcher.
        ranks: Number of ranks that the options say.
        option: The option that says it, or several.
        remedy: What to do.

    Raises:
        InputError: The numbers differ.
    """
    if world is not None and world[1] != ranks:
        raise InputError(option, f"torchrun made {world[1]} ranks, not {ranks}; {remedy}")
