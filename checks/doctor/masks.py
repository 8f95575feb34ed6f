"""The mask that Megatron-LM's own data set makes for each sample; called in a rank."""

from __future__ import annotations

import torch


def bytes_of_mask(length: int) -> dict[str, int]:
    """Return the bytes of a sample's mask of attention, kept and left out."""
    from megatron.core.datasets.gpt_dataset import _get_ltor_masks_and_position_ids

    def held(*, kept: bool) -> int:
        tokens = torch.arange(length)
        mask = _get_ltor_masks_and_position_ids(tokens, 0, False, False, False, kept)[0]
        return 0 if mask is None else mask.numel() * mask.element_size()

    return {"kept": held(kept=True), "left out": held(kept=False)}
