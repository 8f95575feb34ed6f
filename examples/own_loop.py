"""A training loop of one's own on megatron-core, with context parallelism.

Launch it as ``torchrun --nproc-per-node 2 examples/own_loop.py --cp 2``. Without GPUs, put
``ringproof rehearse --upstream megatron-core==0.19.2 --`` before that.
"""

import argparse
import os

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig

LENGTH, VOCABULARY, MICROBATCHES, STEPS = 64, 128, 2, 100


def main():
    """Train on as many ranks as there are."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--cp", type=int, default=1)
    options = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=options.tp, context_parallel_size=options.cp
    )
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    config = TransformerConfig(
        num_layers=2,
        hidden_size=64,
        num_attention_heads=4,
        tensor_model_parallel_size=options.tp,
        context_parallel_size=options.cp,
        pipeline_dtype=torch.float32,
        gradient_accumulation_fusion=False,
    )
    model, optimizer = built(config)
    batches = samples()
    for step in range(STEPS):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        losses = get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=batches,
            model=[model],
            num_microbatches=MICROBATCHES,
            seq_length=LENGTH,
            micro_batch_size=1,
            forward_only=False,
        )
        optimizer.step()
        print(step, losses)


def built(config):
    """The model in megatron-core's data parallel wrapper, and its optimizer."""
    model = GPTModel(
        config,
        get_gpt_layer_with_transformer_engine_spec(),
        vocab_size=VOCABULARY,
        max_sequence_length=LENGTH,
        position_embedding_type="rope",
    ).cuda()
    model = DistributedDataParallel(config, DistributedDataParallelConfig(), model)
    # Sums gradients over the ranks that share sequences, too, in the schedule.
    config.finalize_model_grads_func = finalize_model_grads
    settings = OptimizerConfig(optimizer="adam", lr=1e-3, params_dtype=torch.float32)
    return model, get_megatron_optimizer(settings, [model])


def samples():
    """Yield microbatches of this data parallel rank: the same on all ranks of its CP group."""
    generator = torch.Generator().manual_seed(parallel_state.get_data_parallel_rank())
    positions = torch.arange(LENGTH)
    while True:
        tokens = torch.randint(0, VOCABULARY, (1, LENGTH + 1), generator=generator)
        yield {
            "tokens": tokens[:, :-1].cuda(),
            "labels": tokens[:, 1:].cuda(),
            "positions": positions[None].cuda(),
            "mask": (positions > LENGTH // 3)[None].float().cuda(),
        }


def on_this_rank(batch):
    """Keep this rank's two of 2 * CP chunks of the sequence, which share the causal work evenly."""
    size = parallel_state.get_context_parallel_world_size()
    rank = parallel_state.get_context_parallel_rank()
    mine = [rank, 2 * size - 1 - rank]
    return {
        name: torch.cat([value.chunk(2 * size, dim=1)[index] for index in mine], dim=1)
        for name, value in batch.items()
    }


def forward(batches, model):
    """megatron-core's forward step: the token losses of a microbatch, and what they add up to."""
    batch = on_this_rank(next(batches))
    found = model(batch["tokens"], batch["positions"], None, labels=batch["labels"])

    def loss(token_losses):
        total, own = (token_losses * batch["mask"]).sum(), batch["mask"].sum()
        # The mask may leave another number of tokens on each rank: divide by all of them.
        count = own.clone()
        dist.all_reduce(count, group=parallel_state.get_context_parallel_group())
        return total / count, {"loss": torch.stack([total.detach(), own])}

    return found, loss


if __name__ == "__main__":
    main()
