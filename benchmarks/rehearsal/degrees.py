"""What types of CP communication and budgets of Dynamic CP cost, by `ringproof fit`.

python -m benchmarks.rehearsal.degrees --upstream git:PATH@REF --commit SHA --json FILE
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from benchmarks.records import environment
from benchmarks.rehearsal.options import parser_of
from benchmarks.tables import STATIC_CLUSTER
from ringproof.cache import default_cache
from ringproof.launch.reading import Launch, read_command
from ringproof.rehearsal.fit.fitting import FitRequest, Fitting
from ringproof.rehearsal.fit.gpus import gpu
from ringproof.rehearsal.fit.result import Fit, as_json
from ringproof.rehearsal.fit.vary import with_settings

LAYERS = 32
LLAMA = (
    f"--num-layers {LAYERS} --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 "
    "--group-query-attention --num-query-groups 8 --position-embedding-type rope --rotary-base "
    "500000 --normalization RMSNorm --swiglu --disable-bias-linear --attention-dropout 0 "
    "--hidden-dropout 0 --untie-embeddings-and-output-weights --bf16 --transformer-impl "
    "transformer_engine --attention-backend fused --micro-batch-size 1 --lr 1e-4 --mock-data "
    "--tokenizer-type NullTokenizer --vocab-size 128256 --use-distributed-optimizer "
    "--no-create-attention-mask-in-dataloader --eval-interval 1000 --cross-entropy-loss-fusion"
)
RUN = (
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun "
    "--nproc-per-node 8"
)
STATIC = (
    f"{RUN} pretrain_gpt.py {LLAMA} --context-parallel-size 8 --seq-length 65536 "
    "--max-position-embeddings 65536 --global-batch-size 1"
)
LONGEST = 131_072
CLUSTER = (
    f"{RUN} --nnodes 8 pretrain_gpt.py {LLAMA} --tensor-model-parallel-size 2 --sequence-parallel "
    f"--seq-length {LONGEST} --max-position-embeddings {LONGEST} --cp-comm-type p2p "
    "--calculate-per-token-loss"
)
LENGTHS = (
    '{"mode":"distribution","type":"lognormal","format":"thd","min_seq_len":256,'
    f'"max_seq_len":{LONGEST},"mean_seq_len":8192,"lognormal_sigma":1.5}}'
)
DYNAMIC = (
    f"{CLUSTER} --context-parallel-size 2 --global-batch-size 64 --dynamic-context-parallel "
    "--sequence-packing-scheduler default_dynamic_cp --dataloader-type single "
    f"--null-tokenizer-pad-id 0 --use-varlen-dataset --varlen-mock-dataset-config-json {LENGTHS}"
)
BUDGET = "--max-seqlen-per-dp-cp-rank"
BUDGETS = (4096, 8192, 16384)
TYPE, LEVELS = "--cp-comm-type", "--hierarchical-context-parallel-sizes"
CHOICES = {
    "p2p": (STATIC, ((TYPE, "p2p"),)),
    "a2a+p2p [2, 4]": (STATIC, ((TYPE, "a2a+p2p"), (LEVELS, "2 4"))),
    "a2a+p2p [4, 2]": (STATIC, ((TYPE, "a2a+p2p"), (LEVELS, "4 2"))),
    "a2a": (STATIC, ((TYPE, "a2a"),)),
    "all_gather": (STATIC, ((TYPE, "all_gather"),)),
    STATIC_CLUSTER: (f"{CLUSTER} --context-parallel-size 32 --global-batch-size 1", ()),
}
"""Launch and settings by name."""


def measured(fit: Fit) -> dict[str, Any]:
    """Return what a plan takes of a measurement."""
    data = as_json(fit)
    kept = ("rank", "tokens", "highest")
    ranks = [{name: rank[name] for name in kept} for rank in data["ranks"]]
    return {name: data[name] for name in ("gpu", "layout", "estimates")} | {"ranks": ranks}


def request_of(given: argparse.Namespace, launch: Launch) -> FitRequest:
    """Ask for a launch on H100."""
    return FitRequest(
        launch, given.upstream, given.te, given.out, default_cache(), gpu("h100"), offline=True
    )


def row_of(found: Fit) -> dict[str, Any]:
    """Return the numbers of one measurement; bytes are those leaving in one microbatch."""
    memory = found.largest.memory
    context = [one for one in memory.sent if "CONTEXT_PARALLEL" in one.group]
    exchanged = sum(one.leaving for one in context if one.operation.startswith("all_to_all"))
    count = found.program.microbatches
    return {
        "tokens": found.largest.tokens,
        "peak": found.largest.peak,
        "steady": memory.steady,
        "phase": memory.phase,
        "exchanged": round(exchanged / count),
        "other": round((sum(one.leaving for one in context) - exchanged) / count),
        "extended_from": list(found.extended_from),
        "seconds": round(found.seconds, 1),
    }


def main() -> None:
    """Measure what is not in the record, and write it after each part."""
    parser = parser_of(__doc__, "build/fit-degrees")
    given = parser.parse_args()
    launches = {
        name: with_settings(read_command(words.split()), settings)
        for name, (words, settings) in CHOICES.items()
    }
    record: dict[str, Any] = {
        "environment": environment(), "megatron": given.commit, "transformer_engine": given.te,
        "layers": LAYERS, "rows": {},
    }  # fmt: skip
    before = json.loads(given.json.read_text()) if given.json.is_file() else record
    if (before["megatron"], before["transformer_engine"]) == (given.commit, given.te):
        record = before
    dynamic = read_command(DYNAMIC.split())
    with Fitting(request_of(given, dynamic), lambda *_: None) as fitting:
        for name in (name for name in launches if name not in record["rows"]):
            record["rows"][name] = row_of(fitting.extended(fitting.prepare(launches[name])))
            sys.stderr.write(f"{name} {record['rows'][name]}\n")
            given.json.write_text(json.dumps(record, indent=1) + "\n")
        budgets = record.setdefault("budgets", {})
        for budget in (str(one) for one in BUDGETS if str(one) not in budgets):
            chosen = with_settings(dynamic, ((BUDGET, budget),))
            fit = fitting.extended(fitting.prepare(chosen))
            row = {name: row_of(fit)[name] for name in ("tokens", "peak", "steady", "seconds")}
            budgets[budget] = row | {"fit": measured(fit)}
            given.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
