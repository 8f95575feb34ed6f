"""What a checkpoint says of itself is read, or refused in one line, and no code from it is run."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import checkpoint as distributed_checkpoint
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata

from ringproof.errors import InputError
from ringproof.reference.training import checkpoint
from ringproof.reference.training.checkpoint import METADATA, TensorReader, read_metadata


class Planted:
    """An object whose pickle makes a folder when it is loaded."""

    def __init__(self, place: Path) -> None:
        self.place = str(place)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.place,)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of two tensors, written by torch."""
    kept = tmp_path / "step-000001"
    tensors = {"a": torch.arange(6.0, dtype=torch.float64).view(2, 3), "b": torch.tensor([7])}
    distributed_checkpoint.save(tensors, checkpoint_id=str(kept), no_dist=True)
    return kept


def load(folder: Path) -> dict[str, torch.Tensor]:
    tensors = {"a": torch.zeros(2, 3, dtype=torch.float64), "b": torch.zeros(1, dtype=torch.int64)}
    distributed_checkpoint.load(tensors, storage_reader=TensorReader(folder), no_dist=True)
    return tensors


def test_tensors_are_read(folder: Path) -> None:
    assert set(read_metadata(folder).state_dict_metadata) == {"a", "b"}
    tensors = load(folder)
    assert tensors["a"].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert tensors["b"].tolist() == [7]


def test_code_in_the_metadata_is_not_run(folder: Path, tmp_path: Path) -> None:
    """Read by torch's own reader, the same file runs its code."""
    made = tmp_path / "made"
    (folder / METADATA).write_bytes(pickle.dumps(Planted(made)))
    with pytest.raises(InputError, match=r"names posix\.mkdir, which may run code"):
        read_metadata(folder)
    with pytest.raises(distributed_checkpoint.CheckpointException):
        load(folder)
    assert not made.exists()
    with pytest.raises(AttributeError):
        distributed_checkpoint.FileSystemReader(folder).read_metadata()
    assert made.exists()


def test_code_in_an_entry_is_not_run(folder: Path, tmp_path: Path) -> None:
    """Metadata that says "bytes" makes torch unpickle the entry that it leads to."""
    made = tmp_path / "made"
    distributed_checkpoint.save({"a": Planted(made)}, checkpoint_id=str(folder), no_dist=True)
    metadata: Metadata = distributed_checkpoint.FileSystemReader(folder).read_metadata()
    assert isinstance(metadata.state_dict_metadata["a"], BytesStorageMetadata)
    with pytest.raises(InputError, match="holds a as pickled bytes, which may run code"):
        read_metadata(folder)
    with pytest.raises(distributed_checkpoint.CheckpointException):
        load(folder)
    assert not made.exists()
    distributed_checkpoint.load({"a": torch.zeros(2, 3)}, checkpoint_id=str(folder), no_dist=True)
    assert made.exists()


@pytest.mark.parametrize("name", ["builtins.eval", "os.system", "torch.load", "torch.hub.load"])
def test_a_function_is_no_class_of_metadata(folder: Path, name: str) -> None:
    module, _, function = name.rpartition(".")
    (folder / METADATA).write_bytes(f"c{module}\n{function}\n.".encode())
    with pytest.raises(InputError, match="which may run code"):
        read_metadata(folder)


@pytest.mark.parametrize("content", [b"", b"\x80", b"\x80\x04N.", b"no pickle", b"\x80\x04]."])
def test_damaged_metadata_is_refused(folder: Path, content: bytes) -> None:
    (folder / METADATA).write_bytes(content)
    with pytest.raises(InputError, match=r"^resume: is damaged"):
        read_metadata(folder)


def test_missing_metadata_is_refused(folder: Path) -> None:
    (folder / METADATA).unlink()
    with pytest.raises(InputError, match=r"^resume: .*cannot be read"):
        read_metadata(folder)


def written(folder: Path, content: str) -> Path:
    kept = folder / "step-000003"
    kept.mkdir()
    (folder / checkpoint.LATEST).write_text("step-000003\n")
    (kept / checkpoint.DESCRIPTION).write_text(content)
    return kept


def test_the_newest_is_found(tmp_path: Path) -> None:
    kept = written(tmp_path, json.dumps({"format": 1, "step": 3, "identity": {"tp": 2}}))
    assert checkpoint._newest(tmp_path) == (kept, 3, {"tp": 2})


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[1]",
        "7",
        '{"format": 1, "step": 3}',
        '{"format": 1, "step": "x", "identity": {}}',
        '{"format": 1, "step": null, "identity": {}}',
        '{"format": 1, "step": 3, "identity": [3]}',
        '{"format": 2, "step": 3, "identity": {}}',
    ],
)
def test_a_damaged_description_is_refused(tmp_path: Path, content: str) -> None:
    written(tmp_path, content)
    with pytest.raises(InputError) as caught:
        checkpoint._newest(tmp_path)
    assert caught.value.field == "resume"
