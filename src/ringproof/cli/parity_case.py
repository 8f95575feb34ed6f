"""From the options of ``ringproof parity attention`` to a case that can be measured."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from types import MappingProxyType

import typer

from ringproof.errors import InputError
from ringproof.reference.attention.case import ParityCase
from ringproof.reference.packing.padding import padding_multiple
from ringproof.reference.packing.sequences import Capacity, PackedSequences, pack

# Where a field's option is not simply its name with dashes.
OPTION_OF_FIELD = MappingProxyType(
    {
        "capacity.entries": "--pack-entries",
        "capacity.rows": "--pack-rows",
        "capacity.rows or total_multiple": "--pack-rows",
        "comm_type": "--comm",
        "cp_size": "--nproc",
        "cu_seqlens_padded": "--pad-multiple",
        "hierarchical_context_parallel_sizes": "--hcp",
        "hierarchical_sizes": "--hcp",
        "lengths": "--packed",
        "multiple": "--pad-multiple",
        "world": "--nproc",
    }
)
ONLY_BSHD = ("seq_len", "batch")
ONLY_PACKED = ("pad_multiple", "tail", "pack_rows", "pack_entries")


def attention_case(context: typer.Context, launched: int | None) -> ParityCase:
    """The case that the options ask for.

    Args:
        context: Of the command, with its parameters.
        launched: Ranks that torchrun made, or ``None``.

    Raises:
        InputError: Options that contradict each other or cannot be measured, by option.
    """
    options = context.params
    levels = _integers("--hcp", options["hcp"], "2,2")
    world = options["nproc"] or launched or (math.prod(levels) if levels else 2)
    with _named_by_option():
        packed = _pack(context, world)
        case = ParityCase(
            world=world,
            comm_type=options["comm"],
            hierarchical_sizes=levels,
            seq_len=packed.rows if packed else options["seq_len"],
            batch=options["batch"],
            packed=packed,
            heads=options["heads"],
            kv_heads=options["kv_heads"] or options["heads"],
            head_dim=options["head_dim"],
            v_head_dim=options["v_head_dim"] or options["head_dim"],
            dtype=options["dtype"],
            causal=options["causal"],
            partition=options["partition"],
            scale=options["scale"],
            kernel=options["kernel"],
            kv_replication=options["kv_replication"],
            seed=options["seed"],
        )
        case.check()
    return case


def _pack(context: typer.Context, world: int) -> PackedSequences | None:
    """The pack that ``--packed`` and its companions ask for; ``None`` without it."""
    options = context.params
    wrong, remedy = (
        (ONLY_BSHD, "drop it: the pack has its own")
        if options["packed"]
        else (ONLY_PACKED, "give --packed, too")
    )
    for name in wrong:
        source = context.get_parameter_source(name)
        if source is not None and source.name != "DEFAULT":
            raise InputError(name, options[name], "does not go with this layout", remedy)
    if not options["packed"]:
        return None
    lengths = _integers("--packed", options["packed"], "5,1,17,64")
    whole = padding_multiple(cp_size=world, partition=options["partition"])
    rows, entries = options["pack_rows"], options["pack_entries"] or len(lengths) + 1
    if options["pack_entries"] and not rows:
        raise InputError("pack_entries", entries, "a capacity has rows, too", "give --pack-rows")
    multiple = options["pad_multiple"] or whole
    return pack(
        lengths,
        multiple=multiple,
        total_multiple=math.lcm(multiple, whole),
        tail=options["tail"],
        capacity=Capacity(rows=rows, entries=entries) if rows else None,
    )


@contextlib.contextmanager
def _named_by_option() -> Iterator[None]:
    """Refusals name the option instead of the field."""
    try:
        yield
    except InputError as error:
        name = error.field
        if not name.startswith("--"):
            name = OPTION_OF_FIELD.get(name, f"--{name.replace('_', '-')}")
        raise InputError(name, error.value, error.problem, error.remedy) from None


def _integers(option: str, text: str, example: str) -> tuple[int, ...]:
    """The integers of a comma list; none in an empty text."""
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise InputError(option, text, "not a list of integers", f"write it as {example}") from None
