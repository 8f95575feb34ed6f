"""``ringproof stack``: which upstream is this, and what of the skills holds in it?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from ringproof.anchors.lock import LOCK_FILE, read_lock
from ringproof.cards import find_cards, load_card
from ringproof.cli import options
from ringproof.cli.output import write_result
from ringproof.prove.evidence import recorded_verdicts
from ringproof.stack.assess import Assessment, assess
from ringproof.stack.products import Product, find_products
from ringproof.stack.report import stack_data, stack_lines

EXAMPLE = (
    "Example: ringproof stack --upstream ../Megatron-LM --upstream pip:transformer-engine==2.20.2"
)


def stack(
    *,
    upstream: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SPEC",
            help="A checkout, a wheel, a site-packages, git:PATH@REF, fetched:OWNER/NAME@COMMIT, "
            "pip:PACKAGE==VERSION, dir:PATH or installed:PACKAGE. Can be given several times. "
            "Without it, what is installed in this environment is examined.",
        ),
    ] = None,
    folder: options.KnowingFolderOption = Path("skills"),
    cache: options.CacheOption = None,
    offline: options.OfflineOption = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="List every statement and every probe.")
    ] = False,
    json_path: options.JsonOption = "",
) -> None:
    """Say which line of upstream code is, and which statements of the skills hold in it.

    A line is recognised by code. A statement holds if it is proven on that line and the code that
    its anchors name is the same. Exit code 1: a line is not known, or a statement is broken.
    """
    products = find_products(
        tuple(upstream or ()), cache=options.cache_folder(cache), offline=offline
    )
    cards = find_cards(folder)
    found = [(name, product, _assessed(product, folder, cards)) for name, product in products]
    data = stack_data(found)
    write_result(data, stack_lines(data, verbose=verbose), json_path, good=data["pass"])


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
