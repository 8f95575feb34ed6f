"""What each type of CP communication costs in memory and bytes, by `ringproof fit`.

python -m benchmarks.rehearsal.degrees --upstream git:PATH@REF --commit SHA --json FILE
"""

from __future__ import annotations

import json
import sys
from typing import Any

from benchmarks.records import environment
from benchmarks.rehearsal.options import parser_of
from ringproof.cache import default_cache
from ringproof.launch.reading import read_command
from ringproof.rehearsal.fit.fitting import FitRequest, Fitting
from ringproof.rehearsal.fit.gpus import gpu
from ringproof.rehearsal.fit.result import Fit
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
LAUNCH = (
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun "
    f"--nproc-per-node 8 pretrain_gpt.py {LLAMA} --context-parallel-size 8"
)
STATIC = f"{LAUNCH} --seq-length 65536 --max-position-embeddings 65536 --global-batch-size 1"
TYPE, LEVELS = "--cp-comm-type", "--hierarchical-context-parallel-sizes"
CHOICES = {
    "p2p": (STATIC, ((TYPE, "p2p"),)),
    "a2a+p2p [2, 4]": (STATIC, ((TYPE, "a2a+p2p"), (LEVELS, "2 4"))),
    "a2a+p2p [4, 2]": (STATIC, ((TYPE, "a2a+p2p"), (LEVELS, "4 2"))),
    "a2a": (STATIC, ((TYPE, "a2a"),)),
    "all_gather": (STATIC, ((TYPE, "all_gather"),)),
}
"""Launch and settings by name."""


def row_of(found: Fit) -> dict[str, Any]:
    """Return the numbers of one measurement; bytes are those leaving in one microbatch."""
    memory = found.largest.memory
    context = [one for one in memory.sent if "CONTEXT_PARALLEL" in one.group]
    exchanged = sum(one.leaving for one in context if one.operation.startswith("all_to_all"))
    count = found.program.microbatches
    return {
        "peak": found.largest.peak,
        "steady": memory.steady,
        "phase": memory.phase,
        "exchanged": round(exchanged / count),
        "other": round((sum(one.leaving for one in context) - exchanged) / count),
        "extended_from": list(found.extended_from),
        "seconds": round(found.seconds, 1),
    }


def main() -> None:
    """Measure each choice, and write the record."""
    parser = parser_of(__doc__, "build/fit-degrees")
    given = parser.parse_args()
    launches = {
        name: with_settings(read_command(words.split()), settings)
        for name, (words, settings) in CHOICES.items()
    }
    request = FitRequest(
        launches["p2p"], given.upstream, given.te, given.out, default_cache(), gpu("h100"),
        offline=True,
    )  # fmt: skip
    record: dict[str, Any] = {
        "environment": environment(), "megatron": given.commit, "transformer_engine": given.te,
        "layers": LAYERS, "rows": {},
    }  # fmt: skip
    with Fitting(request, lambda *_: None) as fitting:
        for name, launch in launches.items():
            record["rows"][name] = row_of(fitting.extended(fitting.prepare(launch)))
            sys.stderr.write(f"{name} {record['rows'][name]}\n")
            given.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
