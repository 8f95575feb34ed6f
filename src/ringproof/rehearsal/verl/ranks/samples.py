"""Sequences that every layout of ranks draws alike: conversations for SFT, rollouts for PPO."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import Dataset

LENGTHS = (13, 40, 7, 25, 96, 18, 33, 52)  # odd ones among them, so that CP has to pad
VOCABULARY = 120  # below the tokens for padding and for the end of a text
SEED = 1234
MOST_STEPS = 1000
TOOL_TOKENS = slice(3, 5)  # of a response: the output of a tool, which is not trained on


class MadeUpConversations(Dataset):
    """Token lists in the form of verl's data sets for SFT; the first third is not trained on."""

    def __init__(self, parquet_files: object = None, config: Any = None, **_: object) -> None:
        generator = torch.Generator().manual_seed(SEED)
        steps = int(config.get("rehearsed_steps", 1)) if config is not None else 1
        self._rows = [
            _conversation(length, generator)
            for _ in range(min(steps, MOST_STEPS))
            for length in LENGTHS
        ]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return self._rows[index]


def _conversation(length: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    mask = torch.ones(length, dtype=torch.int64)
    mask[: _prompt(length)] = 0
    return {
        "input_ids": torch.randint(0, VOCABULARY, (length,), generator=generator),
        "position_ids": torch.arange(length),
        "loss_mask": mask,
    }


def rollouts(step: int, rank: int, ranks: int) -> dict[str, Any]:
    """Return the rollouts of one data parallel rank in one step, as jagged tensors.

    Args:
        step: From 0; each step has other tokens.
        rank: Data parallel rank, which gets every ``ranks``-th sequence.
    """
    generator = torch.Generator().manual_seed(SEED + step)
    rows = [_rollout(length, generator) for length in LENGTHS][rank::ranks]
    names = rows[0].keys()
    found: dict[str, Any] = {name: _jagged([row[name] for row in rows]) for name in names}
    found["temperature"] = torch.ones(len(rows))
    return found


def _rollout(length: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Return a prompt and a response, whose old policy is near a uniform one."""
    tokens = torch.randint(0, VOCABULARY, (length,), generator=generator)
    start = _prompt(length)
    size = length - start
    mask = torch.ones(size, dtype=torch.int64)
    if size > 2 * TOOL_TOKENS.stop:
        mask[TOOL_TOKENS] = 0
    old = -torch.tensor(float(VOCABULARY)).log() + 0.1 * torch.randn(size, generator=generator)
    # Around 1, because the terms of a loss that nearly cancel have larger relative roundings.
    advantages = 1 + torch.randn(size, generator=generator)
    return {
        "input_ids": tokens,
        "position_ids": torch.arange(length),
        "prompts": tokens[:start],
        "responses": tokens[start:],
        "response_mask": mask,
        "loss_mask": mask.clone(),
        "advantages": advantages,
        "values": 0.5 * advantages,
        "returns": advantages.flip(0),
        "old_log_probs": old,
        "ref_log_prob": old + 0.05 * torch.randn(size, generator=generator),
    }


def _prompt(length: int) -> int:
    """Return how many tokens of a sequence are the prompt."""
    return max(1, length // 3)


def _jagged(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)
