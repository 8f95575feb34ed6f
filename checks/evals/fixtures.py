"""The files of the tasks: a launch that dies, a log of mixed evidence, a loop with a defect.

All of it is made up, in the forms that upstream prints. ``python -m checks.evals.fixtures`` writes
them below ``cards/``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from checks.logs.diagnose_run import Case, lost_peer, progress, traceback, watchdog
from checks.logs.groups_run import FLAT, argument, census, engine, layout, nccl, startup

ROOT = Path(__file__).parents[2]
CAPTURED, REPLAYED = (8, 4, 2, 1), MappingProxyType({1: 12800, 4: 352, 8: 96})
"""CP sizes of the graph bank's log, and how often each was replayed."""

LAUNCH = r"""#!/bin/bash
# Fine-tuning on chats: 6 of the 8 GPUs of this node are ours.
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc-per-node 6 pretrain_gpt.py \
  --num-layers 16 --hidden-size 2048 --num-attention-heads 16 --normalization RMSNorm --swiglu \
  --disable-bias-linear --position-embedding-type rope --attention-dropout 0 --hidden-dropout 0 \
  --seq-length 8192 --max-position-embeddings 8192 --bf16 --micro-batch-size 1 \
  --global-batch-size 48 --train-iters 200 --lr 1e-4 --min-lr 1e-5 --eval-interval 1000 \
  --eval-iters 1 --split 99,1,0 --log-interval 1 --tokenizer-type NullTokenizer \
  --vocab-size 32000 --null-tokenizer-pad-id 0 --mock-data --sft \
  --no-create-attention-mask-in-dataloader --transformer-impl transformer_engine \
  --attention-backend fused --context-parallel-size 2 --cp-comm-type p2p \
  --dynamic-context-parallel --max-seqlen-per-dp-cp-rank 2048 \
  --min-dynamic-context-parallel-size 1 --calculate-per-token-loss --dataloader-type single \
  --cuda-graph-impl none
"""

LOOP = '''"""Long-context training in our fork: ulysses inside the node, ring between the nodes."""

import os

import torch
from megatron.core import parallel_state
from megatron.core.transformer import TransformerConfig

from our_fork import build_model, corpus, optimizer_for

SEQUENCE, CP, NODE = 131072, 16, 8


def model_config() -> TransformerConfig:
    return TransformerConfig(
        num_layers=32,
        hidden_size=4096,
        num_attention_heads=32,
        num_query_groups=8,
        context_parallel_size=CP,
        cp_comm_type="a2a+p2p",
        hierarchical_context_parallel_sizes=[NODE, CP // NODE],
        bf16=True,
    )


def start() -> None:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("nccl")
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=1,
        context_parallel_size=CP,
        order="tp-cp-ep-dp-pp",
    )
    assert SEQUENCE % (2 * CP) == 0


def main() -> None:
    start()
    config = model_config()
    assert config.num_query_groups % config.hierarchical_context_parallel_sizes[0] == 0
    model = build_model(config)
    optimizer = optimizer_for(model)
    for step, batch in enumerate(corpus(SEQUENCE, rank=parallel_state.get_context_parallel_rank())):
        loss = model(**batch).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
'''


FORK_FILE = "our-fork/fork.patch"
"""Lines that a fork adds to two files of Megatron-LM's dev branch, at the commit of the card."""
FORK = (ROOT / "cards" / "dynamic-context-parallel" / "tasks" / FORK_FILE).read_text("utf-8")


def dies_in_the_third_step() -> Mapping[str, str]:
    """Six ranks; rank 4 asks for a group of a size that does not exist, the others wait for it."""
    lookup = Case("no-group-of-size", "", "KeyError", "4",
                  ("train_step", "get_dynamic_data_context_parallel_groups"))  # fmt: skip
    files = {"third-step/train.sh": LAUNCH}
    for rank in range(6):
        lines = progress(1, 2) if rank == 5 else []
        if rank == 4:
            lines = [*lines, *traceback(lookup)]
        elif rank % 2:
            lines = [*lines, *lost_peer()]
        else:
            lines = [*lines, watchdog(rank, group="DATA_PARALLEL_GROUP_WITH_CP")]
        files[f"third-step/logs/rank_{rank}.log"] = "".join(f"{line}\n" for line in lines)
    return files


def mixed_evidence() -> Mapping[str, str]:
    """Sizes were asked for and groups made, and attention ran in the flat ring."""
    lines = [
        "+ torchrun --nproc-per-node 4 pretrain_gpt.py --context-parallel-size 4 "
        "--hierarchical-context-parallel-sizes 2 2",
        startup(4, 4, "[2, 2]"),
        argument("context_parallel_size", "4"),
        argument("hierarchical_context_parallel_sizes", "[2, 2]"),
        *census(layout(4, 4, (2, 2)), 4),
        *nccl(layout(4, 4), built=(FLAT,)),
        "note: HIERARCHICAL_CONTEXT_PARALLEL_GROUPS is set, a2a+p2p should be on",
        *(line for step in (1, 2) for line in [*progress(step, step), *[engine("p2p")] * 4]),
    ]
    return {"mixed-evidence/run.log": "".join(f"{line}\n" for line in lines)}


def own_loop() -> Mapping[str, str]:
    """A loop that tells the configuration of the level sizes, and not the process groups."""
    return {"own-loop/train_loop.py": LOOP}


def never_replayed() -> Mapping[str, str]:
    """A bank of four sizes of which one was not replayed in 200 steps that equal eager's."""
    lines = [
        "INFO:megatron: Rank 0: 16 graphable layers.",
        "Start CUDA Graphs capture...",
        f"Rank 0: capturing {len(CAPTURED)} dynamic-CP variants over 1 slot-aliased physical TE "
        "pool slots; one CP branch follows the canonical liveness schedule.",
        *(
            "[DEBUG | DotProductAttention]: Running with config={'max_seqlen_q': "
            f"{4096 * size}, 'context_parallel': {size > 1}, 'cuda_graph': True}}"
            for size in CAPTURED
        ),
        "Time spent in CUDA Graphs capture on rank 0: 38.5s",
        *progress(4, 200)[::40],
    ]
    counted = "\n".join(f"local_cp_size {size}: {REPLAYED[size]} replays" for size in REPLAYED)
    return {
        "never-replayed/train.log": "".join(f"{line}\n" for line in lines),
        "never-replayed/replays.txt": f"all ranks, steps 4 to 200\n{counted}\n",
    }


TASKS: Mapping[str, tuple[Mapping[str, str], ...]] = MappingProxyType(
    {
        "dynamic-context-parallel": (
            dies_in_the_third_step(),
            {FORK_FILE: FORK},
        ),
        "dynamic-cp-cuda-graphs": (never_replayed(),),
        "hierarchical-context-parallel": (mixed_evidence(), own_loop()),
    }
)
"""Contents of the files of each skill's tasks, by path below ``cards/SKILL/tasks``."""

if __name__ == "__main__":
    for skill, tasks in TASKS.items():
        for path, text in ((path, text) for task in tasks for path, text in task.items()):
            place = ROOT / "cards" / skill / "tasks" / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")
