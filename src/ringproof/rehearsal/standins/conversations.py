"""Conversations of known lengths for ``--sft --mock-data`` where upstream has no mock of its own.

Megatron-LM's dev branch draws them itself. The releases and main read files only, and with
``--mock-data`` their data set cannot be built; there, upstream's own SFT data set packs, truncates
and pads conversations of these lengths.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any

import torch

MODULE = "megatron.training.datasets.sft_dataset"
PACK = 256
LENGTHS = ((47, 31, 63, 95, 15), (111, 15, 79, 47), (31, 47, 127, 47), (63, 63, 63, 63))
"""Tokens of the conversations of each pack of `PACK` tokens.

Padded to a multiple of 4, 8 or 16, as CP asks for, they fill the pack: upstream hands what is left
to the last conversation, and 0.16.1 fails on a pack that has to be truncated.
"""


class Packs:
    """In the place of the low-level data set that reads a file."""

    def __init__(self, path: object) -> None:
        pass

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> list[dict[str, Any]]:
        lengths = LENGTHS[index % len(LENGTHS)]
        return [{"role": "system", "content": f"{index} {length}"} for length in lengths]


class Talker:
    """A tokenizer that makes a conversation of as many tokens as it says."""

    pad = 0

    def __init__(self, tokenizer: Any, pack_length: int) -> None:
        self._tokenizer, self._pack_length = tokenizer, pack_length

    def tokenize_conversation(self, conversation: Sequence[Any], **_: Any) -> tuple[Any, Any]:
        """Return tokens and targets [t]."""
        seed, given = map(int, conversation[0]["content"].split())
        length = max(given * self._pack_length // PACK, 1)
        generator = torch.Generator().manual_seed(1000 * seed + length)
        tokens = torch.randint(1, 250, (length,), generator=generator).numpy()
        return tokens, tokens.copy()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def install(arguments: Sequence[str]) -> None:
    """Let upstream's SFT data set read `Packs` through a `Talker`, where it needs them.

    Args:
        arguments: Command line of the program.
    """
    if not {"--sft", "--mock-data"} <= set(arguments) or importlib.util.find_spec(MODULE) is None:
        return
    module: Any = importlib.import_module(MODULE)
    if hasattr(module, "MockSFTDataset"):
        return
    module.SFTLowLevelDataset = Packs
    pack = module.SFTDataset.__getitem__

    @functools.wraps(pack)
    def read(self: Any, index: int) -> Any:
        if not isinstance(self.config.tokenizer, Talker):
            self.config.tokenizer = Talker(self.config.tokenizer, self.config.sequence_length)
        return pack(self, index)

    module.SFTDataset.__getitem__ = read
