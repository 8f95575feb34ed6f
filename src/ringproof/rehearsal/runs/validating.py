"""Call a function once where a framework on Megatron-LM can be imported, as its rank 0."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ringproof.rehearsal.protocol.program import FullSize, calling
from ringproof.rehearsal.protocol.reports import Failure
from ringproof.rehearsal.runs.outcome import UpstreamFails
from ringproof.rehearsal.runs.server import Servers
from ringproof.rehearsal.runs.upstreams import open_upstream


@dataclass(frozen=True)
class BesideMegatron:
    """How a call ended.

    Attributes:
        name: Versions, for people.
        failure: Why it did not return; ``None`` if it did.
    """

    name: str
    failure: Failure | None


def validate(
    function: str, argument: Any, beside: Callable[..., tuple[Path, str]], megatron: str,
    engine: str | None, *, cache: Path, folder: Path, offline: bool,
    progress: Callable[[str, str], None], seconds: float, ranks: int = 0,
) -> BesideMegatron:  # fmt: skip
    """Call ``module:function`` with a JSON value where a framework can be imported.

    Args:
        beside: Called with ``cache`` and ``offline``, returns the framework's folder and name.
        ranks: World size, of which rank 0 alone runs and the others are numbers; 0 for one rank.

    Raises:
        InputError: An upstream cannot be opened.
    """
    ends = time.monotonic() + seconds
    progress("open", "Megatron-LM, Transformer Engine and what trains with them")
    upstream = open_upstream(megatron, engine, cache=cache, offline=offline)
    root, name = beside(cache=cache, offline=offline)
    names = f"{name}, {upstream.megatron_name}"
    program = calling(replace(upstream, extra=(root,)), function, argument, ranks or 1)
    program = replace(program, full_size=FullSize() if ranks else None)
    left = max(ends - time.monotonic(), 0.0)
    with Servers(folder, import_seconds=left) as servers:
        try:
            outcome = servers.run(
                program, "", folder / "run", limit_seconds=max(ends - time.monotonic(), 0.0),
                progress=lambda line: progress("validate", line),
            )  # fmt: skip
        except UpstreamFails as failed:
            return BesideMegatron(names, failed.failure)
    return BesideMegatron(names, outcome.failure)
