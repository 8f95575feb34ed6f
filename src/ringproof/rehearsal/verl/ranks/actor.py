"""One rank of the actor of PPO or GRPO: verl's own `TrainingWorker` on made-up rollouts.

The command line is the number of steps, the dtype, the name of the configuration and overrides.
What `ActorRolloutRefWorker.init_model` and the trainer do between the configuration and the worker
is done here, because both need ray and an inference engine.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import verl.trainer.sft_trainer
from hydra import compose, initialize_config_dir
from verl.utils import tensordict_utils
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.dataset.dataset_utils import DatasetPadMode
from verl.workers.engine_workers import TrainingWorker, TrainingWorkerConfig
from verl.workers.utils.losses import ppo_loss

from ringproof.rehearsal.verl.ranks import hooks, samples

CONFIG = Path(verl.trainer.sft_trainer.__file__).parent / "config"


def main(words: Sequence[str]) -> None:
    """Train."""
    steps, dtype, name, *overrides = words
    metrics = hooks.prepare_engine(dtype)
    with initialize_config_dir(config_dir=str(CONFIG), version_base=None):
        config = compose(config_name=name, overrides=overrides)
    actor, worker = _worker(config)
    for step in range(int(steps)):
        _note(worker.train_mini_batch(_batch(step, worker, actor)), metrics)


def _worker(config: Any) -> tuple[Any, TrainingWorker]:
    """Return the actor's configuration and its worker, with its model loaded."""
    both = config.actor_rollout_ref
    actor = omega_conf_to_dataclass(both.actor)
    actor.model_config = omega_conf_to_dataclass(both.model)
    engine = actor.engine
    engine.use_dynamic_bsz = both.actor.use_dynamic_bsz
    engine.infer_max_token_len_per_gpu = both.actor.ppo_max_token_len_per_gpu
    engine.max_token_len_per_gpu = both.actor.ppo_max_token_len_per_gpu
    engine.micro_batch_size_per_gpu = both.actor.ppo_micro_batch_size_per_gpu
    worker = TrainingWorker(
        config=TrainingWorkerConfig(
            model_type="language_model",
            model_config=actor.model_config,
            engine_config=engine,
            optimizer_config=actor.optim,
            checkpoint_config=actor.checkpoint,
        )
    )
    worker.reset()
    worker.set_loss_fn(functools.partial(ppo_loss, config=actor))
    return actor, worker


def _batch(step: int, worker: TrainingWorker, actor: Any) -> Any:
    """Return one batch of rollouts, with what the trainer says about it."""
    place = worker.engine.get_data_parallel_rank(), worker.engine.get_data_parallel_size()
    said = {
        "use_remove_padding": actor.model_config.use_remove_padding,
        "global_batch_size": len(samples.LENGTHS),
        "pad_mode": DatasetPadMode.NO_PADDING,
        "calculate_entropy": actor.entropy_coeff != 0,
        "mini_batch_size": actor.ppo_mini_batch_size,
        "epochs": actor.ppo_epochs,
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


def _listed(value: Any) -> list[Any]:
    values = list(value) if isinstance(value, list | tuple) else [value]
    return values if all(isinstance(one, int | float) for one in values) else []


if __name__ == "__main__":
    main(sys.argv[1:])
