"""Checkpoints, from which a run continues with the same bits as without interruption.

A folder holds one subfolder for each saved step and a file ``latest`` that names the newest. A
checkpoint is first written under a temporary name. When every rank has written its part, it is
renamed and then recorded in ``latest``. So an incomplete checkpoint is never loaded, and the
previous one stays.

Tensors are written with ``torch.distributed.checkpoint``. Each key names the tensor parallel and
pipeline rank it belongs to. So tensors that all ranks of a domain hold are written once, and shards
are written by the ranks that hold them. Loading runs no code from the files; see
:mod:`~ringproof.reference.training.checkpoint_metadata`.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import checkpoint as distributed_checkpoint
from torch.distributed.checkpoint import CheckpointException

from ringproof.errors import InputError
from ringproof.files import write_atomically
from ringproof.reference.topology.layout import RankLayout
from ringproof.reference.training.agreement import refusal_of
from ringproof.reference.training.checkpoint_metadata import TensorReader, read_metadata
from ringproof.reference.training.gradients import TrainedParameter

Result = TypeVar("Result")

LATEST = "latest"
DESCRIPTION = "run.json"
FORMAT = 1
MOMENTS = ("exp_avg", "exp_avg_sq")
"""What AdamW keeps of each parameter, beside the number of its steps."""

Identity = Mapping[str, str | int | float | bool]
"""Argument to value, of those that must be the same when a run goes on. As JSON has them."""


@dataclass(frozen=True)
class TrainingState:
    """State of a rank that a checkpoint saves, apart from the random generators.

    Parameters are loaded in place. ``place`` is the result of :func:`place_of`. The random
    generator of the device is saved in addition to that of the CPU.
    """

    parameters: tuple[TrainedParameter, ...]
    optimiser: torch.optim.AdamW
    identity: Identity
    place: str
    device: torch.device


def place_of(layout: RankLayout, rank: int) -> str:
    """Return the prefix of a rank's keys, which is the same exactly on the ranks of one domain."""
    return f"tp{layout.coordinate('tp', rank)}.pp{layout.coordinate('pp', rank)}"


def save(folder: Path, state: TrainingState, step: int) -> Path:
    """Write a checkpoint and make it the newest.

    A collective over the world. If it is interrupted, the previous checkpoint stays the newest.

    Args:
        folder: Folder of all checkpoints of a run, visible to every rank. It is created if needed.
        state: State of this rank.
        step: Step with which a resumed run continues.

    Returns:
        The folder of this checkpoint.

    Raises:
        InputError: The checkpoint cannot be written. All ranks raise.
    """
    partial = _on_first_rank(lambda: _begin(folder, step))
    with _refusing("save", folder, "cannot be written", "name a writable folder"):
        distributed_checkpoint.save(_tensors(state), checkpoint_id=str(partial))
    return _on_first_rank(lambda: _finish(folder, partial, state.identity, step))


def load(folder: Path, state: TrainingState) -> int:
    """Load the newest checkpoint into parameters, optimizer and random generators.

    A collective over the world. Returns the step with which the run continues.

    Raises:
        InputError: There is no checkpoint, it is damaged, or it was written by a run with other
            arguments, of which the message names the first. All ranks raise.
    """
    chosen, step, identity = _on_first_rank(lambda: _newest(folder))
    _check_identity(folder, identity, dict(state.identity))
    _on_first_rank(lambda: _check_metadata(chosen))
    tensors = _tensors(state)
    with _refusing("resume", chosen, "is damaged", "remove it and name an older one in latest"):
        distributed_checkpoint.load(tensors, storage_reader=TensorReader(chosen))
    _set_random_state(state.device, tensors)
    return step


def check_unused(folder: Path) -> None:
    """Refuse to start a run in a folder that has a checkpoint. A collective over the world.

    Raises:
        InputError: The folder has a finished checkpoint. All ranks raise.
    """
    if _on_first_rank(lambda: exists(folder)):
        problem = "has checkpoints of a run"
        raise InputError("save", folder, problem, "go on with --resume, or name another folder")


def exists(folder: Path) -> bool:
    """Return whether a folder has a finished checkpoint. Call it on one rank."""
    return (folder / LATEST).is_file()


def _tensors(state: TrainingState) -> dict[str, torch.Tensor]:
    """Return every tensor of this rank by its key. Loading writes into these tensors."""
    tensors = _random_state(state.device)
    for trained in state.parameters:
        key, parameter = f"{state.place}.{trained.name}", trained.parameter
        tensors[f"{key}.parameter"] = parameter.detach()
        for name, value in _moments(state.optimiser, parameter).items():
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
    description = {"format": FORMAT, "step": step, "identity": dict(identity)}
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


def _check_metadata(chosen: Path) -> None:
    read_metadata(chosen)


def _check_identity(folder: Path, saved: dict[str, Any], asked: dict[str, Any]) -> None:
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


def _on_first_rank(function: Callable[[], Result]) -> Result:
    """Call a function on rank 0, and return its result or raise its InputError on every rank."""
    outcome: list[Any] = [None]
    if dist.get_rank() == 0:
        try:
            outcome[0] = function()
        except InputError as error:
            outcome[0] = refusal_of(error)
            dist.broadcast_object_list([False, *outcome])
            raise
        dist.broadcast_object_list([True, *outcome])
        return outcome[0]
    received: list[Any] = [None, None]
    dist.broadcast_object_list(received)
    if not received[0]:
        raise InputError(*received[1])
    return received[1]


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
