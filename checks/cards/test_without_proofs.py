"""`make test` leaves exactly the tests out that a card names, which `make prove` runs."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE = "smoke/test_megatron_groups.py"


def _collected(*options: str) -> set[str]:
    command = [sys.executable, "-m", "pytest", FILE, "--collect-only", "-q", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return {line for line in done.stdout.splitlines() if line.startswith(FILE)}


@pytest.mark.slow
def test_only_what_a_card_names_is_left_out() -> None:
    """A test is left out where a card has its name; the negative control of that file stays."""
    everything, rest = _collected(), _collected("--without-proofs")
    cards = "".join(path.read_text("utf-8") for path in ROOT.glob("cards/*/card.yaml"))
    assert rest < everything
    for test in everything:
        named = test.partition("[")[0] in cards
        assert (test in rest) is not named, test
