"""The lines of upstream that a configuration is examined on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from ringproof.anchors.resolve import AnchorResolver
from ringproof.cards.card import CardLines, UpstreamLine
from ringproof.cards.loading import find_card, find_cards, load_lines
from ringproof.errors import InputError, shown
from ringproof.launch.options import options_of
from ringproof.launch.stored import stored_options
from ringproof.shipped import shipped_skills
from ringproof.stack.products import MEGATRON, Product
from ringproof.stack.recognise import recognise

FINEST = "dynamic-context-parallel"
"""The skill whose lines tell most states of Megatron-LM apart."""
VERSIONS: Mapping[str, str] = MappingProxyType(
    {
        "without-dynamic-cp": "0.15.0",
        "megatron-core": "0.16.1",
        "release": "0.16.1",
        "r0.17": "0.17.1",
        "r0.18": "0.18.2",
        "r0.19": "0.19.2",
        "main": "0.19.2",
        "main-packing": "0.20.0",
        "dev": "0.20.0",
        "pr5618": "0.20.0",
        "pr6479": "0.20.0",
        "dynamic-v2": "0.20.0",
    }
)
"""By line of Megatron-LM, a version whose rules hold on it."""
RELEASES = ("release", "r0.17", "r0.18", "r0.19")
"""Lines that are releases."""


@dataclass(frozen=True)
class Stack:
    """Upstream code that belongs together.

    Attributes:
        lines: Ids of the lines of the skills that it is on.
        blocked: By skill, why its feature cannot train on this code.
        options: Options that its argument parser knows; empty if that is not known.
        versions: Versions by repository, as far as they are known.
    """

    name: str
    lines: frozenset[str]
    blocked: Mapping[str, str]
    options: frozenset[str] = frozenset()
    versions: Mapping[str, str] = field(default_factory=dict)


def load_cards(folder: Path) -> Mapping[str, CardLines]:
    """Return what the cards of a folder of skills say of upstream's lines, by skill.

    The rules are about the lines of `FINEST`. Where a folder does not have that skill, as that of a
    project of one's own, the cards are those that were installed with ringproof.
    """
    if folder.is_dir() and find_card(folder / FINEST) is None:
        folder = shipped_skills() or folder
    return {name: load_lines(path) for name, path in find_cards(folder).items()}


def stack_of(products: Sequence[tuple[str, Product]], cards: Mapping[str, CardLines]) -> Stack:
    """Recognise the lines of products."""
    names = [f"{product.repo} {product.version}".strip() + f" ({given})"
             for given, product in products]  # fmt: skip
    found = [pair for _, product in products for pair in _recognised(product, cards)]
    options = (options_of(product.tree) for _, product in products if product.repo == MEGATRON)
    versions = {product.repo: product.version for _, product in products if product.version}
    return replace(
        _stack(", ".join(names), found), options=next(options, frozenset()), versions=versions
    )


def _recognised(
    product: Product, cards: Mapping[str, CardLines]
) -> Iterator[tuple[str, UpstreamLine]]:
    resolver = AnchorResolver(product.tree)
    for skill, card in cards.items():
        line = recognise(card, product.repo, resolver).line
        if line is not None:
            yield skill, line


def _stack(name: str, found: Sequence[tuple[str, UpstreamLine]]) -> Stack:
    blocked = {skill: line.because or line.says for skill, line in found if not line.trains}
    return Stack(name, frozenset(line.id for _, line in found), blocked)


def known_stacks(cards: Mapping[str, CardLines]) -> dict[str, Stack]:
    """Return the lines of Megatron-LM that the cards know, by a name for each."""
    of_megatron = [(skill, line) for skill, card in cards.items()
                   for line in card.lines if line.repo == MEGATRON]  # fmt: skip
    keys = [key for skill, line in of_megatron if skill == FINEST for key in _keys(line)]
    names = [(key, key.removeprefix("megatron-lm-")) for key in keys]
    return {
        name: replace(
            _stack(name, [pair for pair in of_megatron if key in _keys(pair[1])]),
            versions={MEGATRON: VERSIONS[name]} if name in VERSIONS else {},
        )
        for key, name in names
    }


def _keys(line: UpstreamLine) -> tuple[str, ...]:
    """Upstreams of a line, or the line itself where none is at hand."""
    return line.upstreams or (line.id,)


def stack_named(name: str, cards: Mapping[str, CardLines], option: str) -> Stack:
    """Return a known stack by its name.

    Raises:
        InputError: There is none of that name.
    """
    known = known_stacks(cards)
    if name in known:
        return known[name]
    found = next((stack for stack in known.values() if name in stack.lines), None)
    if found is None:
        raise InputError(
            option, f"{shown(name)} is not a known line; take one of {', '.join(known)}"
        )
    return found


def upstream_of(name: str, cards: Mapping[str, CardLines]) -> str:
    """Return the spec of the code of a line: a commit that a card names, or else a release.

    The commit comes first, since the wheel of 0.16 does not have `pretrain_gpt.py`.

    Raises:
        InputError: No card names code of this line.
    """
    named = {key.removeprefix("megatron-lm-"): upstream
             for key, upstream in cards[FINEST].upstreams.items()}  # fmt: skip
    commit = getattr(named.get(name), "commit", None)
    if commit is None and name in RELEASES:
        return f"pip:megatron-core=={VERSIONS[name]}"
    if commit is None:
        raise InputError("--line", f"no code of {shown(name)} is known; name it with --upstream")
    return f"fetched:{MEGATRON}@{commit}"


def release_of(stack: Stack) -> str:
    """Return the line that is a release of the version of a stack; empty if none is."""
    version = stack.versions.get(MEGATRON, "")
    return next((name for name in RELEASES if VERSIONS[name] == version), "")


def with_stored_options(stack: Stack) -> Stack:
    """Return a stack that knows the options of its line, where it has no parser at hand.

    The line is that of its name, or a release of the same version.
    """
    if stack.options:
        return stack
    line = stack.name if stored_options(stack.name) else release_of(stack)
    return replace(stack, options=stored_options(line) if line else frozenset())
