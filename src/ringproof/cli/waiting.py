"""Says on stderr that a computation goes on, when it takes long."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def told_to_wait(what: str, *, after: float = 2.0, every: float = 5.0) -> Iterator[None]:
    """Print a line ``after`` some seconds of the block, and another one ``every`` few seconds."""
    done = threading.Event()

    def tell() -> None:
        started, pause = time.monotonic(), after
        while not done.wait(pause):
            typer.echo(f"{what}: {time.monotonic() - started:.0f} s so far", err=True)
            pause = every

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()
