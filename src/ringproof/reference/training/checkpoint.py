"""Checkpoints, from which a run continues with the same bits as without interruption.

A folder holds one subfolder for each saved step and a file ``latest`` that names the newest. A
checkpoint is first written under a temporary name. When every rank has written its part, it is
renamed and then recorded in ``latest``. So an incomplete checkpoint is never loaded, and the
previous one stays.

Tensors are written with ``torch.distributed.checkpoint``. Each key names the tensor parallel and
pipeline rank it belongs to. So tensors that all ranks of a domain hold are written once, and shards
are written by the ranks that hold them.

Loading runs no code from the files. ``torch.distributed.checkpoint`` writes its metadata as a
pickle and reads it with ``pickle.load``, which calls whatever the file names. It also unpickles
each entry that the metadata marks as bytes instead of a tensor. `read_metadata` accepts the classes
that describe tensors, and nothing else. Torch reads the tensors with ``weights_only=True``.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import pickle
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import checkpoint as distributed_checkpoint
from torch.distributed.checkpoint import CheckpointException, FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata

from ringproof.errors import InputError
from ringproof.files import read_input, write_atomically
from ringproof.reference.training.agreement import on_first_rank
from ringproof.reference.training.assembly import Assembly
from ringproof.reference.training.data import Documents
from ringproof.reference.training.options import TrainOptions

LATEST = "latest"
DESCRIPTION = "run.json"
FORMAT = 1
MOMENTS = ("exp_avg", "exp_avg_sq")
"""What AdamW keeps of each parameter, beside the number of its steps."""

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

Identity = dict[str, Any]
"""Argument to value, of those that must be the same when a run goes on. As JSON has them."""


def save(folder: Path, parts: Assembly, step: int) -> Path:
    """Write a checkpoint and make it the newest.

    A collective over the world. If it is interrupted, the previous checkpoint stays the newest.

    Args:
        folder: Folder of all checkpoints of a run, visible to every rank. It is created if needed.
        step: Step with which a resumed run continues.

    Raises:
        InputError: The checkpoint cannot be written. All ranks raise.
    """
    partial = on_first_rank(lambda: _begin(folder, step))
    with _refusing("save", folder, "cannot be written", "name a writable folder"):
        distributed_checkpoint.save(_tensors(parts), checkpoint_id=str(partial))
    identity = identity_of(parts.options, parts.data.training)
    return on_first_rank(lambda: _finish(folder, partial, identity, step))


def load(folder: Path, parts: Assembly) -> int:
    """Load the newest checkpoint into parameters, optimizer and random generators.

    A collective over the world. Returns the step with which the run continues.

    Raises:
        InputError: There is no checkpoint, it is damaged, or it was written by a run with other
            arguments, of which the message names the first. All ranks raise.
    """
    chosen, step, identity = on_first_rank(lambda: _newest(folder))
    _check_identity(folder, identity, identity_of(parts.options, parts.data.training))
    on_first_rank(lambda: bool(read_metadata(chosen)))  # the metadata itself is not sent
    tensors = _tensors(parts)
    with _refusing("resume", chosen, "is damaged", "remove it and name an older one in latest"):
        distributed_checkpoint.load(tensors, storage_reader=TensorReader(chosen))
    _set_random_state(parts.device, tensors)
    return step


def check_unused(folder: Path) -> None:
    """Refuse to start a run in a folder that has a checkpoint. A collective over the world.

    Raises:
        InputError: The folder has a finished checkpoint. All ranks raise.
    """
    if on_first_rank(lambda: exists(folder)):
        problem = "has checkpoints of a run"
        raise InputError("save", folder, problem, "go on with --resume, or name another folder")


def exists(folder: Path) -> bool:
    """Return whether a folder has a finished checkpoint. Call it on one rank."""
    return (folder / LATEST).is_file()


def identity_of(options: TrainOptions, documents: Documents) -> Identity:
    """Return the options that must not change when a run is resumed.

    These are all options except those for checkpoints and evaluation.
    The number of steps belongs to them because the learning rate depends on it. Options that decide
    how tokens are packed belong to them because packing changes the rounding of sums.
    """
    lengths = documents.lengths
    return {
        **asdict(options.model),
        **asdict(options.parallel.layout),
        **{k: v for k, v in asdict(options.parallel).items() if k != "layout"},
        **asdict(options.batch),
        **asdict(options.optimiser),
        "forced_sizes": ",".join(map(str, options.batch.forced_sizes)),
        **({"capacity": str(options.capacity)} if options.capacity else {}),
        "documents": f"{len(lengths):,} of {int(lengths.sum()):,} tokens",
    }


def _tensors(parts: Assembly) -> dict[str, torch.Tensor]:
    """Return every tensor of this rank by its key. Loading writes into these tensors.

    Exactly the ranks of one domain have the same keys, apart from random states.
    """
    tensors, layout, rank = (
        _random_state(parts.device),
        parts.options.parallel.layout,
        dist.get_rank(),
    )
    place = f"tp{layout.coordinate('tp', rank)}.pp{layout.coordinate('pp', rank)}"
    for trained in parts.parameters:
        key, parameter = f"{place}.{trained.name}", trained.parameter
        tensors[f"{key}.parameter"] = parameter.detach()
        for name, value in _moments(parts.optimiser, parameter).items():
            tensors[f"{key}.{name}"] = value
    return tensors


def _moments(optimiser: torch.optim.AdamW, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return AdamW's state of a parameter, initialized as in the first step if there is none."""
    held = optimiser.state[parameter]
    if not held:
        held["step"] = torch.tensor(0.0)
        for name in MOMENTS:
            held[name] = torch.zeros_like(parameter)
    return {name: held[name].detach() for name in ("step", *MOMENTS)}


