"""Records all planted defects, or all removed stand-ins, on one checkout.

``python -m ringproof.rehearsal.faults planted|removed MEGATRON ENGINE OUT.json``
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
import time
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ringproof.cli.cache import default_cache
from ringproof.rehearsal.faults import programs
from ringproof.rehearsal.faults.removing import REMOVED
from ringproof.rehearsal.faults.table import FAULTS
from ringproof.rehearsal.faults.trials import Trials
from ringproof.rehearsal.program import Program
from ringproof.rehearsal.running import Outcome, Server
from ringproof.rehearsal.sources import open_upstream

ENVIRONMENT = MappingProxyType({"CUDA_DEVICE_MAX_CONNECTIONS": "1"})


def main(what: str, megatron: str, engine: str, out: str) -> None:
    """Run them and write the record."""
    upstream = open_upstream(megatron, engine, cache=default_cache().parent / "rehearsal")
    started = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as folder,
        Server(upstream, programs.SCRIPT, environment=ENVIRONMENT) as server,
    ):

        def run(program: Program) -> Outcome:
            return server.run(program, Path(folder) / "run", limit_seconds=120)

        trials = Trials(run, upstream)
        found = _planted(trials) if what == "planted" else _removed(trials)
    record = {
        "megatron": upstream.megatron_name,
        "transformer_engine": upstream.engine_version,
        "seconds": round(time.monotonic() - started),
        what: found,
    }
    Path(out).write_text(json.dumps(record, indent=1) + "\n")


def _planted(trials: Trials) -> list[dict[str, Any]]:
    found = []
    for fault in FAULTS:
        found.append(trials.trial(fault).record())
        print(fault.name, found[-1]["seen"], flush=True)
    return found


def _removed(trials: Trials) -> list[dict[str, Any]]:
    found = []
    for training, symbols in REMOVED:
        for symbol in symbols:
            seen = trials.removal(training, symbol)
            named = seen.by == "raised" and seen.message == symbol
            found.append(
                {"symbol": symbol, "training": training, "named": named,
                 "seen": dataclasses.asdict(seen)}
            )  # fmt: skip
            print(symbol, named, seen.by, seen.message[:150], seen.place, flush=True)
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
