"""RP210: what the loader refuses in a card is a finding, with the loader's words and line."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from checks.cards.hostile import BOMB
from checks.cards.test_card_model import CARD
from checks.lint.skill_folder import make_skill, report_on, rules_of
from ringproof.cards import load_card
from ringproof.cards.document import MAX_BYTES
from ringproof.errors import InputError


def _yaml(data: object) -> str:
    stream = io.StringIO()
    dumper = YAML(typ="safe", pure=True)
    dumper.default_flow_style = False
    dumper.dump(data, stream)
    return stream.getvalue()


GOOD = _yaml(dict(CARD))

# The loader has tests of all that it refuses.
REFUSED = {
    "alias bomb": (BOMB, 1, "anchors and aliases are refused"),
    "duplicate key": (f"{GOOD}title: again\n", 0, "stands here a second time"),
    "list": ("- a\n", 1, "is not a mapping"),
    "unknown key": (f"{GOOD}clams: []\n", 0, "is not a key of a card"),
    "size": ("#" * (MAX_BYTES + 1), 1, "larger than 1,000,000 bytes"),
    "not UTF-8": (b"title: a\nsummary: caf\xe9\n", 2, "not UTF-8"),
}


def _card(root: Path, content: str | bytes, *, apart: bool = True) -> Path:
    """A valid skill and its card; the path of the card."""
    folder = make_skill(root)
    path = (root / "cards" / "one" if apart else folder) / "card.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize("apart", [True, False], ids=["apart", "beside"])
@pytest.mark.parametrize("kind", REFUSED)
def test_rp210_fires(tmp_path: Path, kind: str, apart: bool) -> None:
    content, line, words = REFUSED[kind]
    card = _card(tmp_path, content, apart=apart)
    findings = [item for item in report_on(tmp_path).findings if item.rule != "RP208"]
    assert [(item.rule, item.path) for item in findings] == [("RP210", str(card))]
    assert words in findings[0].message and str(tmp_path) not in findings[0].message
    assert findings[0].line == (line or len(GOOD.splitlines()) + 1)
    with pytest.raises(InputError, match=words.replace("+", r"\+")):
        load_card(card)  # the words are the loader's


@pytest.mark.parametrize("apart", [True, False], ids=["apart", "beside"])
def test_rp210_stays_silent(tmp_path: Path, apart: bool) -> None:
    card = _card(tmp_path, GOOD, apart=apart)
    assert rules_of(tmp_path) == rules_of(tmp_path / "skills" / "one") == []
    card.write_text(GOOD.replace("package: megatron-core", "package: ''"))
    assert rules_of(tmp_path) == rules_of(tmp_path / "skills" / "one") == ["RP210"]


def test_a_card_of_another_form_is_only_read(tmp_path: Path) -> None:
    other = "title: kites\nfailure_modes: [the string breaks]\n"
    card = _card(tmp_path, other, apart=False)
    assert rules_of(tmp_path) == []
    card.write_text(f"{other}title: again\n")
    assert rules_of(tmp_path) == ["RP210"]
    card.unlink()
    _card(tmp_path, other)  # where only cards of ringproof lie
    assert rules_of(tmp_path) == ["RP210"]


def test_a_card_that_is_a_link_out_is_not_read(tmp_path: Path) -> None:
    outside = tmp_path / "outside.yaml"
    outside.write_text("secret: [words\n")
    card = _card(tmp_path / "repository", GOOD)
    card.unlink()
    card.symlink_to(outside)
    (finding,) = report_on(tmp_path / "repository").findings
    assert (finding.rule, "lies outside the cards folder" in finding.message) == ("RP210", True)


def test_a_card_outside_of_what_is_linted_is_not_read(tmp_path: Path) -> None:
    folder = make_skill(tmp_path / "vendor" / "more")
    folder.parent.rename(tmp_path / "vendor" / "more" / "others")
    card = tmp_path / "vendor" / "more" / "cards" / "one" / "card.yaml"
    card.parent.mkdir(parents=True)
    card.write_text("- a\n")
    assert rules_of(tmp_path / "vendor" / "more" / "others" / "one") == []
    assert rules_of(tmp_path / "vendor") == ["RP210"]
