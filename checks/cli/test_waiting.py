"""A long computation shows that it goes on, and a short one says nothing."""

from __future__ import annotations

import time

import pytest

from ringproof.cli.output import told_to_wait


@pytest.mark.parametrize(("seconds", "lines"), [(0.35, 3), (0.0, 0)])
def test_only_what_takes_long_is_told(
    seconds: float, lines: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with told_to_wait("planning 9 sequences", after=0.1, every=0.1):
        time.sleep(seconds)
    written = capsys.readouterr()
    assert not written.out
    assert len(written.err.splitlines()) in range(min(lines, 1), lines + 1)
    assert all(line.startswith("planning 9 sequences: ") for line in written.err.splitlines())
