"""The pictures of the concept pages are those that the code draws today."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from docs.making.drawings import IMAGES, PICTURES


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_up_to_date(name: str) -> None:
    """If not: ``python -m docs.making.drawings``."""
    assert (IMAGES / name).read_text(encoding="utf-8") == str(PICTURES[name]())


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_says_what_it_shows_in_light_and_dark(name: str) -> None:
    text = str(PICTURES[name]())
    assert len(ET.fromstring(text)[0].text or "") > 40  # its title
    assert "prefers-color-scheme: dark" in text
