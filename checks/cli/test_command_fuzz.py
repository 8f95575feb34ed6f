"""Edge values of options end with an exit code that says so; see `checks.cli.fuzz`."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from checks.cli import fuzz
from ringproof.cli import main as command
from ringproof.errors import InputError


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_edge_values_are_served_or_refused() -> None:
    assert list(fuzz.fuzz(200, seed=15)) == []


def _refuses(**_options: object) -> None:
    raise InputError("--a", "1 is wrong; correct it")


@pytest.mark.parametrize(
    ("does", "said"),
    [
        (lambda **_: {}["where"], "exit code 3"),
        (lambda **_: print("Traceback (most recent call last)"), "traceback"),
        (lambda **_: time.sleep(60), "takes over 1 s"),
        (lambda **_: Path("unnamed").touch(), "left {'unnamed'}"),
        (lambda **_: subprocess.Popen(["/bin/sleep", "60"]), "left ["),
        (_refuses, ""),
    ],
)
def test_the_fuzzer_sees_what_is_wrong(
    does: object, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "app", does)
    monkeypatch.setattr(fuzz, "SECONDS", 1)
    found = fuzz.complaint(["train"])
    assert found.startswith(said)
    assert bool(found) == bool(said)
