"""A rehearsal as text for a terminal, and as one HTML page that needs no other file."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from ringproof.errors import printable
from ringproof.launch.small.draft import Change
from ringproof.rehearsal.locate import saying
from ringproof.rehearsal.locate.saying import numbers
from ringproof.rehearsal.verdict.errors_picture import errors_pictures
from ringproof.rehearsal.verdict.path import GroupUse, PathTaken
from ringproof.rehearsal.verdict.pictures import PLOT, picture, plots
from ringproof.rehearsal.verdict.variant import CODE, OTHER_ATTENTION, Rehearsal
from ringproof.templates import fill_template

UNITS = ("B", "KiB", "MiB", "GiB")
MOST_GROUPS = 4  # of one kind that are named
MOST_CHANGES = 2  # that are named in one line


def page(rehearsal: Rehearsal) -> str:
    """Return the page's text. Everything that came from outside is escaped."""
    return _rendered("rehearsal.html.j2", rehearsal)


def lines(rehearsal: Rehearsal, *, verbose: bool = False) -> Iterator[str]:
    """Yield the lines for a terminal, without line ends and without what could steer it.

    Args:
        verbose: Whether to list each setting that was shrunk, with what the change can hide.
    """
    text = _rendered("rehearsal.txt.j2", rehearsal, verbose=verbose)
    yield from map(printable, text.rstrip("\n").split("\n"))


def _rendered(template: str, rehearsal: Rehearsal, *, verbose: bool = True) -> str:
    filters = {
        "numbers": numbers,
        "size": size,
        "relative": lambda value: "not finite" if math.isinf(value) else f"{value:.2g}",
        "number": lambda value: f"{value:.9g}",
    }
    values = {
        "rehearsal": rehearsal,
        "code": CODE,
        "other_attention": OTHER_ATTENTION,
        "between_lines": between_lines,
        "errors_pictures": errors_pictures,
        "kinds_of_groups": kinds_of_groups,
        "layers": layers,
        "located": saying,
        "picture": picture,
        "plots": plots,
        "plot": PLOT,
        "shrunk": shrunk,
        "taken": taken,
        "verbose": verbose,
        "waiting_lines": waiting_lines,
    }
    return fill_template("ringproof.rehearsal.verdict", template, values, filters=filters)


def size(number: float) -> str:
    """Return a number of bytes in words."""
    for unit in UNITS[:-1]:
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} {UNITS[-1]}"


def shrunk(changes: Sequence[Change]) -> str:
    """Return in one line what was changed; the page and ``--verbose`` say what that can hide."""
    valued = (one for one in changes if one.before and one.after)
    first = [f"{one.what} {one.before} -> {one.after}" for one in valued]
    named = ", ".join(first[:MOST_CHANGES])
    such = f", such as {named}" if named else ""
    settings = "setting" if len(changes) == 1 else "settings"
    return f"{len(changes)} {settings}{such}; --verbose lists them and what each can hide"


def taken(path: PathTaken) -> str:
    """Return the attention calls of training in words."""
    calls = ", ".join(f"{count} in {count.calls} calls" for count in path.taken)
    return calls or "no attention call"


def layers(path: PathTaken) -> Iterator[tuple[str, str]]:
    """Yield layers with the same attention calls together, and these calls."""
    kinds: dict[str, list[int]] = defaultdict(list)
    for layer, counts in path.layers.items():
        kinds[", ".join(f"{count} in {count.calls} calls" for count in counts)].append(layer)
    yield from ((numbers(members), text) for text, members in kinds.items())


def waiting_lines(waiting: Mapping[int, str]) -> Iterator[str]:
    """Yield one line for all ranks that wait for the same."""
    by_text: dict[str, list[int]] = defaultdict(list)
    for rank, text in waiting.items():
        by_text[text].append(rank)
    for text, ranks in sorted(by_text.items(), key=lambda item: item[1]):
        yield f"{'ranks' if len(ranks) > 1 else 'rank'} {numbers(ranks)} in {text}"


def kinds_of_groups(groups: Sequence[GroupUse]) -> list[str]:
    """Return a line for each kind of group that sent, the ones that sent most bytes first."""
    kinds: dict[tuple[str, int], list[GroupUse]] = defaultdict(list)
    for group in groups:
        if group.bytes and len(group.ranks) > 1:
            kinds[group.group, len(group.ranks)].append(group)
    found = []
    for (name, width), members in kinds.items():
        sent = sum(group.bytes for group in members)
        ranks = "; ".join(numbers(group.ranks) for group in members[:MOST_GROUPS])
        more = "" if len(members) <= MOST_GROUPS else "; ..."
        count = f"{len(members)} x {width} ranks"
        found.append((-sent, f"{name}: {count} ({ranks}{more}), {size(sent)} sent"))
    return [text for _, text in sorted(found, key=lambda item: item[0])]


def between_lines(rehearsal: Rehearsal) -> Iterator[tuple[str, str]]:
    """Yield what two variants have in common and where they part, each with a label."""
    both, agreement = rehearsal.variants, rehearsal.between
    if agreement is None:
        lost = [one.name for one in both if not one.losses]
        yield "Losses", f"not compared, because there are none of {' and '.join(lost)}"
    elif not any(item.relative for item in agreement.differences):
        yield "Losses", "losses and gradient norms of the two are equal in every digit"
    else:
        norm = agreement.largest_grad_norm
        norms = "" if norm is None else f" Gradient norms differ by at most {norm.relative:.2g}."
        yield "Losses", f"{agreement.reason}{norms}"
    paths = [taken(one.path) for one in both]
    each = "; ".join(f"{one.name}: {path}" for one, path in zip(both, paths, strict=True))
    yield "Paths", f"the same: {paths[0]}" if len(set(paths)) == 1 else each
    sent = ((one.name, sum(group.bytes for group in one.path.groups)) for one in both)
    yield "Sent", "; ".join(f"{name}: {size(number)}" for name, number in sent)
