"""What formulas say of the launches whose memory was recorded, beside `ringproof fit`.

Compared are Megatron-LM's own report, which runs here as it is, and two published formulas: model
states of 16 bytes for each parameter of a rank (ZeRO, https://arxiv.org/abs/1910.02054, section
3.1; divided among the ranks of DP with a distributed optimizer but for 2 + 4 bytes of weights and
gradients), with the activations of https://arxiv.org/abs/2205.05198: equation 2 or, with sequence
parallelism, 4, which keep the scores of attention, and the same without these scores.

    python -m benchmarks.rehearsal.theory --upstream git:PATH@REF --json FILE
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.rehearsal.memory import RECORD, TESTS, kind_of, recorded, spread
from ringproof.cache import default_cache
from ringproof.launch.flags import Flags
from ringproof.launch.full.size import full_size
from ringproof.launch.reading import Launch, read_test_case
from ringproof.launch.small.layout import layout
from ringproof.rehearsal.protocol.program import FullSize, calling
from ringproof.rehearsal.runs.server import Servers
from ringproof.rehearsal.runs.upstreams import open_upstream

MEMORY = Path(__file__).parent / "results" / "memory.json"
SCRIPT, DTYPE, MIB = "pretrain_gpt.py", "float16", 1 << 20
FORMULAS = ("megatron", "scores", "no_scores", "cookbook", "llm_analysis")
"""Fields of a row; the last two are those of `calculators`."""
VOCABULARY = 50_257  # that of GPT-2, which the launches have


def reports(launches: list[dict[str, Any]]) -> list[float | None]:
    """Return the bytes of upstream's report for each launch; runs where upstream is imported."""
    from megatron.training import arguments, theoretical_memory_usage

    found: list[float | None] = []
    for one in launches:
        sys.argv = [SCRIPT, *one["arguments"]]
        os.environ.update(WORLD_SIZE=str(one["ranks"]), RANK="0", LOCAL_RANK="0")
        report = None
        with contextlib.redirect_stdout(sys.stderr), contextlib.suppress(Exception):
            parsed = arguments.parse_args()
            arguments.validate_args(parsed)
            unit = parsed.make_vocab_size_divisible_by * parsed.tensor_model_parallel_size
            parsed.padded_vocab_size = -(-parsed.vocab_size // unit) * unit
            report = theoretical_memory_usage.report_theoretical_memory(parsed, one["microbatches"])
        found.append(None if report is None else report[2] * MIB)
    return found


def formulas(launch: Launch) -> dict[str, float]:
    """Return the bytes of a dense GPT by the two published formulas."""
    flags, sizes = Flags(launch.arguments), layout(Flags(launch.arguments), launch.ranks)
    hidden, layers = flags.integer("--hidden-size", 0), flags.integer("--num-layers", 0)
    tokens = flags.integer("--seq-length", 0) * flags.integer("--micro-batch-size", 1)
    share = sizes.tensor
    parameters = (12 * hidden**2 * layers / sizes.pipeline + VOCABULARY * hidden) / share
    sharded = sizes.data if flags.has("--use-distributed-optimizer") else 1
    states = parameters * (6 + 12 / sharded)
    heads = flags.integer("--num-attention-heads", 1)
    scores = 5 * heads * flags.integer("--seq-length", 0) / hidden / share
    linear = 34 / share if sizes.sequence_parallel else 10 + 24 / share
    layer = tokens * hidden / sizes.context
    kept = {"scores": linear + scores, "no_scores": linear}
    return {name: states + layer * factor * layers for name, factor in kept.items()}


def errors(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return how far each formula is off, as shares of the recorded peak."""
    rows = list(rows)
    known = {name: [row for row in rows if row.get(name)] for name in FORMULAS}
    return {
        name: {"rows": len(some)}
        | spread(sorted(abs(row[name] / row["recorded_peak"] - 1) for row in some))
        for name, some in known.items()
    }


def summary(rows: dict[str, Any]) -> dict[str, Any]:
    """Return the errors of all rows, and of dense launches without pipeline stages."""
    simple = (row for row in rows.values() if row["kind"] == "dense" and row["stages"] == 1)
    return {"all": errors(rows.values()), "dense, PP 1": errors(simple)}


def main() -> None:
    """Ask upstream's report and the formulas for each launch that `memory.json` measured."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--upstream", required=True)
    parser.add_argument("--te", default="pip:transformer-engine==2.20.2")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("build/fit-theory"))
    given = parser.parse_args()
    measured = json.loads(MEMORY.read_text())
    upstream = open_upstream(given.upstream, given.te, cache=default_cache(), offline=True)
    rows: dict[str, Any] = {}
    asked = []
    with Servers(given.out, path=Path.cwd()) as servers:
        known = "ringproof.rehearsal.rank.calling:known_options"
        options = _called(servers, calling(upstream, known, str(upstream.program(SCRIPT))), given)
        for name, row in measured["rows"].items():
            folder = upstream.megatron / TESTS / name
            if "error" not in row or "not_seen" in row:
                continue
            launch = read_test_case(folder / "model_config.yaml")
            if launch.script != SCRIPT:
                continue
            program = full_size(launch, options=options)
            asked.append({
                "arguments": program.arguments, "ranks": launch.ranks,
                "microbatches": program.launch_microbatches,
            })  # fmt: skip
            dense = {} if Flags(launch.arguments).has("--num-experts") else formulas(launch)
            rows[name] = {
                "kind": kind_of(launch), "stages": program.layout.pipeline,
                "recorded_peak": recorded(folder / RECORD), **dense,
            }  # fmt: skip
            rows[name]["recorded_peak"] = row["recorded_peak"]
        function = "benchmarks.rehearsal.theory:reports"
        for row, size in zip(
            rows.values(), _called(servers, calling(upstream, function, asked), given), strict=True
        ):
            row["megatron"] = size
    head = {name: measured[name] for name in ("repository", "commit", "folder", "recorded")}
    given.json.write_text(
        json.dumps(head | {"summary": summary(rows), "rows": rows}, indent=1) + "\n"
    )


def _called(servers: Servers, program: Any, given: argparse.Namespace) -> Any:
    import dataclasses

    full = dataclasses.replace(program, full_size=FullSize(), dtype=DTYPE)
    outcome = servers.run(full, SCRIPT, given.out / "run")
    if outcome.failure is not None:
        raise SystemExit(outcome.failure.message)
    return outcome.ranks[0].results


if __name__ == "__main__":
    main()
