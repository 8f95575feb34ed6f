"""Fewer layers, smaller widths and fewer experts, with what they are divided by kept."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from math import lcm
from types import MappingProxyType

from ringproof.errors import InputError, shown
from ringproof.launch.shell.parse import whole_number
from ringproof.launch.small.draft import Draft
from ringproof.launch.small.layout import Layout

LAYERS = "What only shows in deep models, such as errors that grow with depth."
WIDTH = "What depends on the width: matrix sizes, kernels' choices, and their rounding."
HEADS = "What depends on the size of a head, such as limits of attention kernels."
EXPERTS = "What depends on the number of experts, and loads of experts that only many tokens show."
LATENT = "What depends on the sizes of MLA's latent vectors."
STATES = "What depends on the sizes of Mamba's states and heads."
HEAD_CHANNELS = 16
WIDE = 64
MOST_STAGES = 16

#: Options with one value per layer, or a frequency.
PATTERNS = (
    "--moe-layer-freq",
    "--window-attn-skip-freq",
    "--linear-attention-freq",
    "--no-rope-freq",
    "--csa-compress-ratios",
)

#: Sizes that are shrunk to one value where they are larger.
SIZES: Mapping[str, tuple[int, str]] = MappingProxyType(
    {
        "--q-lora-rank": (32, LATENT),
        "--kv-lora-rank": (32, LATENT),
        "--qk-head-dim": (16, LATENT),
        "--qk-pos-emb-head-dim": (8, LATENT),
        "--v-head-dim": (16, LATENT),
        "--moe-ffn-hidden-size": (64, WIDTH),
        "--moe-shared-expert-intermediate-size": (64, WIDTH),
        "--moe-latent-size": (32, WIDTH),
        "--mamba-state-dim": (16, STATES),
        "--linear-key-head-dim": (16, STATES),
        "--linear-value-head-dim": (16, STATES),
    }
)


def shrink_layers(draft: Draft, before: Layout, after: Layout) -> None:
    """Shrink the number of layers, with pipeline stages and patterns over layers kept."""
    flags = draft.flags
    for name in ("--hybrid-layer-pattern", "--hybrid-override-pattern"):
        if pattern := flags.one(name):
            if not any(flags.has(option) for option in PATTERNS):
                draft.put(name, hybrid(pattern, after.pipeline), LAYERS)
            if flags.has("--num-layers") and name == "--hybrid-override-pattern":
                count = len(hybrid(pattern, after.pipeline).partition("/")[0].replace("|", ""))
                draft.put("--num-layers", count, LAYERS)
            return
    if flags.has("--pipeline-model-parallel-layout"):
        _shrink_stages(draft)
        return
    name = "--num-layers" if flags.has("--num-layers") else "--encoder-num-layers"
    count = draft.number(name, 0)
    if count < 1:
        return
    virtual = _virtual(draft, before, after, count)
    fewer = _fewer(draft, before, after, count, virtual)
    fewer = _shrink_patterns(draft, count, fewer, after.pipeline * virtual)
    draft.put(name, fewer, LAYERS)
    if name == "--encoder-num-layers" and flags.has("--decoder-num-layers"):
        draft.put("--decoder-num-layers", fewer, LAYERS)
    if flags.has("--recompute-num-layers"):
        most = max(fewer // (after.pipeline * virtual), 1)
        draft.put(
            "--recompute-num-layers", min(draft.number("--recompute-num-layers"), most), LAYERS
        )


def _virtual(draft: Draft, before: Layout, after: Layout, count: int) -> int:
    """Number of virtual stages of each pipeline stage, after it was shrunk where it is large."""
    per_stage = "--num-layers-per-virtual-pipeline-stage"
    stages_each = "--num-virtual-stages-per-pipeline-rank"
    if draft.flags.has(per_stage):
        size = max(draft.number(per_stage), 1)
        if count % (before.pipeline * size):
            return 1  # upstream refuses it, and still does
        virtual = count // (before.pipeline * size)
        draft.put(per_stage, 1, LAYERS)
    else:
        virtual = draft.number(stages_each)
    if virtual > 2 and after.pipeline * virtual > MOST_STAGES:
        virtual = 2
        if draft.flags.has(stages_each):
            draft.put(stages_each, virtual, LAYERS)
        else:
            draft.note("virtual pipeline stages", count // before.pipeline, virtual, LAYERS)
    return max(virtual, 1)


def _fewer(draft: Draft, before: Layout, after: Layout, count: int, virtual: int) -> int:
    """Number of layers after shrinking, before patterns over layers are looked at."""
    unit = after.pipeline * virtual
    first, last = "--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"
    uneven = [name for name in (first, last) if draft.flags.has(name)]
    if uneven:
        fewer = (after.pipeline - len(uneven)) * virtual
        for name in uneven:
            size = min(draft.number(name), 2) * virtual
            draft.put(name, size, LAYERS)
            fewer += size
        return fewer
    counted = ("--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split")
    extra = sum(draft.flags.has(name) for name in counted)
    rest = (count + extra) % (before.pipeline * virtual if virtual > 1 else before.pipeline)
    fewer = unit - extra + (1 if rest and unit > 1 else 0)
    # One layer hides what passes from layer to layer.
    while fewer < 2:
        fewer += unit
    return min(fewer, count)


def _shrink_patterns(draft: Draft, count: int, fewer: int, step: int) -> int:
    """Shrink patterns over layers together; return the number of layers that keeps them."""
    lists: dict[str, tuple[int, ...]] = {}
    for name in PATTERNS:
        given = draft.flags.one(name)
        if given is None:
            continue
        values = listed(given, name)
        if values is not None:
            lists[name] = values
        elif (whole_number(given) or 0) > 2:
            draft.put(name, 2, LAYERS)
    kinds = draft.flags.get("--cp-comm-type") or ()
    if len(kinds) == count and count > 1:
        lists["--cp-comm-type"] = tuple(sorted(set(kinds)).index(kind) for kind in kinds)
    layers = chosen(count, fewer, tuple(lists.values()), step)
    for name, values in lists.items():
        if len(values) != count:
            continue  # upstream refuses it, and still does
        if name == "--cp-comm-type":
            draft.put_all(name, tuple(kinds[layer] for layer in layers), LAYERS)
        else:
            draft.put(name, written([values[layer] for layer in layers]), LAYERS)
    return len(layers)


def _shrink_stages(draft: Draft) -> None:
    name = "--pipeline-model-parallel-layout"
    text = draft.flags.one(name) or ""
    parts = stages(text)
    if parts is None or any(draft.flags.has(option) for option in PATTERNS):
        return
    smaller = ["".join(dict.fromkeys(part)) for part in parts]
    draft.put(name, "|".join(smaller), LAYERS)
    count = sum(part.count("t") for part in smaller)
    draft.put("--num-layers", count, LAYERS)


def shrink_widths(draft: Draft, after: Layout) -> None:
    """Shrink hidden sizes and the channels of a head; the number of heads stays."""
    flags = draft.flags
    if not flags.has("--hidden-size"):
        return
    hidden, heads = draft.number("--hidden-size"), max(draft.number("--num-attention-heads"), 1)
    wide = WIDE if WIDE % after.tensor == 0 else 16 * after.tensor
    mamba = flags.has("--hybrid-layer-pattern") or flags.has("--hybrid-override-pattern")
    wide *= 2 if mamba else 1
    if hidden <= wide:
        return
    divides = hidden % after.tensor == 0
    channels = draft.number("--kv-channels", 0)
    if (channels or hidden % heads == 0) and draft.knows("--kv-channels"):
        channels = channels or hidden // heads
        # Kernels ask for multiples of 8: what upstream refuses is still refused.
        smaller = HEAD_CHANNELS + channels % 8 if channels > HEAD_CHANNELS else channels
        draft.put("--kv-channels", smaller, HEADS)
        draft.put("--hidden-size", wide if divides else wide + 8, WIDTH)
    if flags.has("--ffn-hidden-size"):
        feed = draft.number("--ffn-hidden-size")
        unit = lcm(after.tensor, 8)
        draft.put("--ffn-hidden-size", min(feed, 2 * wide + feed % unit), WIDTH)
    for name, (size, hides) in SIZES.items():
        if draft.number(name, 0) > size:
            draft.put(name, size, hides)
    if mamba:
        draft.put("--mamba-head-dim", 8, STATES)
        draft.put("--mamba-state-dim", 16, STATES)


def shrink_experts(draft: Draft, before: Layout, after: Layout) -> None:
    """Shrink the number of experts, divisible by EP and by the router's groups as before."""
    experts = draft.number("--num-experts", 0)
    groups = draft.number("--moe-router-num-groups")
    topk = draft.number("--moe-router-topk", 2)
    if experts < 1 or experts % before.expert or experts % groups or topk > experts:
        return
    unit = lcm(after.expert, groups)
    # Two experts on each rank, and twice as many as a token chooses, so that routes differ.
    wanted = max(2 * unit if experts >= 2 * unit else unit, min(2 * topk, experts))
    smaller = -(-wanted // unit) * unit
    if smaller < experts:
        draft.put("--num-experts", smaller, EXPERTS)


LONGEST = 100_000
LONGEST_SEGMENT = 4


def listed(expression: str, name: str) -> tuple[int, ...] | None:
    """Return a pattern's values, or ``None`` where the expression is a plain number.

    Args:
        expression: Lists of integers joined by ``+`` and repeated by ``*``.

    Raises:
        InputError: The expression is something else.

    >>> listed("([0]*2+[1]*3)*2", "--moe-layer-freq")
    (0, 0, 1, 1, 1, 0, 0, 1, 1, 1)
    """
    if "[" not in expression:
        return None
    try:
        values = _value(ast.parse(expression.strip(), mode="eval").body)
        if not isinstance(values, list):
            raise ValueError(expression)
        return tuple(values)
    except (SyntaxError, ValueError, RecursionError) as problem:
        sentence = (
            f"{shown(expression)} is not a pattern over layers; give lists of integers joined by + "
            "and repeated by *"
        )
        raise InputError(name, sentence) from problem


def _value(node: ast.expr) -> list[int] | int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _value(node.operand)
        if isinstance(inner, int):
            return -inner
    if isinstance(node, ast.List):
        values = [_value(item) for item in node.elts]
        return [item for item in values if isinstance(item, int)]
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
            return left + right
        if isinstance(node.op, ast.Mult) and isinstance(left, list) and isinstance(right, int):
            if len(left) * right > LONGEST:
                raise ValueError("too long")
            return left * right
        if isinstance(node.op, ast.Mult) and isinstance(left, int) and isinstance(right, list):
            return right * left
    raise ValueError(ast.dump(node))


def written(values: Sequence[int]) -> str:
    """Return a pattern as an expression.

    >>> written((0, 1, 1))
    '[0,1,1]'
    """
    return "[" + ",".join(str(value) for value in values) + "]"


def chosen(count: int, fewer: int, patterns: Sequence[Sequence[int]], step: int) -> tuple[int, ...]:
    """Choose layers so that every value of every pattern still occurs.

    Args:
        fewer: Number of layers wanted.
        patterns: Values by layer.
        step: Number of layers that are added at a time.

    Returns:
        Indices of layers, ascending, with the first and the last layer among them.

    >>> chosen(61, 2, [[0] * 3 + [1] * 58], 1)
    (0, 60)
    >>> chosen(12, 2, [[1, 1, 1, 0] * 3], 2)
    (0, 11)
    """
    size = min(fewer, count)
    while True:
        layers = tuple(index * (count - 1) // max(size - 1, 1) for index in range(size))
        kept = all({p[i] for i in layers} == set(p) for p in patterns if len(p) == count)
        if kept or size + step > count:
            return layers if kept else tuple(range(count))
        size += step


def hybrid(pattern: str, pipeline: int) -> str:
    """Return a shorter hybrid pattern in which every segment keeps its kinds of layers.

    Args:
        pattern: Symbols of layers, with ``|`` between pipeline segments and ``/`` before MTP.
    """
    main, separator, rest = pattern.partition("/")
    joint = "|" if "|" in main else ""
    segments = main.split("|") if joint else [main] * pipeline
    if not joint and len(main) <= LONGEST_SEGMENT * pipeline:
        return pattern
    return joint.join(map(_kinds, segments)) + separator + rest


def _kinds(segment: str) -> str:
    """Every kind of layer once, in order of appearance."""
    if len(segment) <= LONGEST_SEGMENT:
        return segment
    return "".join(dict.fromkeys(segment))


def stages(text: str) -> list[str] | None:
    """Return the stages of a pipeline layout, or ``None`` where it is not understood.

    >>> stages("Et*3|(tt|)*2tm|L")
    ['Ettt', 'tt', 'tt', 'tm', 'L']
    """
    plain = text.replace(",", "").replace(" ", "")
    while found := re.search(r"\(([^()]*)\)(?:\*(\d+))?", plain):
        plain = plain[: found.start()] + found[1] * int(found[2] or 1) + plain[found.end() :]
    plain = re.sub(r"([EtmL|])\*(\d+)", lambda match: match[1] * int(match[2]), plain)
    return plain.split("|") if re.fullmatch(r"[EtmL|]*", plain) else None
