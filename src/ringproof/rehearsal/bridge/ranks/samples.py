"""Made-up conversations as files for Bridge's own data sets for fine-tuning, with a tokenizer."""

from __future__ import annotations

import json
import random
from pathlib import Path

from ringproof.rehearsal.verl.ranks.checkpoint import save_tokenizer
from ringproof.rehearsal.verl.ranks.samples import LENGTHS, SEED

ROWS = 64 * len(LENGTHS)
WORDS = 120  # below the marks of the tokenizer


def write(folder: Path, vocabulary: int, columns: tuple[str, ...]) -> None:
    """Write ``training.jsonl`` and a tokenizer of ``vocabulary`` words to a new folder.

    Args:
        columns: Names of the only two columns, the questions and the answers; where it is empty,
            rows have conversations too.
    """
    save_tokenizer(folder, vocabulary)
    generator = random.Random(SEED)
    rows = [_row(LENGTHS[index % len(LENGTHS)], generator, columns) for index in range(ROWS)]
    (folder / "training.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")


def _row(length: int, generator: random.Random, columns: tuple[str, ...]) -> dict[str, object]:
    words = [f"t{generator.randrange(WORDS)}" for _ in range(length)]
    prompt = max(1, length // 3)
    asked, answer = " ".join(words[:prompt]), " ".join(words[prompt:])
    if columns:
        return dict(zip(columns, (asked, answer), strict=True))
    roles = ("user", "assistant")
    turns = [{"role": r, "content": c} for r, c in zip(roles, (asked, answer), strict=True)]
    return {"input": asked, "output": answer, "messages": turns}
