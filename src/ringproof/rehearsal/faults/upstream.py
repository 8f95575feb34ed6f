"""Defects of upstream that nobody planted, each with the small program that shows it.

Found on Megatron-LM's dev branch at d48bd6be0a with Transformer Engine 2.20.2. A defect that is
mended upstream makes its test fail, and then leaves this table. ``docs/upstream-defects.md`` has
the causes.
"""

from __future__ import annotations

from dataclasses import dataclass

from ringproof.rehearsal.faults.programs import (
    DYNAMIC,
    HIERARCHICAL,
    MODEL,
    MTP,
    PACKED,
    STATIC,
)

SFT = ("--sft", "--calculate-per-token-loss")
HALVES = ("--context-parallel-size", "2")


@dataclass(frozen=True)
class Defect:
    """One defect of upstream.

    Attributes:
        name: In the table and in test ids.
        ranks: World size.
        arguments: Command line of ``pretrain_gpt.py``.
        message: Part of the error that ends the program; empty where it runs through.
        expected: Arguments of a program on one rank that must have the same losses; empty where
            none is compared.
        path: CP type that every attention call with communication takes in place of the one asked
            for; empty where the path is right.
    """

    name: str
    ranks: int
    arguments: tuple[str, ...]
    message: str = ""
    expected: tuple[str, ...] = ()
    path: str = ""


def without(arguments: tuple[str, ...], option: str, values: int = 1) -> tuple[str, ...]:
    """Return arguments without an option and its values."""
    at = arguments.index(option)
    return (*arguments[:at], *arguments[at + 1 + values :])


def with_value(arguments: tuple[str, ...], option: str, value: str) -> tuple[str, ...]:
    """Return arguments in which an option has another value."""
    return (*without(arguments, option), option, value)


SIX = with_value(MODEL, "--global-batch-size", "12")
DEFECTS = (
    Defect("mtp-per-token-loss", 2, (*MODEL, *PACKED, *DYNAMIC, "128", *MTP),
           expected=(*MODEL, *PACKED, *STATIC, "256", *MTP)),
    Defect("mtp-packing", 1, (*MODEL, *PACKED, *STATIC, "512", *MTP),
           expected=(*MODEL, *PACKED, *STATIC, "256", *MTP)),
    Defect("mtp-static-cp", 2, (*MODEL, *MTP, *HALVES), expected=(*MODEL, *MTP)),
    Defect("dynamic-a2a-p2p", 4, (*MODEL, *PACKED, *DYNAMIC, "64", *HIERARCHICAL),
           message="CP implementation a2a+p2p requires cp_group"),
    Defect("domain-of-six", 6, (*SIX, *PACKED, *DYNAMIC, "96"), message="KeyError: 4"),
    Defect("domain-of-six-rounded-up", 6, (*SIX, *PACKED, *DYNAMIC, "64"),
           message="Sequence length 264 requires CP size 8, but only 6 DPxCP ranks are available"),
    Defect("comm-type-ignored", 4,
           (*MODEL, *PACKED, *DYNAMIC, "64", "--cp-comm-type", "a2a"), path="p2p"),
    Defect("no-evaluation", 1,
           (*with_value(MODEL, "--eval-iters", "0"), *PACKED, *STATIC, "256"),
           message="no sample to consume"),
    Defect("pad-token", 2, (*MODEL, *SFT, *DYNAMIC, "128"), message="index out of range in self"),
    Defect("sft-without-scheduler", 2, (*MODEL, *SFT, *HALVES),
           message="incompatible function arguments: cu_seqlens is None"),
    Defect("nan-without-save", 1, with_value(MODEL, "--lr", "1e30"),
           message="expected str, bytes or os.PathLike object, not NoneType"),
)  # fmt: skip
