"""What a checkpoint says of itself is read, or refused in one line, and no code from it is run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from ringproof.errors import InputError
from ringproof.reference.training import checkpoint
from ringproof.reference.training.assembly import assembly
from smoke.model_batches import group_of_one
from smoke.training_matrix import ONE_RANK, options_of


class Planted:
    """An object whose pickle makes a folder when it is loaded."""

    def __init__(self, place: Path) -> None:
        self.place = str(place)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.place,)


@pytest.mark.parametrize("damage", ["", "code", "cut", "empty", "no pickle", "other tensors"])
def test_a_file_is_loaded_or_refused_and_no_code_is_run(tmp_path: Path, damage: str) -> None:
    """Read by torch without ``weights_only``, the same file runs its code."""
    kept, made = tmp_path / "kept", tmp_path / "made"
    with group_of_one(), assembly(options_of("qwen3-tiny", ONE_RANK), torch.device("cpu")) as parts:
        file = checkpoint.save(kept, parts, 1) / "tp0-pp0.pt"
        content = file.read_bytes()
        if damage == "code":
            torch.save({"a": Planted(made)}, file)
        elif damage == "other tensors":
            torch.save({"a": torch.ones(1)}, file)
        elif damage:
            file.write_bytes({"cut": content[:1000], "empty": b"", "no pickle": b"no"}[damage])
        if not damage:
            assert checkpoint.load(kept, parts) == 1
            return
        with pytest.raises(InputError, match=r"^resume: .*tp0-pp0.pt' is damaged, or holds more"):
            checkpoint.load(kept, parts)
    assert not made.exists()
    if damage == "code":
        torch.load(file, weights_only=False)
        assert made.exists()


def written(folder: Path, content: str) -> Path:
    kept = folder / "step-000003"
    kept.mkdir()
    (folder / checkpoint.LATEST).write_text("step-000003\n")
    (kept / checkpoint.DESCRIPTION).write_text(content)
    return kept


def test_the_newest_is_found(tmp_path: Path) -> None:
    kept = written(tmp_path, json.dumps({"format": 2, "step": 3, "identity": {"tp": 2}}))
    assert checkpoint._newest(tmp_path) == (kept, 3, {"tp": 2})


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[1]",
        '{"format": 2, "step": 3}',
        '{"format": 2, "step": "x", "identity": {}}',
        '{"format": 2, "step": 3, "identity": [3]}',
        '{"format": 1, "step": 3, "identity": {}}',
    ],
)
def test_a_damaged_description_is_refused(tmp_path: Path, content: str) -> None:
    written(tmp_path, content)
    with pytest.raises(InputError) as caught:
        checkpoint._newest(tmp_path)
    assert caught.value.field == "resume"
