"""A rehearsal as lines of text for a terminal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from ringproof.rehearsal.verdict.agreement import Agreement
from ringproof.rehearsal.verdict.path import GroupUse, PathTaken
from ringproof.rehearsal.verdict.variant import CODE, OTHER_ATTENTION, Rehearsal, Variant

LABEL = 10
MOST_GROUPS = 8
MOST_TEXT = 600
UNITS = ("B", "KiB", "MiB", "GiB")


def lines(rehearsal: Rehearsal) -> Iterator[str]:
    """Return the lines that describe a rehearsal, without line ends."""
    for variant in rehearsal.variants:
        if rehearsal.against is not None:
            yield f"== {variant.name} =="
        yield from _variant(variant, None if variant is rehearsal.main else rehearsal.main)
        yield ""
    if rehearsal.against is not None:
        yield "== between the two =="
        for label, text in between_lines(rehearsal.main, rehearsal.against, rehearsal.between):
            yield _row(label, text)
        yield ""
    yield _row("Upstream", CODE["upstream"])
    yield _row("Stand-ins", CODE["stand_ins"])
    yield _row("Not shown", CODE["cannot_show"])
    yield _row("Time", f"{rehearsal.seconds:.1f} s in all")


def size(number: float) -> str:
    """Return a number of bytes in words."""
    for unit in UNITS[:-1]:
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} {UNITS[-1]}"


def numbers(ranks: Sequence[int]) -> str:
    """Return ranks in words, such as ``0-3, 8``."""
    runs = groupby(enumerate(sorted(ranks)), lambda item: item[1] - item[0])
    ends = [(members[0][1], members[-1][1]) for members in (list(run) for _, run in runs)]
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in ends)


def waiting_lines(waiting: Mapping[int, str]) -> Iterator[str]:
    """Return one line for all ranks that wait for the same."""
    by_text: dict[str, list[int]] = defaultdict(list)
    for rank, text in waiting.items():
        by_text[text].append(rank)
    for text, ranks in sorted(by_text.items(), key=lambda item: item[1]):
        yield f"{'ranks' if len(ranks) > 1 else 'rank'} {numbers(ranks)} in {text}"


def between_lines(
    main: Variant, against: Variant, agreement: Agreement | None
) -> Iterator[tuple[str, str]]:
    """Return what two variants have in common and where they part, each with a label."""
    if agreement is None:
        lost = [one.name for one in (main, against) if not one.losses]
        yield "Losses", f"not compared, because there are none of {' and '.join(lost)}"
    elif not any(item.relative for item in agreement.differences):
        yield "Losses", "losses and gradient norms of the two are equal in every digit"
    else:
        norm = agreement.largest_grad_norm
        norms = "" if norm is None else f" Gradient norms differ by at most {norm.relative:.2g}."
        yield "Losses", f"{agreement.reason}{norms}"
    taken = [_taken(one.path) for one in (main, against)]
    each = f"{main.name}: {taken[0]}; {against.name}: {taken[1]}"
    yield "Paths", f"the same: {taken[0]}" if taken[0] == taken[1] else each
    sent = [sum(group.bytes for group in one.path.groups) for one in (main, against)]
    yield "Sent", f"{main.name}: {size(sent[0])}; {against.name}: {size(sent[1])}"


def _taken(path: PathTaken) -> str:
    calls = ", ".join(f"{count} in {count.calls} calls" for count in path.taken)
    return calls or "no attention call"


def _variant(variant: Variant, first: Variant | None) -> Iterator[str]:
    """Return the lines of a variant; what it shares with the one before is not said again."""
    yield _row("Verdict", variant.headline)
    small = variant.small
    ranks = f", rehearsed on {_ranks(small.ranks)} in {variant.dtype}" if small else ""
    launched = f"{variant.source}: {variant.script}, {_ranks(variant.ranks)}"
    yield _row("Launch", f"{launched}{ranks}")
    yield _row("Code", f"{variant.megatron}, Transformer Engine {variant.engine}")
    for note in variant.notes:
        yield _row("Note", note)
    yield from _starts(variant)
    if variant.path.taken or variant.starts:
        yield from _path(variant.path)
    if variant.starts and not variant.own_attention:
        yield _row("Attention", OTHER_ATTENTION)
    if variant.starts:
        yield from _agrees(variant, again=first is not None and first.starts)
    said = () if first is None else first.changes
    changes = [change for change in variant.changes if change not in said]
    if len(changes) < len(variant.changes):
        others = "everything else is" if changes else "everything is"
        yield _row("Shrunk", f"{others} shrunk as in the first variant")
    if changes:
        yield _row("Shrunk", "what was changed, and what the change can hide:")
    for change in changes:
        text = f"{change.what}: {change.before or 'not given'} -> {change.after or 'left out'}"
        yield _row("", f"{text}. {change.hides}".rstrip())
    if variant.outcome is not None:
        yield _row("Logs", str(variant.outcome.folder))


def _starts(variant: Variant) -> Iterator[str]:
    outcome, refusal = variant.outcome, variant.refusal
    if refusal is None:
        assert outcome is not None
        text = f"yes: {len(outcome.losses)} iterations in {outcome.seconds:.1f} s"
        yield _row("Starts", f"{text}, {size(outcome.memory_bytes)} of memory")
        return
    message = refusal.message
    shown = message if len(message) <= MOST_TEXT else f"{message[:MOST_TEXT]} ..."
    yield _row("Starts", f"no: {shown}")
    who = "no rank was started" if refusal.rank is None else f"rank {refusal.rank}"
    where = f", {refusal.file}:{refusal.line}" if refusal.file else ""
    yield _row("", f"{who}{where}, after {refusal.iteration} iterations")
    for line in waiting_lines(refusal.waiting):
        yield _row("", f"waits: {line}")
    for pitfall in refusal.pitfalls:
        yield _row("Pitfall", f"{pitfall.skill}, {pitfall.id}: {pitfall.cause}")
        yield _row("Remedy", pitfall.remedy)


def _path(path: PathTaken) -> Iterator[str]:
    verdict = "as asked" if path.as_asked else "not as asked"
    yield _row("Path", f"{verdict} ({path.asked}): {_taken(path)}")
    for departure in path.departures:
        yield _row("", departure)
    if len(path.cp_sizes) > 1:
        sizes = ", ".join(f"{size} ({number}x)" for size, number in path.cp_sizes.items())
        yield _row("", f"CP sizes of the groups in microbatches: {sizes}")
    for remark in path.remarks:
        yield _row("", remark)
    if path.tokens:
        counts = sorted(path.tokens.values())
        spread = f"{counts[0]} to {counts[-1]}" if counts[0] != counts[-1] else str(counts[0])
        yield _row("", f"tokens per rank: {spread}")
    yield from _groups([group for group in path.groups if group.bytes and len(group.ranks) > 1])


def _groups(groups: Sequence[GroupUse]) -> Iterator[str]:
    """Return a line for each kind of group, the ones that carry most bytes first."""
    kinds: dict[tuple[str, int], list[GroupUse]] = defaultdict(list)
    for group in groups:
        kinds[group.group, len(group.ranks)].append(group)
    ordered = sorted(kinds.items(), key=lambda item: -sum(group.bytes for group in item[1]))
    for index, ((name, width), members) in enumerate(ordered[:MOST_GROUPS]):
        sent = size(sum(group.bytes for group in members))
        ranks = "; ".join(numbers(group.ranks) for group in members[:4])
        more = "" if len(members) <= 4 else "; ..."
        count = f"{len(members)} x {width} ranks"
        yield _row("" if index else "Groups", f"{name}: {count} ({ranks}{more}), {sent} sent")
    if len(ordered) > MOST_GROUPS:
        yield _row("", f"and {len(ordered) - MOST_GROUPS} more kinds, see --json")


def _agrees(variant: Variant, *, again: bool) -> Iterator[str]:
    agreement = variant.agreement
    for race in variant.races:
        yield _row("Race", f"{race}; on a GPU the send may read other data")
    said = "yes: " if agreement.agrees else "" if agreement.agrees is None else "no: "
    yield _row("Agrees", f"{said}{agreement.reason}")
    norm = agreement.largest_grad_norm
    if norm is not None:
        yield _row("", f"gradient norms differ by at most {norm.relative:.2g}")
    if variant.reference is not None:
        ranks = _ranks(variant.reference.ranks)
        yield _row("", f"reference: the same program without CP on {ranks}")
    if agreement.tolerance is not None and not again:
        yield _row("", f"tolerance: {agreement.tolerance.reason}")


def _ranks(number: int) -> str:
    return f"{number} rank{'' if number == 1 else 's'}"


def _row(label: str, text: str) -> str:
    return f"{label:<{LABEL}}  {text}"
