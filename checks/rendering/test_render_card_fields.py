"""The fields of a card that only tables need: refused with file, line, field and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.rendering.miniature_skill import changed, write_skill
from ringproof.errors import InputError
from ringproof.harness.cards import load_card


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        (
            ("version_matrix", 0, "anchors", 1),
            "renaimed",
            "version_matrix[0].anchors[1]: is not an anchor of this card (got renaimed); add it",
        ),
        (
            ("version_matrix", 0, "anchors", 1),
            "switch",
            "version_matrix[0].anchors[1]: stands twice in this row (got switch); name it once",
        ),
        (("version_matrix", 0, "anchors"), [], "version_matrix[0].anchors: "),
        (("version_matrix", 0, "abuot"), "x", "did you mean `about`?"),
        (("version_matrix", 0, "about"), " ", "version_matrix[0].about: "),
        (("upstreams", "main", "label"), "x" * 41, "upstreams.main.label: "),
        (("pitfalls", 0, "short"), "one line", "pitfalls[0].short: "),
        (("pitfalls", 0, "short", "remedi"), "x", "did you mean `remedy`?"),
        (("anchors", 0, "short"), 5, "anchors[0].short: "),
    ],
)
def test_wrong_fields_are_refused(
    tmp_path: Path, place: tuple[str | int, ...], value: object, says: str
) -> None:
    card = write_skill(tmp_path, "x", changed((place, value))).with_name("card.yaml")
    with pytest.raises(InputError) as caught:
        load_card(card)
    message = str(caught.value)
    assert says in message
    assert "\n" not in message
    line = int(message.removeprefix(f"{card}:").split(":")[0])
    shown = card.read_text().split("\n")[line - 1]
    assert str(value) in shown or str(place[-1]) in shown


def test_cards_without_the_fields_load_as_before(tmp_path: Path) -> None:
    data = changed()
    del data["version_matrix"], data["pitfalls"][0]["short"], data["anchors"][0]["short"]
    card = load_card(write_skill(tmp_path, "x", data).with_name("card.yaml"))
    assert card.version_matrix == ()
    assert card.pitfalls[0].short is None
    assert card.upstreams["main"].label is None
