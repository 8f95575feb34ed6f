"""RP210: a skill's card must be one that the other commands can load."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ringproof.errors import InputError, printable
from ringproof.harness.cards.document import read_document
from ringproof.harness.cards.loading import find_card, load_card, refuse_link_outside
from ringproof.harness.lint.skill import Skill, shown_path
from ringproof.harness.reports.model import Finding

_REST = re.compile(r"(?::(?P<line>\d+))?:? *(?P<said>.*)")


def check_card(skill: Skill) -> Iterator[Finding]:
    """The card of a skill that the loader refuses, with the loader's own message.

    A card in the skill's folder that names no upstreams may be of another form, which
    ``ringproof card import`` reads; of such a card only the YAML is checked.
    """
    card = find_card(skill.folder)
    if card is None or not card.is_relative_to(skill.repository):
        return
    try:
        refuse_link_outside(card)
        data = read_document(card).data if card.parent == skill.folder else None
        if not (isinstance(data, dict) and "upstreams" not in data):
            load_card(card)
    except InputError as error:
        rest = _REST.fullmatch(str(error).removeprefix(printable(str(card))))
        line, said = (rest["line"], rest["said"]) if rest else (None, str(error))
        yield Finding("RP210", shown_path(card), int(line or 1), said)
