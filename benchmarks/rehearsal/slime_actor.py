"""slime's own training step on made-up rollouts.

Runs ``slime.backends.megatron_utils.model.train`` as it is: its data iterator, its slicing of
packed sequences for CP, its losses and its use of megatron-core's schedule and optimizer. Model,
rollouts and settings are this program's. Try it without GPUs, with a checkout of THUDM/slime::

    ringproof rehearse --upstream megatron-core==0.19.2 -- torchrun --nproc-per-node 2 \
        benchmarks/rehearsal/slime_actor.py --slime ../slime --cp 2
"""

import argparse
from types import SimpleNamespace

import torch
from actors import SAMPLES, STEPS, VOCABULARY, built, options_of, start
from megatron.core import parallel_state

DOUBLES = ("wandb", "ray", "ray.actor", "ray.util", "sglang", "sglang_router", "mbridge")
"""Packages that slime imports, and that a training step does not call."""
LENGTH = 256
OFF = (
    "custom_megatron_before_train_step_hook_path", "save_debug_train_data", "enable_mtp_training",
    "allgather_cp", "ci_test", "overlap_grad_reduce", "overlap_param_gather", "manual_gc",
    "align_grad_reduce", "align_param_gather", "reset_optimizer_states",
    "use_distributed_optimizer",
    "recompute_loss_function", "use_rollout_logprobs", "use_opsm", "get_mismatch_metrics",
    "use_unbiased_kl", "custom_tis_function_path", "custom_pg_loss_reducer_function_path",
    "ci_save_grad_norm", "ci_load_grad_norm", "use_wandb", "use_tensorboard", "decoder_seq_length",
    "true_on_policy_mode", "use_rollout_top_p", "eps_clip_c",
)  # fmt: skip


def main():
    """Train as the command line says, until the program is ended or after 100 steps."""
    options = parsed()
    start(options, [options.slime], DOUBLES)
    from megatron.training import global_vars
    from slime.backends.megatron_utils.data import get_data_iterator
    from slime.backends.megatron_utils.model import train

    global_vars._GLOBAL_ARGS = settings(options)
    balances = "aux_loss" if options.moe_aux_loss_coeff else "none"
    model, optimizer = built(
        options,
        LENGTH,
        calculate_per_token_loss=options.calculate_per_token_loss,
        num_moe_experts=options.num_experts,
        moe_router_load_balancing_type=balances,
        moe_aux_loss_coeff=options.moe_aux_loss_coeff,
    )
    schedule = SimpleNamespace(step=lambda increment: None, get_lr=lambda group: 1e-3)
    for step in range(STEPS):
        data = rollouts(step)
        batches = [len(data["micro_batch_indices"])]
        train(step, [model], optimizer, schedule, get_data_iterator(data), batches, [SAMPLES])


def parsed():
    """Read the command line, whose names are slime's and Megatron's."""
    parser = options_of("slime")
    parser.add_argument("--loss-type", default="policy_loss")
    parser.add_argument("--advantage-estimator", default="grpo")
    parser.add_argument("--calculate-per-token-loss", action="store_true")
    parser.add_argument("--use-kl-loss", action="store_true")
    parser.add_argument("--use-tis", action="store_true")
    parser.add_argument("--num-experts", type=int)
    parser.add_argument("--moe-aux-loss-coeff", type=float, default=0.0)
    parser.add_argument("--data-pad-size-multiplier", type=int, default=128)
    return parser.parse_args()


def settings(options):
    """The arguments that slime reads in a training step: those given, and its defaults."""
    numbers = {
        "rollout_top_p": 1.0, "entropy_coef": 0.01, "seq_length": LENGTH, "micro_batch_size": 1,
        "eps_clip": 0.2, "eps_clip_high": 0.28, "kl_loss_coef": 0.1, "kl_loss_type": "low_var_kl",
        "rollout_temperature": 1.0, "log_probs_chunk_size": -1, "qkv_format": "thd",
        "tis_clip": 2.0, "tis_clip_low": 0.0, "check_for_nan_in_loss_and_grad": True,
    }  # fmt: skip
    return argparse.Namespace(**{**dict.fromkeys(OFF), **numbers, **vars(options)})


def rollouts(step):
    """Samples of this data parallel rank, two in a microbatch, as slime's actor hands them over."""
    from slime.backends.megatron_utils.cp_utils import slice_log_prob_with_cp

    size = parallel_state.get_data_parallel_world_size()
    rank = parallel_state.get_data_parallel_rank()
    generator = torch.Generator().manual_seed(step)
    data = {}

    def add(**fields):
        for name, value in fields.items():
            data.setdefault(name, []).append(value)

    for index in range(SAMPLES):
        total = int(torch.randint(20, 90, (), generator=generator))
        answer = int(torch.randint(5, total - 8, (), generator=generator))
        tokens = torch.randint(0, VOCABULARY, (total,), generator=generator)
        mask = (torch.rand(answer, generator=generator) > 0.2).int()
        noise = torch.randn(4, answer, generator=generator) / 10
        if index % size != rank:
            continue
        old, other, sampled, advantages = (
            slice_log_prob_with_cp(row.cuda(), total, answer)
            for row in (noise[0] - 4.8, noise[1] - 4.8, noise[2] - 4.8, noise[3])
        )
        add(
            tokens=tokens.cuda(), total_lengths=total, response_lengths=answer,
            loss_masks=mask.cuda(), rollout_mask_sums=mask.sum().cuda(), log_probs=old,
            ref_log_probs=other, rollout_log_probs=sampled, advantages=advantages,
        )  # fmt: skip
    count = len(data["tokens"]) // 2
    return {**data, "micro_batch_indices": [[2 * i, 2 * i + 1] for i in range(count)]}


if __name__ == "__main__":
    main()
