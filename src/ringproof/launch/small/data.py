"""Shorter sequences, smaller batches, few iterations, and mock data of the same kind."""

from __future__ import annotations

import json
import re

from ringproof.launch.left_out import DATA, DROPPED
from ringproof.launch.shell.parse import whole_number
from ringproof.launch.small.draft import Draft, stepped
from ringproof.launch.small.layout import Layout

LENGTH = "What only long sequences show: memory, and rounding of long sums."
BUDGET = "Nothing by itself: it shrinks with the sequences, and grows where the domain shrinks."
BATCH = "What depends on many microbatches or on large micro batches."
STEPS = "What only shows after many steps."
RATE = "The launch's own learning rates; these move weights so far that wrong gradients show."
VOCABULARY = "What depends on the vocabulary's size and on a real tokenizer."
RANDOM = "Dropout, whose random numbers differ between layouts of ranks."
TOKENS = 256
VOCABULARY_SIZE = 255
SHORTEST = 8
RATE_AT_LEAST = 1e-3
VARLEN_CONFIG = "--varlen-mock-dataset-config-json"
SFT_CONFIG = "--sft-mock-dataset-config-json"
SET = ("--mock-data", "--tokenizer-type", "--vocab-size", "--num-workers",
       "--null-tokenizer-pad-id", VARLEN_CONFIG, SFT_CONFIG)  # fmt: skip


