"""Edge values of options end with an exit code that says so; see `checks.cli.fuzz`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from checks.cli import fuzz
from ringproof.cli import main as command
from ringproof.errors import InputError


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_edge_values_are_served_or_refused() -> None:
    assert list(fuzz.fuzz(200, seed=15)) == []


def _raises(**_options: object) -> None:
    raise KeyError("where")


def _traces(**_options: object) -> None:
    print("Traceback (most recent call last)")


def _waits(**_options: object) -> None:
    while True:
        pass


def _litters(**_options: object) -> None:
    Path("unnamed").touch()


def _leaves(**_options: object) -> None:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])


def _refuses(**_options: object) -> None:
    raise InputError("--a", "1 is wrong; correct it")


@pytest.mark.parametrize(
    ("does", "said"),
    [
        (_raises, "exit code 3"),
        (_traces, "traceback"),
        (_waits, "takes over 1 s"),
        (_litters, "left {'unnamed'}"),
        (_leaves, "left ["),
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
