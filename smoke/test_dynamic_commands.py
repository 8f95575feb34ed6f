"""The commands that the dynamic CP skill gives for its check on CPU, as its card writes them."""

from __future__ import annotations

import json
import shlex
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ringproof.cards import load_card
from smoke.processes import ringproof

CARD = Path(__file__).parents[1] / "cards" / "dynamic-context-parallel" / "card.yaml"
STEPS = "8"  # the first step in which a group of one rank is planned


def as_written(name: str) -> list[str]:
    """The command's words, for fewer steps."""
    run = next(command.run for command in load_card(CARD).commands if command.id == name)
    program, *words = shlex.split(run)
    assert program == "ringproof"
    if "--steps" in words:
        words[words.index("--steps") + 1] = STEPS
    return words


def sizes(log: Path) -> set[str]:
    records = [json.loads(line) for line in log.read_text().splitlines()]
    return {size for record in records for size in record.get("cp_histogram", ())}


def spoil_last_loss(log: Path) -> None:
    *lines, last = log.read_text().splitlines()
    record = json.loads(last)
    record["loss"] *= 1 + 1e-6
    log.write_text("\n".join([*lines, json.dumps(record)]) + "\n")


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_the_commands_of_the_skill_show_parity(tmp_path: Path) -> None:
    with ThreadPoolExecutor() as both:  # neither needs all cores
        names = ("train-one", "train-dynamic")
        for done in both.map(lambda name: ringproof(*as_written(name), folder=tmp_path), names):
            assert done.returncode == 0, done.stderr
    assert sizes(tmp_path / "one.jsonl") == {"1"}
    assert sizes(tmp_path / "dynamic.jsonl") == {"1", "2", "4"}
    words = as_written("logs-parity")
    found = ringproof(*words, folder=tmp_path)
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.startswith("verdict: within 1e-09")
    spoil_last_loss(tmp_path / "dynamic.jsonl")
    assert ringproof(*words, folder=tmp_path).returncode == 1, "and a millionth is seen"
