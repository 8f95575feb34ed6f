"""A launch at its full size: only what needs files, hosts or many steps is replaced."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ringproof.errors import InputError, shown
from ringproof.launch.flags import Flags
from ringproof.launch.left_out import DATA, DROPPED, ENVIRONMENT, HARDWARE, QUANTIZED
from ringproof.launch.reading import Launch
from ringproof.launch.small.data import SET, fewer_steps
from ringproof.launch.small.draft import Change, Draft
from ringproof.launch.small.layout import DYNAMIC, Layout, layout

STEPS = 2
"""Optimizer states appear in the first step; the second shows the memory of all others."""
PACKED = ("--sft", "--use-varlen-dataset", *DYNAMIC)
"""Options of launches that pack a batch, so that its size decides how full microbatches are."""
REPACKED = ("--use-varlen-dataset", "--sequence-packing-scheduler", *DYNAMIC)
"""Those of launches that form microbatches from the whole batch."""
OFFLOADING = "--fine-grained-activation-offloading"
VOCABULARIES: Mapping[str, int] = MappingProxyType({"GPT2BPETokenizer": 50257})
"""Entries of tokenizers whose files are always the same."""
NULL_TOKENIZER_IDS = "--null-tokenizer-pad-id"
"""Option of the upstreams whose tokenizer without files has as many entries as it is told.

It came with Megatron-Core 0.18; before it, there is one entry more, for the end of a document.
"""
DEFAULT = "GPT2BPETokenizer"
"""Upstream's tokenizer where a launch names none and has a file of merges."""
NO_DATA = "Nothing of the memory of a GPU: tokens, lengths of documents, blends and splits."
NO_VOCABULARY = "Nothing: the vocabulary has as many entries."
FEWER = (
    "Nothing of the memory once every pipeline stage has been filled. TFLOP and traffic of a step "
    "are those of fewer microbatches; only gradients and parameters are sent once in a step."
)
NO_VALUES = "Checks of values: most tensors have no content, so that a loss can be NaN."
NO_EVALUATION = "Evaluation, whose memory is smaller."
FP8 = "FP8 and FP4: the run is in the launch's other precision, so that the memory differs."
GRAPHS = "CUDA graphs and the memory pools that they keep."
FUSED_ROUTER = "A fused kernel of the router, which keeps less than upstream's own PyTorch code."
FLASH = "flash-attn, which keeps the same tensors and has larger temporaries in the backward pass."
RAMP = "Batch sizes that grow during the training."
ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Variables with the settings of torch's caching allocator; torch reads the first that is set."""
SETTINGS_SEEN = ("expandable_segments:True", "expandable_segments:False")
BETWEEN_SETTINGS = re.compile(r",(?![^\[]*\])")
OTHER_SETTINGS = (
    "What other settings of torch's allocator do: only expandable_segments is followed."
)
RELEASING = ("--log-params-norm",)
"""Options of logs for which upstream's FSDP gives the weights back that it has gathered."""
CUDA_GRAPHS = (
    "--cuda-graph-impl", "--cuda-graph-scope", "--cuda-graph-modules", "--enable-cuda-graph",
    "--external-cuda-graph", "--cuda-graph-warmup-steps", "--cuda-graph-use-single-mempool",
    "--cuda-graph-retain-backward-graph",
)  # fmt: skip


@dataclass(frozen=True)
class FullProgram:
    """A program at full size.

    Attributes:
        arguments: Command line of the script.
        layout: Sizes of the layout of ranks.
        changes: What differs from the launch, and what that hides.
        microbatches: Of a step here, at least 1.
        launch_microbatches: Of a step of the launch, at least 1.
    """

    script: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    layout: Layout
    changes: tuple[Change, ...]
    microbatches: int
    launch_microbatches: int

    @property
    def ranks(self) -> int:
        """World size."""
        return self.layout.world

    @property
    def first_microbatches(self) -> int:
        """Microbatches that the first step needs, which makes the optimizer's states; 0 for all.

        Which free blocks torch's allocator hands out whole depends on all that ran before. What
        upstream offloads in later steps, it decides by the microbatches of the first one.
        """
        unlike = self.microbatches % (2 * self.layout.pipeline)
        kept = any(map(Flags(self.arguments).has, (*PACKED, OFFLOADING)))
        whole = kept or unlike or not expandable(self.environment)
        return 0 if whole else self.microbatches // 2


