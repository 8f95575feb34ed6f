"""One rank of a model of PPO or GRPO: verl's own `TrainingWorker` on made-up rollouts.

The command line is the number of steps, the dtype, the role (one of `ROLES`), the name of the
configuration and overrides. What `ActorRolloutRefWorker.init_model` and the trainer do between the
configuration and the worker is done here, because both need ray and an inference engine.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import verl.trainer.sft_trainer
from hydra import compose, initialize_config_dir
from verl.utils import tensordict_utils
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.dataset.dataset_utils import DatasetPadMode
from verl.workers.engine_workers import TrainingWorker, TrainingWorkerConfig
from verl.workers.utils.losses import ppo_loss, value_loss
from verl.workers.utils.padding import no_padding_2_padding

from ringproof.rehearsal.rank.probe import log_step, stepped
from ringproof.rehearsal.verl.ranks import hooks, samples

CONFIG = Path(verl.trainer.sft_trainer.__file__).parent / "config"
ACTOR, CRITIC, REFERENCE = ROLES = ("actor", "critic", "reference")


@dataclass(frozen=True)
class _Model:
    """A model with its worker.

    Attributes:
        settings: Those of verl that say how it trains.
        entropy: Whether its loss needs the entropy.
    """

    settings: Any
    worker: TrainingWorker
    remove_padding: bool
    entropy: bool = False


def main(words: Sequence[str]) -> None:
    """Train, or compute the log-probabilities of the reference model."""
    steps, dtype, role, name, *overrides = words
    metrics = hooks.prepare_engine(dtype)
    with initialize_config_dir(config_dir=str(CONFIG), version_base=None):
        config = compose(config_name=name, overrides=overrides)
    model = _critic(config) if role == CRITIC else _policy(config, role)
    for step in range(int(steps)):
        batch = _batch(step, model)
        if role == REFERENCE:
            output = model.worker.infer_batch(batch)
            stepped()  # ranks without an output log nothing
            _note_log_probabilities(output, batch)
        else:
            _note(model.worker.train_mini_batch(batch), metrics)


def _policy(config: Any, role: str) -> _Model:
    """Return the actor or the reference model, with its weights loaded."""
    both = config.actor_rollout_ref
    actor = omega_conf_to_dataclass(both.actor)
    actor.model_config = omega_conf_to_dataclass(both.model)
    engine = actor.engine
    if role == REFERENCE:
        # Its own settings lack those of training, which the worker moves there from the actor.
        engine = omega_conf_to_dataclass(both.ref.megatron)
    engine.use_dynamic_bsz = both.actor.use_dynamic_bsz
    engine.infer_max_token_len_per_gpu = both.actor.ppo_max_token_len_per_gpu
    engine.infer_micro_batch_size_per_gpu = both.actor.ppo_micro_batch_size_per_gpu
    engine.max_token_len_per_gpu = both.actor.ppo_max_token_len_per_gpu
    engine.micro_batch_size_per_gpu = both.actor.ppo_micro_batch_size_per_gpu
    worker = _worker("language_model", actor.model_config, engine, actor)
    if role == ACTOR:
        worker.set_loss_fn(functools.partial(ppo_loss, config=actor))
    padding = actor.model_config.use_remove_padding
    return _Model(actor, worker, padding, role == ACTOR and actor.entropy_coeff != 0)


def _critic(config: Any) -> _Model:
    """Return the value model."""
    critic = omega_conf_to_dataclass(config.critic)
    engine = critic.engine
    engine.use_dynamic_bsz = critic.use_dynamic_bsz
    engine.infer_max_token_len_per_gpu = critic.ppo_max_token_len_per_gpu
    engine.max_token_len_per_gpu = critic.ppo_max_token_len_per_gpu
    engine.micro_batch_size_per_gpu = critic.ppo_micro_batch_size_per_gpu
    worker = _worker("value_model", critic.model, engine, critic)
    worker.set_loss_fn(functools.partial(value_loss, config=critic))
    return _Model(critic, worker, critic.model.use_remove_padding)


def _worker(kind: str, model: Any, engine: Any, settings: Any) -> TrainingWorker:
    worker = TrainingWorker(
        config=TrainingWorkerConfig(
            model_type=kind,
            model_config=model,
            engine_config=engine,
            optimizer_config=settings.optim,
            checkpoint_config=settings.checkpoint,
        )
    )
    worker.reset()
    return worker


def _batch(step: int, model: _Model) -> Any:
    """Return one batch of rollouts, with what the trainer says about it."""
    engine = model.worker.engine
    place = engine.get_data_parallel_rank(), engine.get_data_parallel_size()
    said = {
        "use_remove_padding": model.remove_padding,
        "global_batch_size": len(samples.LENGTHS),
        "pad_mode": DatasetPadMode.NO_PADDING,
        "calculate_entropy": model.entropy,
        "compute_loss": model.worker.loss_fn is not None,
        "mini_batch_size": model.settings.ppo_mini_batch_size,
        "epochs": model.settings.ppo_epochs,
        "seed": 42,
        "dataloader_kwargs": {"shuffle": False},
    }
    return tensordict_utils.get_tensordict(samples.rollouts(step, *place), non_tensor_dict=said)


def _note(output: Any, metrics: list[Mapping[str, float]]) -> None:
    """Report the steps of one call: one for each time that the batch was used."""
    if output is None:
        return
    logged = tensordict_utils.get(output, "metrics")
    losses = _listed(logged["loss"])
    for index in range(len(losses)):
        step = {name: _listed(value) for name, value in logged.items()}
        of_step = {n: float(v[index]) for n, v in step.items() if len(v) == len(losses)}
        hooks.note_step(of_step, metrics)


def _note_log_probabilities(output: Any, batch: Any) -> None:
    """Report the mean of the log-probabilities of all responses, and that of their squares."""
    if output is None:
        return
    # The last position of a sequence has no next token, and what is there depends on padding.
    values = no_padding_2_padding(output["log_probs"], batch).double()
    values = values[batch["response_mask"].to_padded_tensor(0).bool()]
    means = {"log-probability": float(values.mean()), "square": float(values.square().mean())}
    log_step(means, None)


def _listed(value: Any) -> list[Any]:
    values = list(value) if isinstance(value, list | tuple) else [value]
    return values if all(isinstance(one, int | float) for one in values) else []


if __name__ == "__main__":
    main(sys.argv[1:])
