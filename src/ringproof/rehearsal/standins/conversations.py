"""Conversations for ``--sft`` where upstream's own data set cannot read or draw them.

With ``--mock-data`` Megatron-LM's dev branch draws them itself. The releases and main read files
only, and their data set cannot be built; there, `install` lets upstream's own SFT data set pack,
truncate and pad conversations of known lengths.

With a file (`write`) Megatron's own SFT data set and tokenizer classes read it. They need the
packages ``datasets`` and ``transformers``, of which `install_readers` has what they call. A word of
such a conversation is a token id in decimal.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import random
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ringproof.launch.flags import Flags
from ringproof.rehearsal.standins.guard import provide

MODULE = "megatron.training.datasets.sft_dataset"
PACK = 256  # tokens, where the command line names no sequence length
UNIT = 16
"""Tokens of which each conversation has a multiple, so that upstream pads it for no CP up to 8."""
SHARES = ((3, 2, 4, 6, 1), (7, 1, 5, 3), (2, 3, 8, 3), (4, 4, 4, 4))
"""Lengths of the conversations of each pack, in sixteenths of it."""


def lengths_of(pack: int, length: int) -> list[int]:
    """Return the lengths of the conversations of a pack, which never depend on the layout of ranks.

    Together they fill the pack, but for less than a `UNIT`: upstream hands what is left to the last
    conversation, and 0.16.1 fails on a pack that has to be truncated.

    Args:
        pack: Number of the pack.
        length: Tokens of a pack.
    """
    left, found = length // UNIT, []
    for share in SHARES[pack % len(SHARES)]:
        size = min(max(share * (length // UNIT) // 16, 1), left)
        found += [UNIT * size] if size else []
        left -= size
    if found and left:
        found[-1] += UNIT * left
    return found or [length]


class Packs:
    """In the place of the low-level data set that reads a file.

    Args:
        length: Tokens of a pack.
    """

    def __init__(self, length: int, path: object) -> None:
        self._length = length

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> list[dict[str, Any]]:
        lengths = enumerate(lengths_of(index, self._length))
        return [
            {"role": "system", "content": f"{1000 * index + number} {length}"}
            for number, length in lengths
        ]


class ConversationTokenizer:
    """A tokenizer that makes a conversation of the seed and the length that its text names.

    The last token is the end of the document, which 0.16.1 adds where it is not there.
    """

    pad = 0

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def tokenize_conversation(self, conversation: Sequence[Any], **_: Any) -> tuple[Any, Any]:
        """Return tokens and targets [t]."""
        seed, length = map(int, conversation[0]["content"].split())
        draw = random.Random(seed)
        tokens = np.array([draw.randrange(1, 250) for _ in range(length)])
        tokens[-1] = self._tokenizer.eod
        return tokens, tokens.copy()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def install(arguments: Sequence[str]) -> None:
    """Let upstream's SFT data set read `Packs` where it needs them.

    Args:
        arguments: Command line of the program.
    """
    if not {"--sft", "--mock-data"} <= set(arguments) or importlib.util.find_spec(MODULE) is None:
        return
    module: Any = importlib.import_module(MODULE)
    if hasattr(module, "MockSFTDataset"):
        return
    length = Flags(tuple(arguments)).integer("--seq-length", PACK)
    module.SFTLowLevelDataset = functools.partial(Packs, length)
    pack = module.SFTDataset.__getitem__

    @functools.wraps(pack)
    def read(self: Any, index: int) -> Any:
        if not isinstance(self.config.tokenizer, ConversationTokenizer):
            self.config.tokenizer = ConversationTokenizer(self.config.tokenizer)
        return pack(self, index)

    module.SFTDataset.__getitem__ = read


WORDS = 255
MULTIPLE = 16  # of every length, so that no CP size up to 8 adds padding of its own
PACKED_TOKENS = 128
ROWS = 400
TOKENIZER = "megatron.core.tokenizers.text.libraries.sft_tokenizer"


def write(path: Path) -> None:
    """Write a file of packed conversations, the same every time."""
    # The reference run and every rank read the same file, so that it has to be the same every time.
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


def install_readers() -> None:
    """Let Megatron find a reader of JSON lines and a tokenizer; called in every rank."""
    provide("datasets", load_dataset=_load)
    module: Any = importlib.import_module(TOKENIZER)
    # Not among the imported packages, where other parts of upstream would find and use it.
    module.transformers = types.SimpleNamespace(AutoTokenizer=_Words)
    module.HAVE_TRANSFORMERS = True


def _load(_: str, *, data_files: str, split: str) -> list[Any]:
    return [json.loads(line) for line in Path(data_files).read_text().splitlines()]
