"""Trainings by Megatron's own program with layer-wise CUDA graphs, and the record of them.

``python -m checks.rehearsal.test_graphs_training OUT MEGATRON_REPOSITORY ENGINE_REPOSITORY`` runs
every case and writes the record; names after that choose cases.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ringproof.rehearsal.fixtures import SessionServers
from ringproof.rehearsal.protocol.program import Program, Upstream
from ringproof.rehearsal.runs.outcome import Outcome
from ringproof.rehearsal.runs.server import Server
from ringproof.rehearsal.runs.upstreams import open_upstream

SCRIPT = "pretrain_gpt.py"
WHEEL = "pip:transformer-engine==2.20.2"
MODEL = (
    "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --micro-batch-size 1 --lr 1e-3 "
    "--min-lr 1e-3 --normalization RMSNorm --swiglu --disable-bias-linear --te-rng-tracker "
    "--transformer-impl transformer_engine --tokenizer-type NullTokenizer --vocab-size 255 "
    "--make-vocab-size-divisible-by 128 --mock-data --num-workers 0 --attention-dropout 0 "
    "--hidden-dropout 0 --log-interval 1 --eval-iters 1 --eval-interval 1000 --split 99,1,0 "
    "--untie-embeddings-and-output-weights"
)
LENGTHS = json.dumps(
    {"mode": "distribution", "type": "lognormal", "format": "thd", "min_seq_len": 16,
     "max_seq_len": 256, "mean_seq_len": 96, "lognormal_sigma": 1.0}, separators=(",", ":"),
)  # fmt: skip
PLAIN = "--seq-length 64 --max-position-embeddings 64 --global-batch-size 4"
PACKED = (
    "--seq-length 256 --max-position-embeddings 256 --global-batch-size 8 --use-varlen-dataset "
    f"--varlen-mock-dataset-config-json {LENGTHS} --calculate-per-token-loss "
    "--null-tokenizer-pad-id 0 --pad-packed-seq-alignment max"
)
STATIC = "--sequence-packing-scheduler dp_balanced"
DYNAMIC = "--dynamic-context-parallel --sequence-packing-scheduler default_dynamic_cp"
STAGES = "--pipeline-model-parallel-size 2 --max-seqlen-per-dp-cp-rank 128"
ROPE, NO_POSITION = "--position-embedding-type rope", "--position-embedding-type none"
GRAPHS = "--cuda-graph-impl transformer_engine --cuda-graph-warmup-steps 2 --cuda-graph-modules "
BANK = "attn --thd-max-packed-sequences 16 --cuda-graph-dynamic-microbatches"
PR5618, PR6479, PR3353 = "refs/pull/5618/head", "refs/pull/6479/head", "refs/pull/3353/head"


@dataclass(frozen=True)
class Case:
    """One training, eager and with graphs.

    Attributes:
        engine: Ref of Transformer Engine; empty for the released wheel.
        graphed: Modules and options of the graphs.
        equal: Whether graphs train bit by bit as eager; ``None`` where the run stops.
        message: Part of the message of the run that stops.
    """

    name: str
    megatron: str
    engine: str
    ranks: int
    arguments: str
    graphed: str
    steps: int = 20
    equal: bool | None = True
    message: str = ""

    def program(self, upstream: Upstream, *, graphs: bool) -> Program:
        """Return the training, with graphs or without."""
        more = f"{GRAPHS}{self.graphed}" if graphs else ""
        text = f"{MODEL} --train-iters {self.steps} {self.arguments} {more}"
        return Program(upstream, SCRIPT, tuple(text.split()), self.ranks)


def _plain(ref: str, size: int, more: str = "", **expected: Any) -> Case:
    name = f"{ref}-cp{size}{'-' if more else ''}{more.strip('-')}"
    arguments = f"{PLAIN} {ROPE} --context-parallel-size {size} {more}"
    return Case(name, ref, "", size, arguments, "attn mlp", **expected)


def _packed(name: str, ref: str, engine: str, ranks: int, more: str, **expected: Any) -> Case:
    share = f"--max-seqlen-per-dp-cp-rank {256 // ranks}"
    return Case(name, ref, engine, ranks, f"{PACKED} {share} {more}", BANK, **expected)


CASES = (
    *(_plain("dev", size) for size in (1, 2, 4)),
    *(_plain("main", size, "--bf16") for size in (1, 2, 4)),
    _plain("main", 1, equal=False),
    _packed("dev-packed-cp1", "dev", "", 1, f"{STATIC} {ROPE}"),
    _packed("dev-packed-cp2-no-position", "dev", "", 2,
            f"{STATIC} {NO_POSITION} --context-parallel-size 2"),
    _packed("dev-packed-cp2-rope", "dev", "", 2, f"{STATIC} {ROPE} --context-parallel-size 2",
            steps=6, equal=None, message="out of bounds"),
    _packed("dev-dynamic-2", "dev", "", 2, f"{DYNAMIC} {NO_POSITION} --context-parallel-size 2",
            steps=6, equal=None, message="fails in the replay"),
    _packed("dev-dynamic-2-te2.15", "dev", "release_v2.15", 2,
            f"{DYNAMIC} {NO_POSITION} --context-parallel-size 2 --rerun-mode disabled "
            "--no-check-for-nan-in-loss-and-grad", steps=6, equal=False),
    *(_packed(f"pr5618-dynamic-{n}", PR5618, "", n, f"{DYNAMIC} {ROPE}") for n in (2, 4)),
    *(_packed(f"pr6479-dynamic-{n}", PR6479, PR3353, n, f"{DYNAMIC} {ROPE}") for n in (2, 4)),
    _packed("pr6479-pp2-dynamic-2", PR6479, PR3353, 4, f"{DYNAMIC} {ROPE} {STAGES}", steps=10),
    _packed("pr6479-pp2-vpp2-dynamic-2", PR6479, PR3353, 4,
            f"{DYNAMIC} {ROPE} {STAGES} --num-virtual-stages-per-pipeline-rank 2 --num-layers 4 "
            "--global-batch-size 16", steps=10),
)  # fmt: skip


def summary(case: Case, eager: Outcome, graphed: Outcome) -> dict[str, Any]:
    """Return what the record says of a case."""
    losses = [[step["lm loss"] for step in run.losses.values()] for run in (eager, graphed)]
    norms = [list(run.grad_norms.values()) for run in (eager, graphed)]
    pairs = list(zip(*losses, strict=False))
    report = graphed.ranks[0] if graphed.ranks else None
    graphs = report.graphs if report else ()
    calls = [call for one in graphed.ranks for call in one.attention if call.phase == "capture"]
    failure = graphed.failure
    complete = failure is None and len(losses[1]) == case.steps
    return {
        "case": case.name,
        "steps": case.steps,
        "ranks": case.ranks,
        "equal": complete and losses[0] == losses[1] and norms[0] == norms[1],
        "steps_done": len(losses[1]),
        "largest_relative_loss_difference": max(
            (abs(a - b) / a for a, b in pairs if math.isfinite(b)), default=None
        ),
        "steps_without_a_number": sum(not math.isfinite(b) for _, b in pairs),
        "graphs": len(graphs),
        "pools": len({use.pool for use in graphs}),
        "slots": _slots(
            graphs, [c for c in report.attention if c.phase == "capture"] if report else ()
        ),
        "captured_cp_sizes": sorted({call.size for call in calls}),
        "replays": dict(Counter(str(use.replays) for use in graphs)),
        "kernels": sum(use.kernels for use in graphs),
        "transfers": sum(use.transfers for use in graphs),
        "eager_failure": eager.failure.message if eager.failure else "",
        "stopped_by": failure.message if failure else "",
        "stopped_at": failure.place if failure else "",
    }


def _slots(graphs: Any, calls: Any) -> int:
    """Return the number of forward graphs of one layer and CP size."""
    sizes = len({call.size for call in calls}) or 1
    layers = len({call.layer for call in calls}) or 1
    return len(graphs) // 2 // sizes // layers


def run(case: Case, upstream: Upstream, folder: Path) -> dict[str, Any]:
    """Run a case on a server of its own."""
    environment = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    with Server(upstream, SCRIPT, environment=environment, log=folder / "server.log") as server:
        eager = server.run(case.program(upstream, graphs=False), folder / "eager")
        graphed = server.run(case.program(upstream, graphs=True), folder / "graphed")
    return summary(case, eager, graphed)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_graphs_train_as_recorded(stage: SessionServers, case: Case) -> None:
    engine = f"NVIDIA/TransformerEngine@{case.engine}" if case.engine else WHEEL
    upstream = stage.upstream(f"NVIDIA/Megatron-LM@{case.megatron}", engine)
    eager = stage.run(case.program(upstream, graphs=False))
    assert eager.failure is None, eager.failure
    graphed = stage.run(case.program(upstream, graphs=True))
    found = summary(case, eager, graphed)
    if case.equal is None:
        assert graphed.failure is not None and case.message in graphed.failure.message
        return
    assert graphed.failure is None, graphed.failure
    assert found["equal"] == case.equal, found
    assert found["graphs"] and "0" not in found["replays"]


def main() -> None:
    """Write the record."""
    out, megatron, engine, *names = sys.argv[1:]
    found = {}
    if Path(out).is_file():
        found = {one["case"]: one for one in json.loads(Path(out).read_text())["cases"]}
    for case in CASES:
        if names and case.name not in names:
            continue
        spec = f"git:{engine}@{case.engine}" if case.engine else WHEEL
        with tempfile.TemporaryDirectory() as folder:
            cache = Path(tempfile.gettempdir()) / "ringproof-graphs"
            upstream = open_upstream(f"git:{megatron}@{case.megatron}", spec, cache=cache)
            result = run(case, upstream, Path(folder))
        result |= {
            "megatron": upstream.megatron_name.rpartition("@")[2],
            "engine": case.engine or WHEEL,
            "engine_version": upstream.engine_version,
        }
        found[case.name] = result
        print(json.dumps(result), flush=True)
        Path(out).write_text(json.dumps({"cases": list(found.values())}, indent=1) + "\n")


if __name__ == "__main__":
    main()
