"""``ringproof parity attention --lengths``: bad input is one line and exit code 2."""

from __future__ import annotations

import sys

import pytest

from ringproof.cli.main import main

BAD = [
    ("--lengths 5,x", "--lengths: '5,x' is not a list of integers"),
    ("--lengths ,", "--lengths: ',' is not a list of integers"),
    ("--lengths 5,-1", "--lengths: -1 is not a length in [0, 2**31) (sequence 1)"),
    ("--lengths 2147483648", "--lengths: 2147483648 is not a length in [0, 2**31) (sequence 0)"),
    ("--lengths 0", "--lengths: [0] has no rows to pack"),
    ("--lengths=", "--lengths: [] has no rows to pack"),
    ("--lengths 200000", "--lengths: the dense oracle's scores of 200000 tokens take 298 GiB"),
    ("--seq-len 0", "--seq-len: 0 is less than 1"),
    ("--lengths 5 --seq-len 256", "--seq-len has no effect with --lengths"),
    ("--lengths 5 --ranks -1", "--ranks: "),
    ("--lengths 5 --partition stripes", "--partition: 'stripes' is unknown"),
    ("--lengths 5 --comm a2a --ranks 3", "--heads: "),
    ("--lengths 5 --comm a2a+p2p", "--hcp: "),
    ("--seq-len 250 --ranks 4", "--seq-len: "),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[a for a, _ in BAD])
def test_bad_input_is_one_line(
    arguments: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["ringproof", "parity", "attention", *arguments.split()])
    with pytest.raises(SystemExit) as left:
        main()
    captured = capsys.readouterr()
    assert left.value.code == 2
    assert captured.err.startswith(f"error: {message}")
    assert captured.err.count("\n") == 1
    assert captured.out == ""
