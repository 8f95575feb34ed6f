"""A real launch made small: everything that decides the path is kept, the rest costs less."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ringproof.errors import InputError, shown
from ringproof.launch.flags import Flags
from ringproof.launch.left_out import DATA, DROPPED, ENVIRONMENT, HALF, HARDWARE, QUANTIZED
from ringproof.launch.reading import Launch
from ringproof.launch.small.data import (
    RANDOM,
    mock_data,
    shrink_batch,
    shrink_lengths,
    shrink_steps,
)
from ringproof.launch.small.draft import Change, Draft
from ringproof.launch.small.layout import layout, shrink_layout
from ringproof.launch.small.model import shrink_experts, shrink_layers, shrink_widths

__all__ = ["Change", "SmallProgram", "shrink"]

FIXED_POINT = "Quantized training: its recipes, scales, paddings and gathered weights."
ROUNDING = "Rounding, casts and buffers of bfloat16 or float16 training."
USER_BUFFERS = "Communication that needs GPUs and their network, such as TE's user buffers."
FLASH = "Which attention kernel runs; flash-attn takes other layouts and refuses other settings."
TRITON = "A fused kernel that needs Triton; the same is computed by upstream's own PyTorch code."
BALANCING = "--moe-router-load-balancing-type"
SINKHORN = "Sinkhorn routing, which balances over a rank's own tokens: CP changes it by definition."
BALANCE = "Nothing of the path: forced balance draws random routes, which could not be compared."
FUSED = ("--moe-permute-fusion", "--moe-router-fusion", "--moe-permute-fusion-into-hybridep")


@dataclass(frozen=True)
class SmallProgram:
    """A program that is small enough for a laptop.

    Attributes:
        script: Path of the training script, as the launch gives it.
        environment: Variables that decide the path.
    """

    script: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    ranks: int
    changes: tuple[Change, ...]
    dtype: str


def shrink(
    launch: Launch,
    *,
    options: Collection[str],
    max_ranks: int = 32,
    iterations: int = 5,
    dtype: str = "float32",
) -> SmallProgram:
    """Make a launch small.

    Parallel sizes and their order, CP types and levels, schedulers, packing, dispatchers, graphs,
    recomputation and optimizers stay. DP, layers, widths, experts, lengths, batches and steps
    shrink, with what they are divided by kept, so that a launch that upstream refuses is refused.

    Args:
        options: Names of the options that this upstream knows.

    Raises:
        InputError: The launch cannot be made that small, or a size is not an integer.
    """
    draft = Draft(Flags(launch.arguments), options)
    if draft.flags.has("--yaml-cfg"):
        file = shown(draft.flags.one("--yaml-cfg"))
        raise InputError("--yaml-cfg", f"{file} is not read; give its settings as options")
    before = layout(draft.flags, launch.ranks)
    after = shrink_layout(draft, before, max_ranks)
    shrink_layers(draft, before, after)
    shrink_widths(draft, after)
    shrink_experts(draft, before, after)
    lengths = shrink_lengths(draft, before, after)
    batch = shrink_batch(draft, before, after)
    shrink_steps(draft, iterations, batch)
    mock_data(draft, lengths)
    _leave_out(draft)
    _precision(draft, dtype)
    _kernels(draft)
    _comparable(draft)
    environment = {k: v for k, v in launch.environment.items() if k.startswith(ENVIRONMENT)}
    return SmallProgram(
        script=launch.script,
        arguments=draft.flags.words,
        environment=environment,
        ranks=after.world,
        changes=tuple(draft.changes),
        dtype=dtype,
    )


def _leave_out(draft: Draft) -> None:
    """Leave out what has no effect on the path, and what needs files, hosts or GPUs."""
    # Options of data are left to `mock_data`, which puts others in their place.
    reasons = dict.fromkeys(why for why in DROPPED.values() if why != DATA)
    for why in reasons:
        names = [name for name, reason in DROPPED.items() if reason == why]
        draft.drop(names, why)
    draft.drop(HARDWARE, USER_BUFFERS)


def _precision(draft: Draft, dtype: str) -> None:
    draft.drop(QUANTIZED, FIXED_POINT)
    if dtype == "float32":
        draft.drop(HALF, ROUNDING)
    elif draft.flags.has("--fp16"):
        draft.drop([name for name in HALF if "loss" in name or name == "--fp16"], ROUNDING)
        draft.flags = draft.flags.with_("--bf16")
    if draft.flags.one("--attention-backend") == "flash":
        draft.put("--attention-backend", "fused", FLASH)
    draft.drop(("--use-flash-attn",), FLASH)


def _kernels(draft: Draft) -> None:
    """Turn off fusions whose kernels are written in Triton."""
    if draft.flags.has("--multi-latent-attention"):
        draft.put_all("--no-rope-fusion", (), TRITON)
    draft.drop(FUSED, TRITON)


def _comparable(draft: Draft) -> None:
    """Take out what draws other random numbers in another layout of ranks."""
    for name in ("--attention-dropout", "--hidden-dropout"):
        if draft.flags.one(name) not in ("0", "0.0"):
            draft.put(name, 0, RANDOM)
    draft.drop(("--moe-router-force-load-balancing", "--moe-router-force-biased"), BALANCE)
    draft.drop(("--moe-input-jitter-eps",), RANDOM)
    if "sinkhorn" in (draft.flags.get(BALANCING) or ()):
        draft.put(BALANCING, "none", SINKHORN)
        draft.put_all("--moe-router-pre-softmax", (), SINKHORN)
