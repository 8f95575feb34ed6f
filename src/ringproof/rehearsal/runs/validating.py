"""Call a function once beside Megatron-Bridge, on one rank."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ringproof.rehearsal.protocol.program import calling
from ringproof.rehearsal.protocol.reports import Failure
from ringproof.rehearsal.runs.outcome import UpstreamFails
from ringproof.rehearsal.runs.server import Servers
from ringproof.rehearsal.runs.upstreams import open_bridge, open_upstream


@dataclass(frozen=True)
class BesideBridge:
    """How a call ended.

    Attributes:
        name: Versions, for people.
        failure: Why it did not return; ``None`` if it did.
    """

    name: str
    failure: Failure | None


def validate(
    function: str, argument: Any, bridge: str, megatron: str, engine: str | None, *, cache: Path,
    folder: Path, offline: bool, progress: Callable[[str, str], None], seconds: float,
) -> BesideBridge:  # fmt: skip
    """Call ``module:function`` with a JSON value where Megatron-Bridge can be imported.

    Raises:
        InputError: An upstream cannot be opened.
    """
    ends = time.monotonic() + seconds
    progress("open", "Megatron-Bridge, Megatron-LM and Transformer Engine")
    upstream = open_upstream(megatron, engine, cache=cache, offline=offline)
    root, name = open_bridge(bridge, option="--upstream", cache=cache, offline=offline)
    names = f"{name}, {upstream.megatron_name}"
    program = calling(replace(upstream, extra=(root,)), function, argument)
    left = max(ends - time.monotonic(), 0.0)
    with Servers(folder, import_seconds=left) as servers:
        try:
            outcome = servers.run(
                program, "", folder / "run", limit_seconds=max(ends - time.monotonic(), 0.0),
                progress=lambda line: progress("validate", line),
            )  # fmt: skip
        except UpstreamFails as failed:
            return BesideBridge(names, failed.failure)
    return BesideBridge(names, outcome.failure)
