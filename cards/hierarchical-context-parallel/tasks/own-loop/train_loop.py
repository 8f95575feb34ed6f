"""Long-context training in our fork: ulysses inside the node, ring between the nodes."""

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
