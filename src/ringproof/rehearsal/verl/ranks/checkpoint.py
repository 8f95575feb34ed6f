"""A tiny model of a family as a checkpoint of Hugging Face, with a tokenizer; one rank makes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

SEED = 7
SPECIAL = ("<unk>", "<pad>", "<eos>")
TEMPLATE = (
    "{% for one in messages %}{{ ' ' }}{% if one.role == 'assistant' %}"
    "{% generation %}{{ one.content + ' <eos>' }}{% endgeneration %}"
    "{% else %}{{ one.content }}{% endif %}{% endfor %}"
)
"""Chat template that marks the tokens of answers, which data sets of conversations ask for."""


def make(request: dict[str, Any]) -> dict[str, Any]:
    """Write a model of the configuration ``request["config"]`` to the folder ``request["to"]``.

    Every run of a rehearsal loads it, so that all start from the same weights.

    Returns:
        Either nothing, or ``problem``: why verl or transformers refuse what the launch names.
    """
    for check, name in request["known"]:
        problem = _unknown(check, name)
        if problem:
            return {"problem": problem}
    torch.manual_seed(SEED)
    folder = Path(request["to"])
    try:
        config = AutoConfig.for_model(**request["config"])
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    except (ValueError, KeyError) as error:
        return {"problem": f"transformers has no causal language model of it: {error}"}
    model.save_pretrained(folder)
    save_tokenizer(folder, config.vocab_size)
    return {}


def save_tokenizer(folder: Path, size: int) -> None:
    """Write a tokenizer whose words are ``t0``, ``t1`` and so on, ``size`` in all."""
    words = {f"t{index}": index for index in range(size - len(SPECIAL))}
    words.update({name: len(words) + index for index, name in enumerate(SPECIAL)})
    unknown, pad, end = SPECIAL
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=unknown,
        pad_token=pad,
        eos_token=end,
        bos_token=end,
        chat_template=TEMPLATE,
    ).save_pretrained(folder)


def _unknown(check: str, name: str) -> str:
    """Return what verl says about an algorithm that it does not know; empty for one it knows."""
    from verl.trainer.ppo import core_algos

    look_up = {
        "algorithm.adv_estimator": core_algos.get_adv_estimator_fn,
        "actor_rollout_ref.actor.policy_loss.loss_mode": core_algos.get_policy_loss_fn,
    }[check]
    try:
        look_up(name)
    except (ValueError, KeyError) as error:
        return f"{check}: {error}"
    return ""
