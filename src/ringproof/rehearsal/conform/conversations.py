"""Conversations for ``--sft`` without the packages ``datasets`` and ``transformers``.

Megatron's own SFT dataset and tokenizer classes read them; only the file reader and the vocabulary
are stand-ins. A word of a conversation is a token id in decimal.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import json
import random
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

WORDS = 255
MULTIPLE = 16  # of every length, so that no CP size up to 8 adds padding of its own
PACKED_TOKENS = 128
ROWS = 400
TOKENIZER = "megatron.core.tokenizers.text.libraries.sft_tokenizer"


def write(path: Path) -> None:
    """Write a file of packed conversations, the same every time."""
    draw = random.Random(7)
    lines = []
    for _ in range(ROWS):
        left, messages = PACKED_TOKENS, []
        while left:
            length = min(left, MULTIPLE * draw.choice((1, 1, 2, 3, 4, 8)))
            text = " ".join(str(draw.randrange(2, WORDS - 1)) for _ in range(length))
            messages.append({"role": "system", "content": text})
            left -= length
        lines.append(json.dumps({"messages": messages}))
    path.write_text("\n".join(lines) + "\n")


class _Words:
    """A tokenizer of the interface that Megatron takes from ``transformers``."""

    pad_token_id = 0
    eos_token_id = WORDS - 1
    bos_token_id = None
    chat_template = ""

    def __len__(self) -> int:
        return WORDS

    def convert_tokens_to_ids(self, token: str) -> int:
        """Return the id of a special token."""
        return self.pad_token_id

    def apply_chat_template(
        self, conversation: Sequence[dict[str, str]], return_tensors: str = "", **_: object
    ) -> Any:
        """Return the tokens of all messages in order; an array is a batch of one."""
        tokens = [int(word) for turn in conversation for word in turn["content"].split()]
        return np.array([tokens]) if return_tensors == "np" else tokens

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str, **_: object) -> _Words:
        """Make one; the name does not matter."""
        return cls()


def install() -> None:
    """Let Megatron find a reader of JSON lines and a tokenizer; called in every rank."""
    datasets: Any = types.ModuleType("datasets")
    datasets.__spec__ = importlib.machinery.ModuleSpec("datasets", None)
    datasets.load_dataset = _load
    sys.modules["datasets"] = datasets
    transformers: Any = types.ModuleType("transformers")
    transformers.AutoTokenizer = _Words
    module: Any = importlib.import_module(TOKENIZER)
    module.transformers = transformers
    module.HAVE_TRANSFORMERS = True


def _load(_: str, *, data_files: str, split: str) -> list[Any]:
    return [json.loads(line) for line in Path(data_files).read_text().splitlines()]
