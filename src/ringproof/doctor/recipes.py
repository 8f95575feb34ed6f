"""Which fine-tuning recipes of Megatron-Bridge set the loss per token themselves.

Read in Bridge 0.3.1, 0.4.2, 0.5.1 and 0.6.2: 366 recipes, by the functions that assign
``calculate_per_token_loss`` and those that call them.
"""

from __future__ import annotations

import re

from ringproof.doctor.settings import Settings

PACK = ("packed_sequence_specs.packed_sequence_size", "offline_packing_specs.packed_sequence_size")
_DATA = (*PACK, "dataset_kwargs.chat", "dataset.dataset_root", "dataset.dataset_name")
_SETTING = re.compile(
    r"nemotron_3_(nano|super)_(sft|peft)_(\d+gpu_h100_bf16_(32k_)?)?config"
    r"|nemotron_3_nano_4b_sft_8gpu_h100_bf16_32k_config"
    r"|nemotron_3_ultra_(sft|peft)_(\d+gpu_h100_bf16_)?openmathinstruct2_packed_config"
    r"|nemotron_3_5_lightning_(peft|sft|sft_openmathinstruct2_packed(_tp1)?)_config"
    r"|glm52_(sft|peft)_\d+gpu_g?[bh]\d+_bf16_((128|200)k_)?config"
    r"|moonlight_16b_sft_8gpu_h100_bf16_8k_config|qwen3_8b_sft_8gpu_h100_bf16_32k_config"
    r"|qwen3_600m_sft_(8gpu_h100_bf16_)?(yarn_)?128k_config"
)
_FAMILIES = (
    r"(qwen(2|25|3|35)|gemma[234]|gpt_oss|ministral3|llama3[12]?|glm45|moonlight|deepseek|olmoe"
    r"|nemotronh|kimi)"
)
_SIZED = r"(\d+gpu_\w+_(bf16|fp8mx|fp8cs)_)?config"
_OTHER = re.compile(rf"(?!qwen35?_vl){_FAMILIES}_\w*(sft|peft)_{_SIZED}")


def sets_loss(recipe: str) -> bool | None:
    """Return whether a recipe sets the loss per token; ``None`` if it was not read.

    The models of Qwen3-VL and 3.5-VL set it as well in some cases, and are left open.

    Args:
        recipe: Its name, with or without its module; empty for none, which sets nothing.
    """
    name = recipe.rpartition(".")[2]
    if not name:
        return False
    if _SETTING.fullmatch(name):
        return True
    return False if _OTHER.fullmatch(name) else None


def finetunes(settings: Settings) -> bool:
    """Whether a configuration of Bridge names a fine-tuning dataset or recipe."""
    recipe = re.search(r"_(sft|peft|finetune)_", settings.entry("recipe"))
    return settings.program == "bridge" and (recipe is not None or any(map(settings.entry, _DATA)))


def unread(settings: Settings) -> tuple[str, ...]:
    """Return a note where fine-tuning with CP rests on a recipe that was not read."""
    recipe = settings.entry("recipe")
    ring = settings.text("context_parallel_size", "1") != "1"
    if not (ring and finetunes(settings) and sets_loss(recipe) is None):
        return ()
    name = "calculate_per_token_loss"
    needed = "which fine-tuning with CP needs, is not known"
    return () if settings.given(name) else (f"whether {recipe} sets {name}, {needed}",)