def _random_state(device: torch.device) -> dict[str, torch.Tensor]:
    prefix = f"rank{dist.get_rank()}.random"
    states = {f"{prefix}.cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states[f"{prefix}.cuda"] = torch.cuda.get_rng_state(device)
    return states


def _set_random_state(device: torch.device, tensors: Mapping[str, torch.Tensor]) -> None:
    prefix = f"rank{dist.get_rank()}.random"
    torch.set_rng_state(tensors[f"{prefix}.cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(tensors[f"{prefix}.cuda"], device)


def _begin(folder: Path, step: int) -> Path:
    """Create an empty folder to write into, and remove what an interrupted save left there."""
    partial = folder / f".step-{step:06}.partial"
    with _refusing("save", folder, "cannot be written", "name a writable folder"):
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(".step-*.partial"):
            shutil.rmtree(left)
        partial.mkdir()
    return partial


def _finish(folder: Path, partial: Path, identity: Identity, step: int) -> Path:
    """Give the checkpoint its final name, and then record it as the newest."""
    description = {"format": FORMAT, "step": step, "identity": identity}
    name = f"step-{step:06}"
    names = itertools.chain([name], (f"{name}.{again}" for again in itertools.count(1)))
    with _refusing("save", folder, "cannot be written", "name a writable folder"):
        write_atomically(partial / DESCRIPTION, json.dumps(description, indent=1), field="save")
        _flush(partial)
        final = next(folder / name for name in names if not (folder / name).exists())
        partial.rename(final)
        _flush(folder)
        write_atomically(folder / LATEST, f"{final.name}\n", field="save")
    return final


def _flush(folder: Path) -> None:
    """Flush the entries of a folder to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _newest(folder: Path) -> tuple[Path, int, dict[str, Any]]:
    """Return the newest checkpoint, the step to continue with, and the identity of its run."""
    if not exists(folder):
        raise InputError("resume", folder, "there is no finished checkpoint", "name its folder")
    with _refusing("resume", folder, "the newest checkpoint cannot be read", "restore it"):
        name = (folder / LATEST).read_text().strip()
        if Path(name).name != name:
            raise InputError("resume", name, "names no folder beside it", f"correct {LATEST}")
        description = json.loads((folder / name / DESCRIPTION).read_text())
        if description["format"] != FORMAT:
            problem = "is of another version of ringproof"
            raise InputError("resume", folder / name, problem, "resume with that version")
        return folder / name, int(description["step"]), dict(description["identity"])


def _check_identity(folder: Path, saved: Identity, asked: Identity) -> None:
    """Check that every argument is the same; the message names the first that differs."""
    asked = json.loads(json.dumps(asked))
    for name in (*asked, *saved):
        if saved.get(name) != asked.get(name):
            was = f"the checkpoint in {folder.name} was saved with {saved.get(name)}"
            remedy = "resume with the same arguments"
            if name == "steps":
                was += ", and the learning rate of the steps done depends on it"
                remedy = "resume with the same, or begin anew in another folder"
            raise InputError(name, asked.get(name), was, remedy)


@contextmanager
def _refusing(field: str, place: Path, problem: str, remedy: str) -> Iterator[None]:
    """Convert errors of files and of ``torch.distributed.checkpoint`` into an `InputError`.

    ``torch.distributed.checkpoint`` raises on every rank, with a class that is not an
    ``Exception``.
    """
    try:
        yield
    except (OSError, KeyError, TypeError, ValueError, CheckpointException) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(field, place, problem, remedy) from error


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
        """Return the class of that name, or refuse it."""
        element = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if not element and name not in _ACCEPTED.get(module, ()):
            raise _Foreign(f"names {module}.{name}, which may run code")
        return super().find_class(module, name)


class _Foreign(pickle.UnpicklingError):
    """The metadata names something that does not describe a tensor."""


def read_metadata(folder: Path) -> Metadata:
    """Read the metadata of the checkpoint in a folder; all its entries are tensors.

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