def full_size(
    launch: Launch,
    *,
    options: Collection[str],
    vocabulary: int | None = None,
    alike: bool = False,
) -> FullProgram:
    """Let a launch run without files, for two steps, with every size as it is.

    Args:
        options: Names of the options that this upstream knows.
        vocabulary: Entries of the tokenizer's vocabulary; ``None`` where the launch says it.
        alike: Whether conversations of ``--sft`` count as alike: their lengths decide memory alone.

    Raises:
        InputError: A size is not an integer, or the vocabulary's is not known.
    """
    draft = Draft(Flags(launch.arguments), options)
    if draft.flags.has("--yaml-cfg"):
        file = shown(draft.flags.one("--yaml-cfg"))
        raise InputError("--yaml-cfg", f"{file} is not read; give its settings as options")
    sizes = layout(draft.flags, launch.ranks)
    _tokens(draft, vocabulary)
    step = draft.number("--micro-batch-size") * sizes.data
    whole = draft.number("--global-batch-size", step)
    batch = _batch(draft, sizes, step, whole, REPACKED if alike else PACKED)
    fewer_steps(draft, STEPS, batch)
    packs = any(map(draft.flags.has, PACKED))
    draft.put("--eval-iters", int(packs), NO_EVALUATION)  # these have no data set of 0 samples
    draft.put_all("--no-check-for-nan-in-loss-and-grad", (), NO_VALUES)
    draft.put("--rerun-mode", "disabled", NO_VALUES)
    draft.put("--log-interval", 1, "Nothing: each step is logged.")
    kept = RELEASING if draft.flags.has("--use-megatron-fsdp") else ()
    lost = {name: why for name, why in DROPPED.items() if why != DATA and name not in kept}
    for why in dict.fromkeys(lost.values()):
        draft.drop([name for name, reason in lost.items() if reason == why], why)
    if packs:  # the program ends where it would evaluate
        draft.put("--exit-interval", STEPS, NO_EVALUATION)
    draft.drop(HARDWARE, "Buffers of communication that need GPUs, such as TE's user buffers.")
    draft.drop(QUANTIZED, FP8)
    draft.drop(CUDA_GRAPHS, GRAPHS)
    draft.drop(("--moe-router-fusion",), FUSED_ROUTER)
    draft.drop(("--use-flash-attn",), FLASH)
    if draft.flags.one("--attention-backend") == "flash":
        draft.put("--attention-backend", "fused", FLASH)
    seen = (*ENVIRONMENT, *ALLOCATOR)
    _allocator(draft, launch.environment)
    environment = {k: v for k, v in launch.environment.items() if k.startswith(seen)}
    counts = (max(size // step, 1) if step > 0 else 1 for size in (batch, whole))
    return FullProgram(
        launch.script, draft.flags.words, environment, sizes, tuple(draft.changes), *counts
    )


def _tokens(draft: Draft, vocabulary: int | None) -> None:
    """Put mock data and a tokenizer without files in the place of real ones."""
    end = int(NULL_TOKENIZER_IDS not in draft.options)
    entries = vocabulary or _vocabulary(draft.flags, end)
    draft.drop([n for n, why in DROPPED.items() if why == DATA and n not in SET], NO_DATA)
    draft.put_all("--mock-data", (), NO_DATA)
    draft.put("--tokenizer-type", "NullTokenizer", NO_VOCABULARY)
    draft.put("--vocab-size", entries - end, NO_VOCABULARY)
    draft.put("--num-workers", 0, NO_DATA)
    if draft.flags.has("--sft") or draft.flags.has("--use-varlen-dataset"):
        draft.put(NULL_TOKENIZER_IDS, 0, NO_VOCABULARY)


def _vocabulary(flags: Flags, end: int) -> int:
    """Return the entries of the launch's vocabulary.

    Args:
        end: Entries that upstream's tokenizer without files has besides those of ``--vocab-size``.

    Raises:
        InputError: It is in a file.
    """
    kind = flags.one("--tokenizer-type") or (DEFAULT if flags.has("--merge-file") else "")
    if flags.has("--vocab-size"):
        return flags.integer("--vocab-size", 0) + (end if kind == "NullTokenizer" else 0)
    if kind in VOCABULARIES:
        return VOCABULARIES[kind]
    sentence = (
        f"how many entries the vocabulary of {shown(kind or 'no tokenizer')} has is in its files; "
        "give their number with --vocabulary"
    )
    raise InputError("--vocabulary", sentence)


def _settings(environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return the settings of torch's allocator with the name of their variable."""
    name = next((name for name in ALLOCATOR if name in environment), "")
    return name, BETWEEN_SETTINGS.split(environment.get(name, "").replace(" ", ""))


def expandable(environment: Mapping[str, str]) -> bool:
    """Return whether torch's allocator would split every block."""
    return SETTINGS_SEEN[0] in _settings(environment)[1]


def _allocator(draft: Draft, environment: Mapping[str, str]) -> None:
    """Record the settings of torch's allocator that change nothing here."""
    name, given = _settings(environment)
    others = [one for one in given if one and one not in SETTINGS_SEEN]
    if others:
        draft.note(name, ",".join(others), "", OTHER_SETTINGS)


def _batch(draft: Draft, sizes: Layout, step: int, batch: int, packing: Sequence[str]) -> int:
    """Lower the number of microbatches where further ones only repeat; return the batch size.

    Args:
        step: Sequences of one microbatch on all replicas.
        batch: Batch size of the launch.
        packing: Options with which it is not lowered.
    """
    draft.drop(("--rampup-batch-size",), RAMP)
    group = draft.number("--microbatch-group-size-per-virtual-pipeline-stage", sizes.pipeline)
    enough = 2 * max(sizes.pipeline, group, 1) * step
    packs = any(map(draft.flags.has, packing))
    if step > 0 and batch > enough and batch % step == 0 and not packs:
        rest = batch % (step * sizes.pipeline)
        draft.put("--global-batch-size", enough + rest, FEWER)
        return enough + rest
    return batch
