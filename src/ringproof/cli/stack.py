"""``ringproof stack``: which upstream is this, and what of the skills holds in it?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ringproof.anchors.lock import LOCK_FILE, read_lock
from ringproof.cards import find_cards, load_card
from ringproof.cli.options import (
    SourceOptions,
    command_of,
    folder_option,
    json_option,
    knowing_skills,
)
from ringproof.cli.output import write_result
from ringproof.options import option
from ringproof.prove.evidence import recorded_verdicts
from ringproof.stack.assess import Assessment, assess
from ringproof.stack.products import Product, find_products
from ringproof.stack.report import stack_data, stack_lines

EXAMPLE = (
    "Example: ringproof stack --upstream ../Megatron-LM --upstream pip:transformer-engine==2.20.2"
)


@dataclass(frozen=True, kw_only=True)
class StackCommand(SourceOptions):
    """The options of ``ringproof stack``."""

    upstream: tuple[str, ...] = option(
        (),
        "A checkout, a wheel, a site-packages, git:PATH@REF, fetched:OWNER/NAME@COMMIT, "
        "pip:PACKAGE==VERSION, dir:PATH or installed:PACKAGE. Can be given several times. "
        "Without it, what is installed in this environment is examined.",
        metavar="SPEC",
    )
    folder: Path = folder_option(knowing_skills)
    verbose: bool = option(False, "List every statement and every probe.")
    json_path: str = json_option()


@command_of(StackCommand)
def stack(options: StackCommand) -> None:
    """Say which version of upstream code is, and which statements of the skills hold in it.

    A line is a set of versions that behave alike, and is recognised by its code. A statement holds
    if it is proven on that line and the code that its anchors name is the same. Exit code 1: a line
    is not known, or a statement is broken.
    """
    folder = options.folder
    products = find_products(options.upstream, **options.source)
    cards = find_cards(folder)
    found = [(name, product, _assessed(product, folder, cards)) for name, product in products]
    data = stack_data(found)
    write_result(
        data, stack_lines(data, verbose=options.verbose), options.json_path, good=data["pass"]
    )


def _assessed(product: Product, folder: Path, cards: Mapping[str, Path]) -> list[Assessment]:
    """Assess a product by every card that has lines of its repository."""
    made = []
    for skill, path in cards.items():
        card = load_card(path)
        if any(line.repo == product.repo for line in card.lines):
            verdicts = recorded_verdicts(folder.parent / "evidence", skill)
            made.append(
                assess(skill, card, read_lock(path.with_name(LOCK_FILE)), verdicts, product)
            )
    return made
