"""verl's own checks of a configuration, which one rank of its launch runs before a model is made.

They are those of verl's programs, and of the engine that they start on Megatron.
"""

from __future__ import annotations

import types
from typing import Any

from ringproof.launch.overrides import SFT
from ringproof.rehearsal.rank import doubles


def judged(asked: dict[str, Any]) -> None:
    """Compose a configuration and check it.

    Args:
        asked: ``folder`` of verl's configurations, ``name`` of one, ``overrides`` and ``module``.

    Raises:
        Exception: What verl or Megatron-LM raise.
    """
    doubles.install(doubles.OF_VERL)
    from hydra import compose, initialize_config_dir
    from hydra.errors import InstantiationException
    from verl.workers.config import HFModelConfig

    HFModelConfig.__post_init__ = _without_files
    with initialize_config_dir(config_dir=asked["folder"], version_base=None):
        config = compose(config_name=asked["name"], overrides=asked["overrides"])
    try:
        (_judge_sft if asked["module"] == SFT else _judge_ppo)(config)
    except InstantiationException as error:  # hydra wraps what a configuration class raises
        raise (error.__cause__ or error) from None


def _without_files(model: Any) -> None:
    """Leave a model's configuration and tokenizer out, which are in files."""
    model.hf_config = types.SimpleNamespace()


def _judge_sft(config: Any) -> None:
    from verl.utils.config import omega_conf_to_dataclass

    parts = ("model", "engine", "optim", "checkpoint", "profiler")
    model, engine, *_ = (omega_conf_to_dataclass(config[name]) for name in parts)
    _start(model, engine, "language_model")


def _judge_ppo(config: Any) -> None:
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    critic, reference = need_critic(config), need_reference_policy(config)
    validate_config(config=config, use_reference_policy=reference, use_critic=critic)
    both = config.actor_rollout_ref
    model, actor = omega_conf_to_dataclass(both.model), omega_conf_to_dataclass(both.actor)
    if reference and actor.strategy == "megatron":
        _start(model, omega_conf_to_dataclass(both.ref.megatron), "language_model")
    _start(model, actor.engine, "language_model")
    if critic:
        value = omega_conf_to_dataclass(config.critic)
        _start(value.model, value.engine, "value_model")


def _start(model: Any, engine: Any, kind: str) -> None:
    """Start the engine of one model, up to its groups of ranks, as `TrainingWorker` does."""
    if engine.strategy != "megatron":
        return
    from verl.workers.engine.megatron.transformer_impl import MegatronEngine

    engine.use_remove_padding = model.use_remove_padding
    model.model_type = kind
    MegatronEngine(model, engine, None, None)
