"""Records all planted defects, all removed stand-ins, or upstream's own defects, on one checkout.

``python -m checks.faults planted|removed|defects MEGATRON ENGINE OUT.json``
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from checks.faults import programs
from checks.faults.defects import DefectOutcome, look
from checks.faults.programs import Defect
from checks.faults.removing import REMOVED
from checks.faults.trials import FAULTS, Fault, Trials
from ringproof.cache import default_cache
from ringproof.rehearsal.protocol.program import Program
from ringproof.rehearsal.runs.outcome import Outcome
from ringproof.rehearsal.runs.server import Servers
from ringproof.rehearsal.runs.upstreams import open_upstream

ROOT = Path(__file__).parents[2]  # from which ranks import the defects


def main(what: str, megatron: str, engine: str, out: str) -> None:
    """Run them and write the record, anew after each; what ``out`` holds already is kept."""
    upstream = open_upstream(megatron, engine, cache=default_cache())
    heading = {"megatron": upstream.megatron_name, "transformer_engine": upstream.engine_version}
    path = Path(out)
    record: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if {name: record.get(name) for name in heading} != heading:
        record = {**heading, what: []}
    done = {entry["name"] for entry in record[what]}
    with tempfile.TemporaryDirectory() as folder, Servers(Path(folder), path=ROOT) as servers:

        def run(program: Program) -> Outcome:
            return servers.run(program, programs.SCRIPT, Path(folder) / "run", limit_seconds=120)

        for name, ask in _todo(what, Trials(run, upstream), partial(look, run, upstream)):
            if name not in done:
                record[what].append({"name": name, **ask()})
                path.write_text(json.dumps(record, indent=1) + "\n")
                print(name, record[what][-1]["seen"], flush=True)


def _todo(
    what: str, trials: Trials, ask: Callable[[Defect], DefectOutcome]
) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Yield what is to be recorded: its name, and the function that runs it."""

    def trial(fault: Fault) -> dict[str, Any]:
        return dataclasses.asdict(trials.trial(fault))

    def look_for(defect: Defect) -> dict[str, Any]:
        found = ask(defect)
        return {"seen": found.shown, "said": found.said}

    def removal(training: str, symbol: str) -> dict[str, Any]:
        seen = trials.removal(training, symbol)
        named = seen.by == "raised" and seen.message == symbol
        return {"training": training, "named": named, "seen": dataclasses.asdict(seen)}

    if what == "defects":
        yield from ((defect.name, partial(look_for, defect)) for defect in programs.DEFECTS)
    elif what == "planted":
        yield from ((fault.name, partial(trial, fault)) for fault in FAULTS)
    else:
        for training, symbols in REMOVED:
            yield from ((symbol, partial(removal, training, symbol)) for symbol in symbols)


if __name__ == "__main__":
    main(*sys.argv[1:])
