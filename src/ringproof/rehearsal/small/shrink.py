"""A real launch made small: everything that decides the path is kept, the rest costs less."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from ringproof.errors import InputError
from ringproof.rehearsal.launch.flags import Flags
from ringproof.rehearsal.launch.reading import Launch
from ringproof.rehearsal.small.data import (
    RANDOM,
    mock_data,
    shrink_batch,
    shrink_lengths,
    shrink_steps,
)
from ringproof.rehearsal.small.draft import Change, Draft
from ringproof.rehearsal.small.layout import DYNAMIC, layout, shrink_layout
from ringproof.rehearsal.small.model import shrink_experts, shrink_layers, shrink_widths
from ringproof.rehearsal.small.options import DATA, DROPPED, ENVIRONMENT, HALF, HARDWARE, QUANTIZED

__all__ = ["Change", "Small", "feature", "shrink"]

DTYPES = ("float32", "bfloat16")
FIXED_POINT = "Quantized training: its recipes, scales, paddings and gathered weights."
ROUNDING = "Rounding, casts and buffers of bfloat16 or float16 training."
USER_BUFFERS = "Communication that needs GPUs and their network, such as TE's user buffers."
FLASH = "Which attention kernel runs; flash-attn takes other layouts and refuses other settings."
TRITON = "A fused kernel that needs Triton; the same is computed by upstream's own PyTorch code."
BALANCING = "--moe-router-load-balancing-type"
SINKHORN = "Sinkhorn routing, which balances over a rank's own tokens: CP changes it by definition."
BALANCE = "Nothing of the path: forced balance draws random routes, which could not be compared."
FUSED = ("--moe-permute-fusion", "--moe-router-fusion", "--moe-permute-fusion-into-hybridep")
HIERARCHICAL = "a2a+p2p"


@dataclass(frozen=True)
class Small:
    """A program that is small enough for a laptop.

    Attributes:
        script: Path of the training script in the Megatron folder.
        environment: Variables that decide the path.
        feature: ``dynamic-cp``, ``a2a+p2p``, ``p2p``, ``a2a``, ``all_gather`` or ``none``.
    """

    script: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    ranks: int
    changes: tuple[Change, ...]
    feature: str
    dtype: str


def shrink(
    launch: Launch,
    *,
    options: Collection[str],
    max_ranks: int = 32,
    iterations: int = 5,
    dtype: str = "float32",
) -> Small:
    """Make a launch small.

    Parallel sizes and their order, CP types and levels, schedulers, packing, dispatchers, graphs,
    recomputation and optimizers stay. DP, layers, widths, experts, lengths, batches and steps
    shrink, with what they are divided by kept, so that a launch that upstream refuses is refused.

    Args:
        options: Names of the options that this upstream knows.

    Raises:
        InputError: The launch cannot be made that small, or a size is not an integer.
    """
    if dtype not in DTYPES:
        raise InputError(
            "--dtype", dtype, "the dtype is not supported", f"give {DTYPES[0]} or {DTYPES[1]}"
        )
    draft = Draft(Flags(launch.arguments), options)
    if draft.flags.has("--yaml-cfg"):
        remedy = "give its settings as options"
        raise InputError("--yaml-cfg", draft.flags.one("--yaml-cfg"), "it is not read", remedy)
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
    return Small(
        script=_script(launch.script),
        arguments=draft.flags.words,
        environment=environment,
        ranks=after.world,
        changes=tuple(draft.changes),
        feature=feature(draft.flags),
        dtype=dtype,
    )


def feature(flags: Flags) -> str:
    """Return which kind of context parallelism a command line asks for.

    Raises:
        InputError: The context-parallel size is not an integer.
    """
    if any(flags.has(name) for name in DYNAMIC):
        return "dynamic-cp"
    if flags.integer("--context-parallel-size", 1) < 2:
        return "none"
    kinds = flags.get("--cp-comm-type") or ("p2p",)
    return HIERARCHICAL if HIERARCHICAL in kinds else kinds[0]


def _leave_out(draft: Draft) -> None:
    """Leave out what has no effect on the path, and what needs files, hosts or GPUs."""
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


def _script(path: str) -> str:
    """Return a script's path within a checkout, as far as its own path tells."""
    parts = [part for part in PurePosixPath(path).parts if part not in (".", "..")]
    if path.startswith("/"):
        known = ("examples", "tools", "megatron", "tests", "tasks", "experimental")
        for index, part in enumerate(parts):
            if part in known:
                return "/".join(parts[index:])
        return parts[-1]
    return "/".join(parts)