def shrink_lengths(draft: Draft, before: Layout, after: Layout) -> tuple[int, int]:
    """Shrink sequence lengths and everything in proportion to them.

    A length that does not divide by what CP and TP need keeps its remainder.

    Returns:
        Sequence length before and after.
    """
    name = "--seq-length" if draft.flags.has("--seq-length") else "--encoder-seq-length"
    length = draft.number(name, 0)
    if length < 1:
        return 1, 1
    unit, new = before.unit, after.unit
    if length % unit:  # the argument checks do not ask for it
        unit, new = before.static_unit, after.static_unit
    smaller = stepped(length, unit, max(TOKENS, 2 * new))
    if unit != new:
        rest = length % unit
        whole = smaller - (smaller % unit if smaller < length else 0)
        smaller = whole - whole % new + (rest % new or new // 2 if rest else 0)
    draft.put(name, smaller, LENGTH)
    positions = draft.number("--max-position-embeddings", 0)
    if positions:
        draft.put("--max-position-embeddings", positions * smaller // length, LENGTH)
    for other in ("--decoder-seq-length", "--original-max-position-embeddings"):
        if draft.flags.has(other):
            draft.put(other, max(draft.number(other) * smaller // length, 1), LENGTH)
    _shrink_window(draft, length, smaller)
    _shrink_budget(draft, before, after, (length, smaller))
    return length, smaller


def _shrink_window(draft: Draft, length: int, smaller: int) -> None:
    given = draft.flags.get("--window-size")
    if not given:
        return

    def scaled(match: re.Match[str]) -> str:
        size = int(match.group())
        return str(max(size * smaller // length, 1)) if size > 0 else match.group()

    values = tuple(re.sub(r"-?\d+", scaled, value) for value in given)
    draft.put_all("--window-size", values, LENGTH)


def _shrink_budget(draft: Draft, before: Layout, after: Layout, lengths: tuple[int, int]) -> None:
    name = "--max-seqlen-per-dp-cp-rank"
    length, smaller = lengths
    budget = draft.number(name, 0)
    if budget < 1:
        return
    scaled = budget * smaller * before.domain
    enough = budget * before.domain >= length
    exact = -(-scaled // (length * after.domain)) if enough else scaled // (length * after.domain)
    unit = SHORTEST if enough else 1
    value = max(-(-exact // unit) * unit, 1)
    draft.put(name, value, BUDGET)
    alignment = whole_number(draft.flags.one("--pad-packed-seq-alignment") or "")
    if alignment is not None:
        padded = value if alignment == budget else max(alignment * value // budget, 1)
        draft.put("--pad-packed-seq-alignment", padded, BUDGET)


def shrink_batch(draft: Draft, before: Layout, after: Layout) -> int:
    """Shrink batch sizes; the number of microbatches keeps what pipelines need.

    Returns:
        The global batch size.
    """
    draft.drop(("--rampup-batch-size",), "Batch sizes that grow during the training.")
    packed = _packs(draft)
    pairs = (("--micro-batch-size", "--global-batch-size"),
             ("--eval-micro-batch-size", "--eval-global-batch-size"))  # fmt: skip
    for micro_name, global_name in pairs:
        if not draft.flags.has(micro_name) and not draft.flags.has(global_name):
            continue
        micro = max(draft.number(micro_name, draft.number("--micro-batch-size")), 1)
        whole = draft.number(global_name, 0)
        # More than one sample shows what goes wrong between the samples of a micro batch.
        smaller = min(micro, 2)
        if draft.flags.has(micro_name):
            draft.put(micro_name, smaller, BATCH)
        if whole:
            step = micro * before.data
            count = _microbatches(draft, max(whole // step, 1), after.pipeline)
            value = smaller * after.data * count
            if packed:
                # Enough short sequences for a scheduler to choose: two packs of mean length 64.
                value = max(value, min(whole, -(-2 * TOKENS // 64 // value) * value))
            # A batch that does not divide stays one that does not: upstream refuses it.
            value += (smaller * after.data + 1) // 2 if whole % step else 0
            draft.put(global_name, min(value, whole), BATCH)
    size = draft.number("--micro-batch-size") * after.data
    return draft.number("--global-batch-size", size)


def _microbatches(draft: Draft, count: int, pipeline: int) -> int:
    """Microbatches per step: the pipeline's own number, with its remainder."""
    group = draft.number("--microbatch-group-size-per-virtual-pipeline-stage", pipeline)
    wanted = max(pipeline, group, 2)
    if count <= wanted:
        return count
    return min(count, wanted + count % max(pipeline, 1))


def _packs(draft: Draft) -> bool:
    names = ("--sft", "--use-varlen-dataset", "--sequence-packing-scheduler",
             "--dynamic-context-parallel", "--hybrid-context-parallel")  # fmt: skip
    return any(draft.flags.has(name) for name in names)


def shrink_steps(draft: Draft, iterations: int, batch: int) -> None:
    """Shrink the number of steps and the learning-rate schedule, and evaluate once."""
    real = draft.number("--train-iters", 0)
    fewer_steps(draft, iterations, batch)
    rate = draft.flags.one("--lr")
    try:
        low = rate is not None and float(rate) < RATE_AT_LEAST
    except ValueError:
        low = False
    if low:
        draft.put("--lr", f"{RATE_AT_LEAST:g}", RATE)
    if draft.number("--eval-iters", 100) > 0:
        draft.put("--eval-iters", 1, STEPS)
    if draft.flags.has("--eval-interval"):  # where it is missing, upstream may refuse the launch
        often = not real or draft.number("--eval-interval") < real
        draft.put("--eval-interval", (iterations + 1) // 2 if often else 1000, STEPS)
    draft.put("--log-interval", 1, "Nothing: each step is logged.")


def fewer_steps(draft: Draft, iterations: int, batch: int) -> None:
    """Shrink the number of steps, and what of the schedule counts them."""
    if draft.flags.has("--train-samples"):
        draft.put("--train-samples", iterations * batch, STEPS)
        kind, unit = "samples", batch
    else:
        draft.put("--train-iters", iterations, STEPS)
        kind, unit = "iters", 1
    for name in ("--lr-decay-", "--lr-wsd-decay-"):
        if draft.flags.has(name + kind):
            size = iterations * unit if name == "--lr-decay-" else unit
            draft.put(name + kind, size, STEPS)
    if draft.number("--lr-warmup-" + kind, 0) > 0:
        draft.put("--lr-warmup-" + kind, unit, STEPS)


def mock_data(draft: Draft, lengths: tuple[int, int]) -> None:
    """Put mock data of the same kind in the place of real data."""
    flags = draft.flags
    was_mock = flags.has("--mock-data")
    draft.drop([name for name, why in DROPPED.items() if why == DATA and name not in SET], DATA)
    draft.put_all("--mock-data", (), DATA)
    draft.put("--tokenizer-type", "NullTokenizer", VOCABULARY)
    draft.put("--vocab-size", VOCABULARY_SIZE, VOCABULARY)
    draft.put("--make-vocab-size-divisible-by", 32, VOCABULARY)
    draft.put("--split", "99,1,0", DATA)
    draft.put("--num-workers", 0, "Workers that load data in other processes.")
    for name, kind in ((VARLEN_CONFIG, "--use-varlen-dataset"), (SFT_CONFIG, "--sft")):
        if not flags.has(kind):
            continue
        draft.put("--null-tokenizer-pad-id", 0, VOCABULARY)
        config = flags.one(name)
        if config is not None or not was_mock:
            text = json.dumps(_scaled(config, lengths), separators=(",", ":"))
            draft.put(name, text, LENGTH)


def _scaled(config: str | None, lengths: tuple[int, int]) -> dict[str, object]:
    """A distribution of lengths in proportion; lognormal where the launch gives none."""
    length, smaller = lengths
    default = {"mode": "distribution", "type": "lognormal", "format": "thd",
               "min_seq_len": length // 16, "max_seq_len": length, "mean_seq_len": length // 3,
               "lognormal_sigma": 1.1}  # fmt: skip
    try:
        data = json.loads(config) if config else default
    except ValueError:
        data = default
    if not isinstance(data, dict) or data.get("mode") != "distribution":
        data = default
    found: dict[str, object] = dict(data)
    for name in ("min_seq_len", "max_seq_len", "mean_seq_len"):
        if isinstance(value := data.get(name), int):
            found[name] = max(value * smaller // length, SHORTEST)
    return found
