"""SkyRL's own training step on made-up rollouts.

Runs ``MegatronModelWrapper.forward_backward_mini_batch`` as it is: its packing of sequences for CP,
its log-probabilities, its losses and its use of megatron-core's schedule. Model, rollouts and
settings are this program's. Try it without GPUs, with a checkout of NovaSky-AI/SkyRL::

    ringproof rehearse -- torchrun --nproc-per-node 2 \
        benchmarks/rehearsal/skyrl_actor.py --skyrl ../SkyRL --cp 2
"""

import sys

import torch
from actors import SAMPLES, STEPS, VOCABULARY, built, options_of, start
from megatron.core import parallel_state

DOUBLES = (
    "ray", "loguru", "jaxtyping", "skyrl.backends.backend", "skyrl_gym", "skyrl_gym.envs",
    "skyrl_gym.envs.search", "skyrl_gym.envs.search.env", "skyrl_gym.envs.sql",
    "skyrl_gym.envs.sql.env",
)  # fmt: skip
"""Packages that SkyRL imports, and that a training step does not call."""
PROMPT, ANSWER = 40, 56


def main():
    """Train as the command line says, until the program is ended or after 100 steps."""
    options = parsed()
    start(options, [options.skyrl], DOUBLES)
    sys.modules["ray"].is_initialized.return_value = False
    from skyrl.backends.skyrl_train.utils.ppo_utils import PolicyLossRegistry
    from skyrl.backends.skyrl_train.workers.megatron.megatron_model_wrapper import (
        MegatronModelWrapper,
    )

    settings = settings_of(options)
    model, optimizer = built(options, PROMPT + ANSWER)
    loss = PolicyLossRegistry.get(settings.algorithm.policy_loss_type)
    wrapper = MegatronModelWrapper(settings, [model], optimizer, policy_loss_fn=loss)
    for step in range(STEPS):
        model.zero_grad_buffer()
        wrapper.train()
        batches = rollouts(step, options.microbatch)
        wrapper.forward_backward_mini_batch(batches, PROMPT + ANSWER, options.microbatch)
        if hasattr(wrapper, "run_pending_grad_sync"):  # since #2008 its worker sums the gradients
            wrapper.run_pending_grad_sync()
        optimizer.step()


def parsed():
    """Read the command line, whose names are Megatron's and SkyRL's."""
    parser = options_of("skyrl")
    parser.add_argument("--microbatch", type=int, default=2, help="samples in a microbatch")
    parser.add_argument("--use-kl-loss", action="store_true")
    parser.add_argument("--use-entropy-loss", action="store_true")
    parser.add_argument("--policy-loss-type", default="regular")
    return parser.parse_args()


def settings_of(options):
    """SkyRL's settings of a trainer: its defaults, packing, and what the command line gives."""
    from skyrl.train.config import TrainerConfig

    settings = TrainerConfig()
    for name in ("use_sample_packing", "remove_microbatch_padding"):  # an old and a new name
        if hasattr(settings, name):
            setattr(settings, name, True)
    algorithm = settings.algorithm
    algorithm.use_kl_loss = options.use_kl_loss
    algorithm.kl_loss_coef = 0.1
    algorithm.use_entropy_loss = options.use_entropy_loss
    algorithm.entropy_loss_coef = 0.01
    algorithm.policy_loss_type = options.policy_loss_type
    return settings


def rollouts(step, size):
    """Microbatches of this data parallel rank, as SkyRL's worker hands them over.

    Prompts are padded on the left and answers on the right, as in SkyRL.
    """
    ranks = parallel_state.get_data_parallel_world_size()
    rank = parallel_state.get_data_parallel_rank()
    generator = torch.Generator().manual_seed(step)
    sequences = torch.randint(0, VOCABULARY, (SAMPLES, PROMPT + ANSWER), generator=generator)
    place = torch.arange(PROMPT + ANSWER)
    first = torch.randint(0, PROMPT - 8, (SAMPLES, 1), generator=generator)
    last = torch.randint(PROMPT + 8, PROMPT + ANSWER, (SAMPLES, 1), generator=generator)
    mask = ((place >= first) & (place <= last)).long()
    noise = torch.randn(3, SAMPLES, ANSWER, generator=generator) / 10
    answers = mask[:, -ANSWER:]
    fields = {
        "sequences": sequences * mask, "attention_mask": mask,
        "position_ids": (mask.cumsum(1) - 1).clamp(min=0), "loss_mask": answers,
        "old_action_log_probs": noise[0] - 4.8, "base_action_log_probs": noise[1] - 4.8,
        "advantages": noise[2] / answers.sum(), "rollout_action_logprobs": None,
        "rollout_expert_indices": None,
        "response_mask": answers, "action_mask": answers,
    }  # fmt: skip
    own = torch.arange(SAMPLES)[rank::ranks].split(size)
    numbers = {"num_actions": ANSWER, "num_microbatches": len(own)}
    return [
        {**{name: one if one is None else one[rows].cuda() for name, one in fields.items()},
         **numbers}
        for rows in own
    ]  # fmt: skip


if __name__ == "__main__":
    main()
