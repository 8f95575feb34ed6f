"""A checkpoint is read as it was written, or refused in one line."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ringproof.errors import InputError
from ringproof.reference.training import checkpoint
from ringproof.reference.training.assembly import assembly
from smoke.model_batches import group_of_one
from smoke.training_matrix import ONE_RANK, options_of


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "a bit of a weight": lambda content: flipped(content, len(content) // 2),
    "a bit of the digest": lambda content: flipped(content, len(content) - 1),
    "a bit of the first line": lambda content: flipped(content, 9),
    "cut": lambda content: content[:-1000],
    "longer": lambda content: content + b"0",
    "empty": lambda content: b"",
    "a pickle that expands": lambda content: b"cbuiltins\nbytearray\n(I4000000000\ntR.",
    "another step": lambda content: signed(content.replace(b'"step": 1,', b'"step": 2,', 1)),
    "another type": lambda content: signed(content.replace(b"torch.float32", b"torch.int32  ", 1)),
}


def signed(content: bytes) -> bytes:
    """The content with the digest that belongs to it."""
    return content[:-32] + hashlib.sha256(content[:-32]).digest()


def test_a_file_is_loaded_or_refused(tmp_path: Path) -> None:
    with group_of_one(), assembly(options_of("qwen3-tiny", ONE_RANK), torch.device("cpu")) as parts:
        file = checkpoint.save(tmp_path, parts, 1) / "tp0-pp0.tensors"
        weight = parts.parameters[0].parameter.detach()
        before = weight.clone()
        weight.zero_()
        assert checkpoint.load(tmp_path, parts) == 1 and torch.equal(weight, before)
        content = file.read_bytes()
        assert signed(content) == content
        weight.zero_()
        for name, damage in DAMAGE.items():
            file.write_bytes(damage(content))
            with pytest.raises(InputError) as caught:
                checkpoint.load(tmp_path, parts)
            assert caught.value.field == "resume"
            assert "tp0-pp0.tensors' is damaged, or of" in str(caught.value), name
            assert not weight.any(), "nothing of a damaged file is loaded"
        file.unlink()
        os.mkfifo(file)
        with pytest.raises(InputError, match=r"tp0-pp0.tensors' is damaged"):
            checkpoint.load(tmp_path, parts)


@pytest.mark.parametrize("step", [0, -1, 10**18])
def test_a_step_that_the_run_does_not_have_is_refused(tmp_path: Path, step: int) -> None:
    with group_of_one(), assembly(options_of("qwen3-tiny", ONE_RANK), torch.device("cpu")) as parts:
        kept = checkpoint.save(tmp_path, parts, 1)
        description = json.loads((kept / checkpoint.DESCRIPTION).read_text())
        text = json.dumps({**description, "step": step})
        (kept / checkpoint.DESCRIPTION).write_text(text)
        with pytest.raises(
            InputError, match=rf"says that it is of step {step}, which this run lacks"
        ):
            checkpoint.load(tmp_path, parts)


def written(folder: Path, content: str) -> Path:
    kept = folder / "step-000003"
    kept.mkdir()
    (folder / checkpoint.LATEST).write_text("step-000003\n")
    (kept / checkpoint.DESCRIPTION).write_text(content)
    return kept


def test_the_newest_is_found(tmp_path: Path) -> None:
    kept = written(tmp_path, json.dumps({"format": 3, "step": 3, "identity": {"tp": 2}}))
    assert checkpoint._newest(tmp_path) == (kept, 3, {"tp": 2})


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[1]",
        '{"format": 3, "step": 3}',
        '{"format": 3, "step": "x", "identity": {}}',
        '{"format": 3, "step": 1.5, "identity": {}}',
        '{"format": 3, "step": true, "identity": {}}',
        '{"format": 3, "step": 3, "identity": {}}' + " " * 1_000_000,
        '{"format": 3, "step": 3, "identity": [3]}',
        '{"format": 2, "step": 3, "identity": {}}',
    ],
)
def test_a_damaged_description_is_refused(tmp_path: Path, content: str) -> None:
    written(tmp_path, content)
    with pytest.raises(InputError) as caught:
        checkpoint._newest(tmp_path)
    assert caught.value.field == "resume"
