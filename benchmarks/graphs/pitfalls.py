"""Every pitfall of graphs under Dynamic CP, made on purpose, and what came of it.

    python -m benchmarks.graphs.pitfalls --json benchmarks/graphs/results/pitfalls.json
    python -m benchmarks.graphs.tables

Under a minute. Exit 1 where a mistake changed nothing, or where the same without the mistake was
not as eager. The tests that keep each of them red are named in the record.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.graphs import pitfall_trials as trials
from checks.graphs import test_pitfalls, test_pitfalls_rows
from checks.graphs.captures import Seen
from ringproof.cluster import Cluster, ClusterOptions, RankFailure, drop
from ringproof.files import write_atomically
from ringproof.reference.topology.dynamic import ContextParallelGroup
from smoke import graph_pitfalls
from smoke.model_batches import group_of_one

SOON = 3.0
"""Seconds after which stages that stand still are reported."""
_FOLDERS = re.compile(r"[^\s(]*/(?=(?:torch|ringproof|smoke|graphs)/)")


@dataclass(frozen=True)
class Pitfall:
    """One mistake.

    Args:
        id: As in the skill's card.
        broken: What is done wrong.
        proof: The test that has it.
        trial: Makes it in this process.
        staged: Makes it on several ranks.
    """

    id: str
    broken: str
    proof: str
    trial: Callable[[ContextParallelGroup], Seen] | None = None
    staged: Callable[[Cluster], Seen] | None = None


def group_mismatch(cluster: Cluster) -> Seen:
    """The entry of the static size is replayed for a microbatch on one rank."""
    found = cluster.run(graph_pitfalls.group_of_the_capture, world_size=2).values
    said = cluster.run(graph_pitfalls.refused_groups, world_size=2).values[0]
    finite = all(value["static size is finite"] for value in found)
    equal = any(value["static size"] for value in found)
    silent = "nothing" if equal else "finite, wrong" if finite else "NaN"
    return Seen(
        sound=all(value["own size"] for value in found) and not said["same"],
        silent=silent,
        said=said["own"],
        note="an equal group of the same ranks is refused, too" if said["twin"] else "",
    )


def one_stage_fails(cluster: Cluster) -> Seen:
    """The last of three stages cannot capture, catches that, and goes on without graphs."""
    _stages(cluster, "sound")
    together = _stages(cluster, "together")
    said = _stages(cluster, "raises")
    _stages(cluster, "sound")  # the ranks are new, and import first
    waits = _stages(cluster, "goes on eager", timeout_seconds=SOON)
    return Seen(
        sound=not together,
        silent="hang" if "waits for another" in waits else "nothing",
        said=said.partition("InputError: ")[2] or said,
        note=f"after {SOON:.0f} s: `{waits}`",
    )


def _stages(cluster: Cluster, way: str, **options: float) -> str:
    """What is said of a failure; empty if there was none."""
    try:
        cluster.run(graph_pitfalls.capture_of_stages, world_size=3, way=way, **options)
    except RankFailure as failure:
        return str(failure).splitlines()[0]
    return ""


_LAYER, _ROWS = "checks/graphs/test_pitfalls.py::", "checks/graphs/test_pitfalls_rows.py::"
_RANKS = "smoke/test_graph_pitfalls.py::"
PITFALLS = (
    Pitfall(
        "rope-lifetime",
        "MLA's rotary tables are in a cache that drops them when the next CP size is captured.",
        f"{_LAYER}test_rope_tables_live_as_long_as_the_graphs",
        test_pitfalls.rope_lifetime,
    ),
    Pitfall(
        "stale-metadata",
        "The boundaries of the capture stay in the static tensors; the rows are the new ones.",
        f"{_LAYER}test_metadata_that_is_not_copied_in_is_stale",
        trials.stale_metadata,
    ),
    Pitfall(
        "hidden-tail",
        "Padding past the last padded boundary belongs to no sequence: no dummy covers it.",
        f"{_ROWS}test_rows_past_the_last_boundary_are_undefined",
        trials.hidden_tail,
    ),
    Pitfall(
        "slot-reuse",
        "Two microbatches wait for their backwards, and both were given the same slot.",
        f"{_LAYER}test_a_slot_in_flight_is_not_used_again",
        test_pitfalls.slot_reuse,
    ),
    Pitfall(
        "group-identity",
        "The graphs of the static CP group are replayed for a microbatch on one rank.",
        f"{_RANKS}test_the_group_of_the_capture_is_replayed",
        staged=group_mismatch,
    ),
    Pitfall(
        "stale-constants",
        "An `if pad_between_seqs:` was captured where no sequence had padding.",
        f"{_LAYER}test_a_branch_on_pad_between_seqs_is_baked_in",
        test_pitfalls.python_branch,
    ),
    Pitfall(
        "sync-in-capture",
        "Attention asks `cu_seqlens` for the longest sequence.",
        f"{_LAYER}test_questions_about_cu_seqlens_synchronise",
        test_pitfalls.device_sync,
    ),
    Pitfall(
        "random-numbers",
        "Dropout draws from a generator that is not registered with the graph.",
        f"{_LAYER}test_dropout_needs_a_registered_generator",
        test_pitfalls.random_numbers,
    ),
    Pitfall(
        "undefined-rows",
        "Padded rows hold NaN, and keys and values are not blanked before the ring.",
        f"{_ROWS}test_undefined_rows_poison_the_gradients_of_attention",
        test_pitfalls_rows.undefined_rows,
    ),
    Pitfall(
        "one-stage-fails",
        "The last pipeline stage cannot capture and alone goes on without graphs.",
        f"{_RANKS}test_a_stage_that_goes_on_eager_alone_is_a_deadlock",
        staged=one_stage_fails,
    ),
    Pitfall(
        "expandable-segments",
        "The buffer that a captured collective has registered is mapped elsewhere.",
        "checks/graphs/test_graphs_page.py::test_a_registered_buffer_that_moves_dangles",
        trials.expandable_segments,
    ),
    Pitfall(
        "capture-is-no-speed-up",
        "Microbatches fill half of the capacity.",
        "checks/graphs/test_pitfalls_cost.py::test_padding_to_capacity_is_computed",
        trials.no_speed_up,
    ),
)


def observe(pitfall: Pitfall, cluster: Cluster | None = None) -> Seen:
    """Make the mistake.

    Args:
        pitfall: Which.
        cluster: Of three ranks, for those that need several.
    """
    if pitfall.staged is not None:
        assert cluster is not None, "this one needs several ranks"
        return pitfall.staged(cluster)
    assert pitfall.trial is not None, "a pitfall is made in one process or on several"
    with group_of_one() as alone:
        return pitfall.trial(alone)


def row_of(pitfall: Pitfall, seen: Seen) -> dict[str, Any]:
    """What the record says of a pitfall."""
    plain = {name: _plain(value) for name, value in asdict(seen).items()}
    return {"id": pitfall.id, "broken": pitfall.broken, **plain, "proof": pitfall.proof}


def holds(row: dict[str, Any]) -> bool:
    """Whether the mistake was seen, and only the mistake."""
    return bool(row["sound"]) and row["silent"] != "nothing"


def main() -> int:
    """Make all mistakes, or those named."""
    arguments = _arguments()
    rows = []
    with Cluster(3, ClusterOptions(timeout_seconds=60, log_sink=drop)) as cluster:
        for pitfall in PITFALLS:
            if arguments.only and pitfall.id not in arguments.only:
                continue
            started = time.perf_counter()
            rows.append(row_of(pitfall, observe(pitfall, cluster)))
            print(_line(rows[-1], time.perf_counter() - started), flush=True)
    if arguments.json:
        text = json.dumps(_content(rows), indent=1) + "\n"
        write_atomically(Path(arguments.json), text, field="--json")
    return 0 if all(holds(row) for row in rows) else 1


def _plain(value: object) -> object:
    return _FOLDERS.sub("", value) if isinstance(value, str) else value


def _line(row: dict[str, Any], seconds: float) -> str:
    verdict = "seen  " if holds(row) else "MISSED"
    return f"{verdict} {row['id']:<24} {row['silent']:<14} {seconds:4.1f} s  {row['said'][:70]}"


def _content(rows: list[dict[str, Any]]) -> dict[str, Any]:
    import torch

    environment = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "backend": "gloo",
    }
    return {"environment": environment, "pitfalls": rows}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", nargs="+", default=(), metavar="ID")
    parser.add_argument("--json", default="")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
