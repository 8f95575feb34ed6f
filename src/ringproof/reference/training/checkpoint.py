"""Checkpoints, from which a run continues with the same bits as without interruption.

A folder holds one subfolder for each saved step and a file ``latest`` that names the newest. A
checkpoint is first written under a temporary name. When every rank has written its part, it is
renamed and then recorded in ``latest``. So an incomplete checkpoint is never loaded, and the
previous one stays.

A run resumes with the layout that it had, so a rank reads the files that a rank in its place has
written. Tensors that all ranks of a domain hold are in one file, shards are in one file for each
rank.

A file is a line of JSON (the step, and type and shape of each tensor by its key), the bytes of the
tensors in that order, and a SHA-256 of all before it. A rank knows the line that it has to find and
the size of the file before it reads it. So no file can execute code or take more memory than the
tensors of the run, and one that was damaged or is of another step or run is refused.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ringproof.errors import InputError, shown
from ringproof.files import read_bounded, write_atomically
from ringproof.reference.training.agreement import on_first_rank, refuse_together
from ringproof.reference.training.assembly import Assembly
from ringproof.reference.training.data import Documents
from ringproof.reference.training.gradients import local_part
from ringproof.reference.training.options import TrainOptions

LATEST = "latest"
DESCRIPTION = "run.json"
UNWRITABLE = "cannot be written; name a writable folder"
FORMAT = 3
MOST_BYTES = 1_000_000
"""Of the files ``latest`` and ``run.json``."""
MOMENTS = ("exp_avg", "exp_avg_sq")
"""What AdamW keeps of each parameter, beside the number of its steps."""

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
    refuse_together(lambda: _write(partial, parts, step))
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
    if not 0 < step <= parts.options.optimiser.steps:
        problem = f"{shown(chosen)} says that it is of step {step}, which this run lacks"
        raise InputError("resume", f"{problem}; name another one in {LATEST}")
    refuse_together(lambda: _read(chosen, parts, step))
    return step


def check_unused(folder: Path) -> None:
    """Refuse to start a run in a folder that has a checkpoint. A collective over the world.

    Raises:
        InputError: The folder has a finished checkpoint. All ranks raise.
    """
    if on_first_rank(lambda: exists(folder)):
        problem = f"{shown(folder)} has checkpoints of a run"
        raise InputError("save", f"{problem}; go on with --resume, or name another folder")


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
        **asdict(options.parallel),
        **asdict(options.batch),
        **asdict(options.optimiser),
        "forced_sizes": ",".join(map(str, options.batch.forced_sizes)),
        **({"capacity": str(options.capacity)} if options.capacity else {}),
        "documents": f"{len(lengths):,} of {int(lengths.sum()):,} tokens",
    }


def _write(partial: Path, parts: Assembly, step: int) -> None:
    """Write the files of this rank; of a file that ranks share, the first of them writes it."""
    first = parts.groups.domain_rank == 0 or parts.options.parallel.fully_sharded
    files = _files(_tensors(parts), parts)
    with _refusing("save", partial.parent, UNWRITABLE):
        for name, tensors in files.items():
            if first or name.startswith("random"):
                _write_file(partial / name, tensors, step)


def _write_file(path: Path, tensors: Mapping[str, torch.Tensor], step: int) -> None:
    held = {key: local_part(tensor).detach().cpu() for key, tensor in tensors.items()}
    line = _line(held, step)
    digest = hashlib.sha256(line)
    with path.open("wb") as file:
        file.write(line)
        for tensor in held.values():
            data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
            digest.update(data)
            file.write(data)
        file.write(digest.digest())
        file.flush()
        os.fsync(file.fileno())  # a checkpoint is renamed into its place, which must come after it


def _line(tensors: Mapping[str, torch.Tensor], step: int) -> bytes:
    """Return the first line of a file that holds these tensors."""
    kinds = {key: [str(tensor.dtype), list(tensor.shape)] for key, tensor in tensors.items()}
    return json.dumps({"step": step, "tensors": kinds}).encode() + b"\n"


def _read(chosen: Path, parts: Assembly, step: int) -> None:
    """Copy what the files of this rank hold into its tensors."""
    tensors = _tensors(parts)
    for name, wanted in _files(tensors, parts).items():
        problem = f"is damaged, or of another step or run; name an older checkpoint in {LATEST}"
        with _refusing("resume", chosen / name, problem):
            _read_file(
                chosen / name, {key: local_part(tensor) for key, tensor in wanted.items()}, step
            )
    _set_random_state(parts.device, tensors)


def _read_file(path: Path, tensors: Mapping[str, torch.Tensor], step: int) -> None:
    """Copy a file into tensors, once all of it was read and its digest is right.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is damaged, or it does not hold these tensors of this step.
    """
    line = _line(tensors, step)
    digest = hashlib.sha256(line)
    size = len(line) + sum(tensor.nbytes for tensor in tensors.values()) + digest.digest_size
    if not path.is_file() or path.stat().st_size != size:
        raise ValueError("another size")
    with path.open("rb") as file:
        if file.read(len(line)) != line:
            raise ValueError("other tensors")
        data = {key: file.read(tensor.nbytes) for key, tensor in tensors.items()}
        for part in data.values():
            digest.update(part)
        if file.read() != digest.digest():
            raise ValueError("another digest")
    for key, tensor in tensors.items():
        if data[key]:
            saved = torch.frombuffer(bytearray(data.pop(key)), dtype=tensor.dtype)
            tensor.copy_(saved.view(tensor.shape))


def _files(tensors: Mapping[str, torch.Tensor], parts: Assembly) -> dict[str, dict[str, Any]]:
    """Divide the tensors of a rank into files, by name: random states, and all others."""
    layout, rank = parts.options.parallel.layout, dist.get_rank()
    place = f"tp{layout.coordinate('tp', rank)}-pp{layout.coordinate('pp', rank)}"
    if parts.options.parallel.fully_sharded:
        place += f"-domain{parts.groups.domain_rank}"
    files: dict[str, dict[str, Any]] = {f"random-{rank}.tensors": {}, f"{place}.tensors": {}}
    for key, tensor in tensors.items():
        name = f"random-{rank}" if key.startswith("random.") else place
        files[f"{name}.tensors"][key] = tensor
    return files


def _tensors(parts: Assembly) -> dict[str, torch.Tensor]:
    """Return every tensor of this rank by its key. Loading writes into these tensors."""
    tensors = _random_state(parts.device)
    for trained in parts.parameters:
        tensors[f"{trained.name}.parameter"] = trained.parameter.detach()
        for name, value in _moments(parts.optimiser, trained.parameter).items():
            tensors[f"{trained.name}.{name}"] = value
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
    states = {"random.cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["random.cuda"] = torch.cuda.get_rng_state(device)
    return states


def _set_random_state(device: torch.device, tensors: Mapping[str, torch.Tensor]) -> None:
    torch.set_rng_state(tensors["random.cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(tensors["random.cuda"], device)


def _begin(folder: Path, step: int) -> Path:
    """Create an empty folder to write into, and remove what an interrupted save left there."""
    partial = folder / f".step-{step:06}.partial"
    with _refusing("save", folder, UNWRITABLE):
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
    with _refusing("save", folder, UNWRITABLE):
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
        problem = f"there is no finished checkpoint in {shown(folder)}"
        raise InputError("resume", f"{problem}; name a folder that has one")
    with _refusing("resume", folder, "has a newest checkpoint that cannot be read; restore it"):
        name = read_bounded(folder / LATEST, MOST_BYTES).decode().strip()
        if Path(name).name != name:
            problem = f"the file {LATEST} names {shown(name)}, which is not a folder beside it"
            raise InputError("resume", f"{problem}; correct the file")
        if not (folder / name / DESCRIPTION).is_file():
            raise OSError("not a file")
        description = json.loads(read_bounded(folder / name / DESCRIPTION, MOST_BYTES))
        if description["format"] != FORMAT:
            problem = f"{shown(folder / name)} was written by another version of ringproof"
            raise InputError("resume", f"{problem}; resume with that version")
        if type(description["step"]) is not int:
            raise TypeError("not a step")
        return folder / name, description["step"], dict(description["identity"])


def _check_identity(folder: Path, saved: Identity, asked: Identity) -> None:
    """Check that every argument is the same; the message names the first that differs."""
    asked = json.loads(json.dumps(asked))
    for name in (*asked, *saved):
        if saved.get(name) != asked.get(name):
            was = f"the checkpoint in {folder.name} was saved with {shown(saved.get(name))}"
            remedy = "resume with the same arguments"
            if name == "steps":
                was += ", on which the learning rate of its steps depends"
                remedy = "resume with the same, or begin anew in another folder"
            raise InputError(name, f"{was}, and this run has {shown(asked.get(name))}; {remedy}")


@contextmanager
def _refusing(field: str, place: Path, problem: str) -> Iterator[None]:
    """Convert errors of files and of what they hold into an `InputError`."""
    try:
        yield
    except InputError:
        raise
    except (OSError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(field, f"{shown(place)} {problem}") from error
