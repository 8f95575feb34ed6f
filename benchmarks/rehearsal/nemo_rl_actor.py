"""NeMo-RL's own training step of its Megatron worker on made-up rollouts.

Runs what ``MegatronPolicyWorker.train`` calls as it is: NeMo-RL's packing and slicing of sequences
for CP, its losses, ``LossPostProcessor`` and ``megatron_forward_backward``. Of Megatron-Bridge only
the file that gives a rank its tokens is imported. Model, rollouts and settings are this program's.
Try it without GPUs, with a checkout of NVIDIA-NeMo/RL and an unpacked Megatron-Bridge 0.6.2::

    ringproof rehearse -- torchrun --nproc-per-node 2 \
        benchmarks/rehearsal/nemo_rl_actor.py --nemo-rl ../RL --bridge ../bridge --cp 2
"""

import sys
from types import ModuleType

import torch
from actors import SAMPLES, STEPS, VOCABULARY, built, options_of, start
from megatron.core import parallel_state
from megatron.core.distributed import finalize_model_grads

DOUBLES = (
    "ray", "nemo_rl.data.chat_templates", "nemo_rl.models.dtensor.parallelize",
    "nemo_rl.models.generation", "nemo_rl.models.generation.interfaces", "nemo_rl.models.policy",
    "nemo_rl.models.megatron.config", "nemo_rl.models.megatron.draft.eagle",
    "nemo_rl.models.megatron.draft.utils", "nemo_rl.utils.fastokens", "nemo_rl.utils.logger",
)  # fmt: skip
"""Modules that a training step does not call, some of which import packages of servers."""
PACKAGES = ("megatron.bridge", "megatron.bridge.training", "megatron.bridge.training.utils")
LENGTH, TOKENS, MULTIPLE = 96, 256, 16


def main():
    """Train as the command line says, until the program is ended or after 100 steps."""
    options = parsed()
    start(options, [options.nemo_rl], DOUBLES)
    for name in PACKAGES:  # whose own __init__ imports all models
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__path__ = [f"{options.bridge}/{name.replace('.', '/')}"]
    from nemo_rl.models.megatron.data import get_microbatch_iterator, process_global_batch
    from nemo_rl.models.megatron.train import LossPostProcessor, megatron_forward_backward

    settings, loss = settings_of(options), loss_of(options)
    model, optimizer = built(
        options,
        LENGTH,
        calculate_per_token_loss=True,
        finalize_model_grads_func=finalize_model_grads,
    )
    groups = {"dp_group": parallel_state.get_data_parallel_group()}
    for step in range(STEPS):
        data = rollouts(step)
        whole = process_global_batch(
            data, loss_fn=loss, batch_idx=0, batch_size=data.size, **groups
        )
        batches, count, size, _, length = get_microbatch_iterator(
            whole.pop("batch"), settings, 1, straggler_timer=None
        )
        model.zero_grad_buffer()
        optimizer.zero_grad()
        megatron_forward_backward(
            model=model,
            data_iterator=batches,
            num_microbatches=count,
            seq_length=length,
            mbs=size,
            post_processing_fn=LossPostProcessor(loss, settings, num_microbatches=count),
            **whole,
        )
        optimizer.step()


def parsed():
    """Read the command line, whose names are Megatron's and NeMo-RL's."""
    parser = options_of("nemo-rl")
    parser.add_argument("--bridge", required=True, help="folder that holds megatron/bridge")
    parser.add_argument("--sft", action="store_true", help="the loss of fine-tuning")
    parser.add_argument("--fuse-loss", action="store_true")
    parser.add_argument("--sequence-level", action="store_true", help="a mean of each sequence")
    return parser.parse_args()


def settings_of(options):
    """NeMo-RL's settings of a policy that a training step reads."""
    return {
        "sequence_packing": {"enabled": True, "fuse_loss": options.fuse_loss},
        "dynamic_batching": {"enabled": False},
        "make_sequence_length_divisible_by": MULTIPLE,
        "megatron_cfg": {
            "tensor_model_parallel_size": options.tp,
            "pipeline_model_parallel_size": 1,
            "context_parallel_size": options.cp,
            "sequence_parallel": False,
        },
    }


def loss_of(options):
    """The loss of fine-tuning, or of a policy with a penalty for leaving the reference."""
    from nemo_rl.algorithms.loss import ClippedPGLossConfig, ClippedPGLossFn, NLLLossFn

    if options.sft:
        return NLLLossFn()
    return ClippedPGLossFn(ClippedPGLossConfig(token_level_loss=not options.sequence_level))


def rollouts(step):
    """Samples of this data parallel rank, in microbatches that NeMo-RL packs."""
    from nemo_rl.distributed.batched_data_dict import BatchedDataDict

    generator = torch.Generator().manual_seed(step)
    place = torch.arange(LENGTH)
    lengths = torch.randint(20, LENGTH, (SAMPLES,), generator=generator)
    asked = torch.randint(5, 12, (SAMPLES, 1), generator=generator)
    noise = torch.randn(4, SAMPLES, LENGTH, generator=generator) / 10
    data = BatchedDataDict({
        "input_ids": torch.randint(0, VOCABULARY, (SAMPLES, LENGTH), generator=generator),
        "input_lengths": lengths,
        "token_mask": ((place >= asked) & (place < lengths[:, None])).float(),
        "sample_mask": torch.ones(SAMPLES),
        "prev_logprobs": noise[0] - 4.8,
        "generation_logprobs": noise[1] - 4.8,
        "reference_policy_logprobs": noise[2] - 4.8,
        "advantages": noise[3] * 10,
    })  # fmt: skip
    packing = {
        "algorithm": "modified_first_fit_decreasing",
        "max_tokens_per_microbatch": TOKENS,
        "input_key": "input_ids",
        "input_lengths_key": "input_lengths",
        "sequence_length_pad_multiple": MULTIPLE,
    }
    parts, _ = data.shard_by_batch_size(
        parallel_state.get_data_parallel_world_size(), SAMPLES, sequence_packing_args=packing
    )
    return parts[parallel_state.get_data_parallel_rank()]


if __name__ == "__main__":
    main()
