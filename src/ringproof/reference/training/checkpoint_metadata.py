"""Read the metadata of a checkpoint without running code from it.

``torch.distributed.checkpoint`` writes its metadata as a pickle and reads it with ``pickle.load``,
which calls whatever the file names. It also unpickles each entry that the metadata marks as bytes
instead of a tensor. The reader of this module accepts the classes that describe tensors, and
nothing else. The tensors themselves are read by torch with ``weights_only=True``.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata

from ringproof.errors import InputError
from ringproof.files import read_input

METADATA = ".metadata"
LARGEST_BYTES = 1 << 30

_PATHS = frozenset({"PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath"})
_ACCEPTED = MappingProxyType(
    {
        "pathlib": _PATHS,
        "pathlib._local": _PATHS,  # Python 3.13
        "torch": frozenset({"Size"}),  # and the types of elements
        "torch.serialization": frozenset({"_get_layout"}),  # looks a name up in a table
        "torch.distributed.checkpoint.filesystem": frozenset({"_StorageInfo"}),
        "torch.distributed.checkpoint.metadata": frozenset(
            {
                "BytesStorageMetadata",
                "ChunkStorageMetadata",
                "Metadata",
                "MetadataIndex",
                "StorageMeta",
                "TensorProperties",
                "TensorStorageMetadata",
                "_MEM_FORMAT_ENCODING",
            }
        ),
    }
)


class TensorReader(FileSystemReader):
    """Reads a folder that ``torch.distributed.checkpoint`` wrote, if it holds tensors only."""

    def read_metadata(self, *_arguments: Any, **_options: Any) -> Metadata:
        """Return the metadata; see `read_metadata`."""
        metadata = read_metadata(Path(self.path))
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class _Restricted(pickle.Unpickler):
    """An unpickler that finds the classes of tensor metadata, and no other name."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the class of that name.

        Raises:
            pickle.UnpicklingError: No metadata of tensors needs it.
        """
        element = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if not element and name not in _ACCEPTED.get(module, ()):
            raise _Foreign(f"names {module}.{name}, which may run code")
        return super().find_class(module, name)


class _Foreign(pickle.UnpicklingError):
    """The metadata names something that does not describe a tensor."""


def read_metadata(folder: Path) -> Metadata:
    """Read the metadata of a checkpoint.

    Args:
        folder: Folder of one checkpoint.

    Returns:
        The metadata, all of whose entries are tensors.

    Raises:
        InputError: The metadata cannot be read, is damaged, or holds more than tensors.
    """
    path, remedy = folder / METADATA, "remove this checkpoint and name an older one in latest"
    data = read_input(path, LARGEST_BYTES, field="resume", remedy=remedy)
    try:
        return _loaded(data)
    except _Foreign as error:
        remedy = "do not use this checkpoint: ringproof did not write it"
        raise InputError("resume", path, str(error), remedy) from None
    except Exception as error:  # a damaged pickle raises nearly anything
        raise InputError("resume", path, "is damaged", remedy) from error


def _loaded(data: bytes) -> Metadata:
    metadata = _Restricted(io.BytesIO(data)).load()
    if not isinstance(metadata, Metadata):
        raise TypeError(f"{type(metadata).__name__} is no metadata")
    for key, entry in metadata.state_dict_metadata.items():
        if not isinstance(entry, TensorStorageMetadata):
            raise _Foreign(f"holds {key} as pickled bytes, which may run code")
    return metadata
