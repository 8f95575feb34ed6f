"""The planner's page plans as the command: with and without numpy, plans are the same."""

from __future__ import annotations

import json
import random
import re
import sys
from typing import Any

import pytest

from checks.running import ran

BATCHES = 40
_TIME = re.compile(r"[\d.]+ ms<small>reading left out")


def requests() -> list[dict[str, Any]]:
    """Random batches, as the form sends them, and some that are refused."""
    draw = random.Random(0)
    found: list[dict[str, Any]] = [{"text": "", "ranks": 4}, {"text": "1 two", "ranks": 4}]
    for seed in range(BATCHES):
        made: dict[str, Any] = {
            "ranks": draw.choice([1, 2, 6, 8, 12, 16, 24, 32, 64]),
            "max_tokens_per_rank": draw.choice([1024, 2048, 3000, 8192]),
            "cost": draw.choice(["full", "attention-only"]),
            "objective": draw.choice(["sync", "sync", "async"]),
            "cp_sizes": draw.choice(["pow2", "divisors"]),
        }
        if draw.random() < 0.3:
            made |= {
                "max_sequences": draw.randint(2, 20),
                "microbatch_multiple": draw.randint(1, 4),
            }
        if draw.random() < 0.2:
            made |= {"pp": 2, "objective": "sync"}
        longest = made["ranks"] * (made["max_tokens_per_rank"] // 2 * 2)
        count = draw.choice([1, 3, 17, 40, 90, 200])
        if draw.random() < 0.4:
            lengths = [draw.randint(1, min(longest, 9000)) for _ in range(count)]
            made["text"] = " ".join(map(str, lengths))
        else:
            most = min(longest, draw.choice([1024, 8192, 20000]))
            made["lengths"] = (
                f"lognormal:mean={draw.choice([300, 1024])},sigma=1.4,min=16,max={most},n={count},"
                f"seed={seed}"
            )
        found.append(made)
    return found


def answers(which: str, asked: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the entry answers, without the time that planning took."""
    words = ("-m", "checks.site.planning_in_a_child", which)
    done = ran(sys.executable, *words, input=json.dumps(asked), timeout=None)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    for answer in found:
        if "plan" in answer:
            answer["plan"]["metrics"].pop("planning_seconds")
            answer["page"], times = _TIME.subn("", answer["page"])
            assert times == 1
    return found


@pytest.mark.slow
def test_plans_and_pages_are_those_of_numpy() -> None:
    asked = requests()
    ours, theirs = answers("plain", asked), answers("numpy", asked)
    different = [
        asked[index]
        for index, pair in enumerate(zip(ours, theirs, strict=True))
        if pair[0] != pair[1]
    ]
    assert different == []
    assert sum("plan" in answer for answer in ours) >= BATCHES * 0.9
    assert ["error" in answer for answer in ours[:2]] == [True, True]
