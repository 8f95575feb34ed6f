"""The picture of a graph bank in the docs is that of a bank that runs today."""

from __future__ import annotations

import pytest

from benchmarks.graphs.bank_picture import PICTURE, bank_that_ran


@pytest.mark.slow
def test_the_picture_of_the_bank_is_up_to_date() -> None:
    """If not: ``python -m benchmarks.graphs.bank_picture``."""
    assert PICTURE.read_text(encoding="utf-8") == str(bank_that_ran())
