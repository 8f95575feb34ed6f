"""Traces that are kept on disk: a folder for each run, which another machine may have written.

Nothing in such a folder is trusted: sizes are limited, and every index and length is checked
before it is used. Values are plain bytes; nothing is unpickled.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from ringproof.errors import InputError, shown
from ringproof.files import read_bounded
from ringproof.rehearsal.locate.reading import RankRecord, RunTrace, coordinates, read_rank
from ringproof.rehearsal.locate.rows import LAYOUTS
from ringproof.rehearsal.protocol.trace import (
    FORMAT,
    HEAD,
    RankTrace,
    TracedBatch,
    TraceHead,
    Values,
)

MOST_HEAD_BYTES, MOST_RANK_BYTES = 1 << 16, 64 << 20
MOST_RANKS, MOST_CALLS, MOST_BATCHES = 1024, 100_000, 1024
MOST_ROWS = 1 << 22
"""Rows of a pack."""
MOST_THINNED = 1 << 27
"""Values of a tensor of which a trace holds some rows only."""
DTYPES = ("<f4", "<f8", "<i8", "<i4", "<i2", "|i1", "|u1", "|b1")
"""Types of values that ranks write, as numpy names them."""
WRITES = "name a folder that ringproof rehearse --keep-trace wrote, such as DIR/launch/run"


@dataclass(frozen=True)
class KeptTrace:
    """A trace that was read from a folder."""

    head: TraceHead
    run: RunTrace


def keep(found: Path, folder: Path) -> None:
    """Move what the ranks of a run wrote to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(found.glob("trace*.*")):
        shutil.move(path, folder / path.name)


def read_trace(folder: Path, field: str) -> KeptTrace:
    """Read a trace that anybody may have written.

    Args:
        field: Option or argument that named the folder.

    Raises:
        InputError: It is not a trace of this format, or it is damaged.
    """

    def refuse(why: str, remedy: str) -> InputError:
        return InputError(field, f"{shown(folder)} {why}; {remedy}")

    try:
        data = json.loads(read_bounded(folder / HEAD, MOST_HEAD_BYTES))
    except (OSError, ValueError, RecursionError):
        raise refuse(f"has no {HEAD} of a trace", WRITES) from None
    known = data.get("format") if isinstance(data, dict) else None
    if known != FORMAT:
        said = f"is a trace of format {shown(known)}, and this version reads {FORMAT}"
        raise refuse(said, "write it again with this version")
    records = []
    try:
        head = TypeAdapter(TraceHead).validate_python(data)
        if not 1 <= head.ranks <= MOST_RANKS:
            raise ValueError(f"{HEAD} has {head.ranks} ranks")
        for rank in range(head.ranks):
            records.append(_rank(folder, rank))
        problem = next(_in_run(records), "")
    except (OSError, ValueError) as error:
        problem = _said(error)
    if problem:
        raise refuse(f"is damaged: {problem}", "copy or write it again")
    return KeptTrace(head, RunTrace(tuple(records)))


def _said(error: OSError | ValueError) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_input=False, include_url=False)[0]
        return f"{'.'.join(map(str, first['loc'][:4]))}: {first['msg']}"
    return str(getattr(error, "strerror", None) or error)


def _rank(folder: Path, rank: int) -> RankRecord:
    path, values = folder / f"trace-{rank}.json", folder / f"trace-{rank}.bin"
    for one in (path, values):
        if not one.is_file():
            raise ValueError(f"{one.name} is not there")
    if path.stat().st_size > MOST_RANK_BYTES:
        raise ValueError(f"{path.name} is larger than {MOST_RANK_BYTES >> 20} MiB")
    record = read_rank(path, values)
    problem = next(_in_rank(record.trace, record.data.nbytes), "")
    if problem:
        raise ValueError(f"{path.name}: {problem}")
    return record


def _in_rank(trace: RankTrace, size: int) -> Iterator[str]:
    """Yield what is wrong in a rank's trace, whose values have ``size`` bytes."""
    if len(trace.calls) > MOST_CALLS or len(trace.batches) > MOST_BATCHES:
        yield f"it has more than {MOST_CALLS} calls or {MOST_BATCHES} microbatches"
    held = [one for tensor in trace.tensors for one in (tensor.value, tensor.gradient) if one]
    held += [one.value for one in trace.parameters]
    yield from (f"a tensor is {why}" for one in held if (why := _out_of(one, size)))
    if sum(map(_bytes, held)) > size:  # else a short file could make endless work
        yield "its tensors overlap"
    yield from (why for one in trace.batches if (why := _in_batch(one, trace.rank)))
    count = len(trace.tensors)
    for index, call in enumerate(trace.calls):
        ports = (*call.inputs.values(), *call.outputs.values())
        if any(not 0 <= at < count for at in ports) or not -1 <= call.parent < index:
            yield f"call {index} names a tensor or a call that is not there"


def _in_batch(one: TracedBatch, rank: int) -> str:
    """Say what is wrong with how a microbatch is shared; empty where nothing is."""
    if rank not in one.ranks or len(one.ranks) > MOST_RANKS or one.layout not in ("", *LAYOUTS):
        return f"microbatch {one.microbatch} is not shared by ranks in a known layout"
    for ends in (one.borders, one.tokens):
        if (
            list(ends) != sorted(ends)
            or min(ends, default=0) < 0
            or max(ends, default=0) > MOST_ROWS
        ):
            return f"the sequences of microbatch {one.microbatch} end nowhere"
    return ""


def _bytes(one: Values) -> int:
    return math.prod(one.held) * int(one.dtype[2:])


def _out_of(one: Values, size: int) -> str:
    if one.dtype not in DTYPES:
        return f"of type {shown(one.dtype)}"
    if min(one.shape, default=0) < 0 or len(one.shape) > 16 or one.offset < 0:
        return "of no possible shape"
    if one.every < 1 or (one.every > 1 and not 0 < math.prod(one.shape) < MOST_THINNED):
        return "of rows that it cannot have"
    cut = one.offset + _bytes(one) > size
    return "cut off: the file of values is too short" if cut else ""


def _in_run(records: list[RankRecord]) -> Iterator[str]:
    """Yield what is wrong in the layout of the ranks."""
    sizes = records[0].trace.place.sizes
    if min(sizes) < 1 or math.prod(sizes) != len(records):
        yield f"its layout {list(sizes)} does not have {len(records)} ranks"
    seen = set()
    for number, record in enumerate(records):
        place = record.trace.place
        at = coordinates(place)
        widths = (sizes[0], sizes[1], sizes[2], sizes[3])
        if place.sizes != sizes or any(not 0 <= a < b for a, b in zip(at, widths, strict=True)):
            yield f"rank {number} is outside of the layout"
        group = place.experts  # each once, or a short file could make endless work
        shares = number in group and 0 <= place.expert_tensor < len({*group}) == len(group)
        if place.experts and not shares:
            yield f"rank {number} has no place among the ranks that share experts"
        if record.trace.rank != number or at in seen:
            yield f"rank {number} is there twice"
        seen.add(at)
