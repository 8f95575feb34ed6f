"""A one-layer language model in float64: small, but with all that CP touches.

Rotary positions (which must be the global ones), grouped-query attention, a loss that is a sum
over tokens divided by the global count, and gradients summed over the CP group.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

VOCABULARY, WIDTH, HEADS, KV_HEADS, HEAD_DIM = 32, 32, 4, 2, 8

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def rotate(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of ``x [B, S, H, D]`` at global ``positions [S]`` (arXiv 2104.09864)."""
    half = x.shape[-1] // 2
    frequencies = 1e4 ** (-torch.arange(half, dtype=x.dtype, device=x.device) / half)
    angles = (positions.to(x.dtype)[:, None] * frequencies)[:, None]
    first, second = x.split(half, dim=-1)
    return torch.cat(
        [
            first * angles.cos() - second * angles.sin(),
            second * angles.cos() + first * angles.sin(),
        ],
        dim=-1,
    )


class TinyModel(nn.Module):
    """Token ids to the summed next-token loss of the local rows.

    Args:
        attend: ``(q, k, v) -> out``, the one thing that differs between CP and a single rank.
    """

    def __init__(self, attend: Attend) -> None:
        super().__init__()
        self.attend = attend
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.norm, self.final_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.query = nn.Linear(WIDTH, HEADS * HEAD_DIM, bias=False)
        self.key_value = nn.Linear(WIDTH, 2 * KV_HEADS * HEAD_DIM, bias=False)
        self.mix = nn.Linear(HEADS * HEAD_DIM, WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(
        self, tokens: torch.Tensor, labels: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        """Sum of the cross entropies of ``tokens [B, S]`` against ``labels [B, S]``."""
        hidden = self.embedding(tokens)
        normed = self.norm(hidden)
        q = rotate(self.query(normed).unflatten(-1, (HEADS, HEAD_DIM)), positions)
        k, v = self.key_value(normed).unflatten(-1, (2, KV_HEADS, HEAD_DIM)).unbind(2)
        mixed = self.attend(q, rotate(k, positions), v).flatten(-2)
        logits = self.head(self.final_norm(hidden + self.mix(mixed)))
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")


def corpus(batch: int, seq_len: int, seed: int) -> torch.Tensor:
    """One batch of tokens ``[batch, seq_len + 1]`` with a period of sixteen.

    Each token says what comes next, most of the time: enough to be learnt in a few steps.
    """
    generator = torch.Generator().manual_seed(seed)
    period = torch.randint(VOCABULARY, (batch, 16), generator=generator)
    return period.repeat(1, seq_len // 16 + 1)[:, : seq_len + 1]
