"""Plant mistakes in a launch script and see by which message a rehearsal finds each.

``python -m benchmarks.rehearsal.scripts --checkout PATH --commit SHA`` writes
``results/scripts.json``: the verdict of the right script and of each wrong one.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.rehearsal.launches import rehearsed

RESULTS = Path(__file__).parent / "results" / "scripts.json"
SCRIPT = """#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
SEQ_LENGTH=${SEQ_LENGTH:-8192}
MODEL_ARGS=(
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336
    --num-attention-heads 32 --group-query-attention --num-query-groups 8
    --seq-length $SEQ_LENGTH --max-position-embeddings $SEQ_LENGTH
    --normalization RMSNorm --swiglu --disable-bias-linear
    --position-embedding-type rope --untie-embeddings-and-output-weights
    --transformer-impl transformer_engine --bf16
)
PARALLEL_ARGS=(
    --tensor-model-parallel-size 2 --sequence-parallel
    --context-parallel-size 8 --cp-comm-type a2a+p2p
    --hierarchical-context-parallel-sizes 4 2
)
torchrun --nproc-per-node $GPUS_PER_NODE --nnodes 4 pretrain_gpt.py \\
    ${MODEL_ARGS[@]} ${PARALLEL_ARGS[@]} \\
    --micro-batch-size 1 --global-batch-size 128 --train-iters 100000 \\
    --lr 3e-4 --min-lr 3e-5 --data-path /data/corpus --tokenizer-type Llama2Tokenizer \\
    --tokenizer-model /data/tokenizer.model --save /checkpoints --use-distributed-optimizer
"""
RIGHT = "right"
MISTAKES = {
    RIGHT: ("", ""),
    "levels for too few KV heads": ("sizes 4 2", "sizes 8 1"),
    "levels whose product is not the CP size": ("sizes 4 2", "sizes 4 4"),
    "no levels": ("    --hierarchical-context-parallel-sizes 4 2\n", ""),
    "sequence length off by 8": ("SEQ_LENGTH:-8192", "SEQ_LENGTH:-8184"),
    "local implementation": ("--transformer-impl transformer_engine", "--transformer-impl local"),
    "missing environment variable": ("export CUDA_DEVICE_MAX_CONNECTIONS=1\n", ""),
    "sliding window": ("--bf16\n", "--bf16 --window-size 1024,0\n"),
}


def main() -> None:
    """Run all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkout", type=Path, required=True, help="work tree of Megatron-LM")
    parser.add_argument("--commit", required=True, help="its commit, for the record")
    parser.add_argument("--te", default=None, help="see ringproof rehearse --te")
    given = parser.parse_args()
    rows = {}
    for number, (name, (before, after)) in enumerate(MISTAKES.items()):
        if before not in SCRIPT:
            raise SystemExit(f"{name}: the script has no {before!r}")
        folder = Path("build/rehearsal/scripts") / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        script = folder.resolve() / "train.sh"
        script.write_text(SCRIPT.replace(before, after) if before else SCRIPT)
        rows[name] = rehearsed(given.checkout, str(script), given.te, folder)
        rows[name]["path"] = "train.sh"
        print(rows[name]["exit"], rows[name]["seconds"], name, rows[name].get("headline"))
    RESULTS.write_text(json.dumps({"commit": given.commit, "scripts": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
