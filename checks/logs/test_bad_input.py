"""What the commands of ``ringproof logs`` cannot use: one line that names the argument."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from checks.logs.parity_run import write_jsonl
from ringproof.cli.logs import app
from ringproof.errors import InputError

ROWS = [(step, 2.0 + 1 / step, 0.5) for step in range(1, 101)]
TWO = "a.jsonl b.jsonl"
CASES = {
    "groups missing.log": "FILE: 'missing.log' does not exist; name a log file",
    "groups .": "FILE: '.' is a folder",
    "groups /dev/zero": "FILE: '/dev/zero' is a device",
    "groups a\0b": "FILE: 'a?b' cannot be read",
    "groups loop.log": "FILE: 'loop.log' cannot be read",
    "groups prose --expect maybe": "--expect: 'maybe' is unknown",
    "groups prose --hcp 2,x": "--hcp: '2,x' is not a list of whole numbers",
    "groups prose --hcp 1,8": "--hcp: '1,8' is not a hierarchy",
    "groups prose --hcp 8": "--hcp: '8' is not a hierarchy",
    "groups prose --hcp 2,2 --expect flat": "--hcp contradicts --expect flat; leave one",
    **{
        f"groups prose --dynamic={text}": f"--dynamic: '{text}' "
        for text in ("", "2,1", "1,1", "0,2", "1,two", "1;2", "9" * 20, "-1")
    },
    "parity missing a.jsonl": "A: 'missing' does not exist; name a training log",
    "parity a.jsonl .": "B: '.' is a folder; name the training log in it",
    "parity a.jsonl /dev/zero": "B: '/dev/zero' is a device",
    "parity a.jsonl empty": "B: 'empty' is empty",
    "parity a.jsonl later": "A, B: the logs share no step (A has 1 to 100, B has 201 to 300)",
    "parity a.jsonl norms --series loss": "B: 'norms' has steps that hold no loss but",
    "parity - -": "A, B: both logs are standard input",
    f"parity {TWO} --tol -1": "--tol: -1.0 is not a number from 0",
    f"parity {TWO} --tol nan": "--tol: nan is not a number from 0",
    f"parity {TWO} --log-format xml": "--log-format: 'xml' is unknown",
    f"parity {TWO} --columns loss": "--columns: 'loss' is not NAME=COLUMN",
    f"parity {TWO} --columns mtp=x": "--columns: 'mtp' is not compared; use one of step, loss",
    f"parity {TWO} --series loss,": "--series: 'loss,' is not a list of different names",
    f"parity {TWO} --html no/x": "--html: 'no/x' cannot be written",
}


@pytest.mark.parametrize("command", CASES)
def test_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.jsonl", "b.jsonl"):
        write_jsonl(Path(name), ROWS)
    write_jsonl(Path("later"), [(step + 200, loss, norm) for step, loss, norm in ROWS])
    Path("empty").touch()
    Path("norms").write_text('{"step": 1, "grad_norm": 0.5}\n')
    Path("prose").write_text("nothing\nto see\n")
    Path("table").write_text("step,a/loss,b/loss\n1,2,3\n")
    Path("loop.log").symlink_to("loop.log")
    result = CliRunner().invoke(app, command.split(" "))
    assert isinstance(result.exception, InputError), result.output
    assert str(result.exception).startswith(CASES[command])
    assert "\n" not in str(result.exception)
