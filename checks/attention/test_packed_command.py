"""``ringproof parity attention --packed``: bad input is one line and exit code 2."""

from __future__ import annotations

import sys

import pytest

from ringproof.cli.main import main

BAD = [
    ("--packed 5,x", "--packed: not a list of integers"),
    ("--packed ,", "--packed: not a list of integers"),
    ("--packed 5,-1", "--packed: sequence 1 has no length"),
    ("--packed 2147483648", "--packed: sequence 0 has no length"),
    ("--packed 0", "--packed: no rows to pack"),
    ("--packed=", "--packed: no rows to pack"),
    ("--packed 200000", "--packed: the oracle's scores take 298 GiB"),
    ("--packed 5 --batch 2", "--batch: does not go with this layout"),
    ("--packed 5 --seq-len 256", "--seq-len: does not go with this layout"),
    ("--tail none", "--tail: does not go with this layout"),
    ("--pad-multiple 4", "--pad-multiple: does not go with this layout"),
    ("--pack-rows 64", "--pack-rows: does not go with this layout"),
    ("--packed 5 --pack-entries 3", "--pack-entries: a capacity has rows, too"),
    ("--packed 5 --pack-rows 4", "--pack-rows: the sequences take 8 rows"),
    ("--packed 5 --pack-rows 10", "--pack-rows: a tail of 2 rows is no multiple of 4"),
    ("--packed 5,5 --pack-rows 24 --pack-entries 2", "--pack-entries: the pack has 3"),
    ("--packed 5 --pack-rows 16 --tail none", "--tail: 8 rows are nobody's"),
    ("--packed 5 --tail drop", "--tail: unknown policy"),
    ("--packed 5 --pad-multiple 3", "--pad-multiple: zigzag over 2 CP ranks needs a multiple of 4"),
    ("--packed 5 --pad-multiple -3", "--pad-multiple: not a positive integer"),
    ("--packed 5 --nproc -1", "--nproc: "),
    ("--packed 5 --partition stripes", "--partition: unknown"),
    ("--packed 5 --comm a2a --nproc 3", "--heads: "),
    ("--packed 5 --comm a2a+p2p", "--hcp: "),
    ("--seq-len 250 --nproc 4", "--seq-len: "),
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
