"""ms-swift's own training step on made-up conversations, with the model of mcore-bridge.

Runs ``MegatronTrainer.train_step`` as it is, with ms-swift's collator, its slicing of packed
sequences for CP and its loss, on a small Qwen3 that mcore-bridge builds. Conversations and settings
are this program's. Try it without GPUs, where transformers is installed and these are in a folder::

    pip install --no-deps --target ../swift ms-swift==4.6.0 mcore-bridge==1.6.5 modelscope \
        modelscope_hub peft accelerate addict dacite json_repair
    ringproof rehearse -- torchrun --nproc-per-node 2 \
        benchmarks/rehearsal/swift_actor.py --swift ../swift --cp 2
"""

from types import SimpleNamespace

import torch
from actors import SAMPLES, STEPS, VOCABULARY, data_parallel, optimizer_of, options_of, start
from megatron.core import parallel_state

DOUBLES = ("aiohttp",)
"""Packages that ms-swift imports, and that a training step does not call."""
LENGTH = 96
OFF = (
    "is_multimodal", "overlap_grad_reduce", "overlap_param_gather", "nccl_comm_warmup",
    "use_distributed_optimizer", "sequence_parallel", "enable_dft_loss", "enable_channel_loss",
    "fp8_recipe", "fp8_format", "fp4_format", "use_megatron_fsdp", "model_type", "mtp_num_layers",
)  # fmt: skip


def main():
    """Train as the command line says, until the program is ended or after 100 steps."""
    options = parsed()
    start(options, [options.swift], DOUBLES)
    from swift.megatron.trainers.trainer import MegatronTrainer

    trainer = MegatronTrainer.__new__(MegatronTrainer)  # its __init__ loads a checkpoint
    trainer.args = settings_of(options)
    trainer.unwrapped_models = models_of(options)
    trainer.config = trainer.unwrapped_models[0].config
    trainer.wrapped_models = [data_parallel(one) for one in trainer.unwrapped_models]
    trainer.optimizer = optimizer_of(trainer.wrapped_models)
    trainer.opt_param_scheduler = SimpleNamespace(step=lambda increment: None)
    trainer.state = SimpleNamespace(iteration=0)
    trainer.callbacks, trainer.enable_routing_replay = [], False
    trainer.setup_model_training()
    batches = iter(conversations(options, trainer.args))
    for _ in range(STEPS):
        trainer.train_step(batches)


def parsed():
    """Read the command line, whose names are Megatron's."""
    parser = options_of("swift")
    parser.add_argument("--num-experts", type=int)
    parser.add_argument("--moe-aux-loss-coeff", type=float, default=0.0)
    parser.add_argument("--multiple", type=int, default=1, help="divides each sample's length")
    return parser.parse_args()


def settings_of(options):
    """The arguments that ms-swift reads in a training step."""
    ranks = parallel_state.get_data_parallel_world_size()
    return SimpleNamespace(
        **dict.fromkeys(OFF, False),
        tensor_model_parallel_size=options.tp,
        context_parallel_size=options.cp,
        pipeline_model_parallel_size=1,
        cp_partition_mode="zigzag",
        attention_backend="flash",
        padding_free=True,
        task_type="causal_lm",
        seq_length=LENGTH,
        micro_batch_size=1,
        global_batch_size=SAMPLES // 2,
        num_microbatches=SAMPLES // 2 // ranks,
    )


def models_of(options):
    """A small Qwen3, with or without experts, that mcore-bridge builds of its configuration."""
    from mcore_bridge import ModelConfig, get_mcore_model, hf_to_mcore_config
    from transformers import AutoConfig

    sizes = {
        "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "max_position_embeddings": LENGTH, "tie_word_embeddings": False,
    }  # fmt: skip
    experts, fields = options.num_experts, {}
    if experts:
        sizes |= {"num_experts": experts, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
        fields["moe_aux_loss_coeff"] = options.moe_aux_loss_coeff
    given = AutoConfig.for_model("qwen3_moe" if experts else "qwen3", **sizes)
    config = ModelConfig(
        **{**hf_to_mcore_config(given), **fields},
        tensor_model_parallel_size=options.tp,
        context_parallel_size=options.cp,
        cp_comm_type=options.cp_comm_type,
        params_dtype=torch.float32,
        gradient_accumulation_fusion=False,
        calculate_per_token_loss=True,  # ms-swift's default for causal language models
    )
    return [one.cuda() for one in get_mcore_model(config)]


def conversations(options, arguments):
    """Yield packed microbatches of this data parallel rank, two samples in each, as ms-swift does.

    The first label of a sample is none, since ms-swift shifts the labels of a whole pack.
    """
    from swift.megatron.utils import get_padding_to
    from swift.template import Template, TemplateMeta

    settings = {"padding_free": True, "sequence_parallel_size": options.cp}
    template = Template(None, TemplateMeta("none", [], [], []), **settings)
    template.processor = SimpleNamespace(pad_token_id=0)
    template.use_megatron = True
    template.set_mode("train")
    ranks = parallel_state.get_data_parallel_world_size()
    rank = parallel_state.get_data_parallel_rank()
    generator = torch.Generator().manual_seed(1)
    number = 0
    while True:
        batch = [_sample(generator, options.multiple) for _ in range(2)]
        if number % ranks == rank:
            yield template._data_collator(batch, padding_to=get_padding_to(arguments))
        number += 1


def _sample(generator, multiple):
    size = int(torch.randint(20, LENGTH // 2, (), generator=generator)) // multiple * multiple
    asked = int(torch.randint(4, 12, (), generator=generator))
    tokens = torch.randint(1, VOCABULARY, (size,), generator=generator).tolist()
    return {"input_ids": tokens, "labels": [-100] * asked + tokens[asked:], "length": size}


if __name__ == "__main__":
    main()
