"""The planner's page plans as the command: `docs/browser/arrays.py` computes what numpy does."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from docs.making.browser import loaded

arrays = loaded("arrays_under_test", "arrays.py")
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
    done = subprocess.run(
        [sys.executable, "-m", "checks.site.planning_in_a_child", which],
        input=json.dumps(asked), capture_output=True, text=True, check=False,
    )  # fmt: skip
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
    ours, theirs = answers("arrays", asked), answers("numpy", asked)
    different = [
        asked[index]
        for index, pair in enumerate(zip(ours, theirs, strict=True))
        if pair[0] != pair[1]
    ]
    assert different == []
    assert sum("plan" in answer for answer in ours) >= BATCHES * 0.9
    assert ["error" in answer for answer in ours[:2]] == [True, True]


def values(np_: Any, kind: str, *shape: int, seed: int = 1) -> Any:
    """The same numbers as an array of numpy or of ours."""
    draw = random.Random(seed)
    count = int(np.prod(shape))
    made = {
        "int": [draw.randint(-50, 50) for _ in range(count)],
        "float": [draw.uniform(-5, 5) for _ in range(count)],
        "bool": [draw.random() < 0.4 for _ in range(count)],
        "place": [draw.randrange(6) for _ in range(count)],
    }[kind]
    return np_.array(made).reshape(*shape)


def changed(np_: Any, change: Callable[[Any], None], *shape: int) -> Any:
    """An array after a change in place."""
    made = values(np_, "int", *shape)
    change(made)
    return made


def _set(key: Any, value: Any, array: Any) -> None:
    array[key] = value


def _parts(np_: Any, array: Any) -> None:
    np_.add.reduceat(array[:, ::-1], np_.array([0, 3]), axis=1, out=array[:, 1:3])


def _view(array: Any) -> None:
    array.reshape(-1, 3)[1] = 7
    array[2:9:3] += 100
    array[::-1][0] = 5


CASES: dict[str, Callable[[Any], Any]] = {
    "broadcast": lambda n: values(n, "int", 4, 1) * values(n, "int", 1, 6) + values(n, "int", 6),
    "scalar": lambda n: 7 - values(n, "int", 6) // 3,
    "divide": lambda n: values(n, "int", 6) / 7,
    "modulo": lambda n: values(n, "int", 20) % 7,
    "compare": lambda n: (values(n, "int", 9) <= 3) & ~(values(n, "int", 9) > -9),
    "fancy": lambda n: values(n, "int", 6, 6)[values(n, "place", 5), values(n, "place", 5, seed=2)],
    "fancy by broadcast": lambda n: values(n, "int", 6, 6)[
        values(n, "place", 4), values(n, "place", 3, 4)
    ],
    "columns": lambda n: values(n, "int", 3, 6)[:, values(n, "place", 2, 4)],
    "rows": lambda n: values(n, "int", 6, 3)[values(n, "place", 4)],
    "row and columns": lambda n: values(n, "int", 6, 6)[-1, values(n, "place", 4)],
    "mask": lambda n: values(n, "int", 3, 8)[:, values(n, "bool", 8)],
    "new axis": lambda n: values(n, "int", 5)[:, None] - values(n, "int", 5)[None],
    "reversed row": lambda n: values(n, "int", 4, 6)[2, ::-1],
    "scalar of scalar": lambda n: values(n, "int", 5)[3][None],
    "take": lambda n: values(n, "int", 3, 6).take(values(n, "place", 9), axis=1),
    "sum": lambda n: values(n, "int", 2, 3, 4).sum(axis=1),
    "sum of floats": lambda n: values(n, "float", 1000).sum(),
    "sum of rows of floats": lambda n: values(n, "float", 20, 9).sum(axis=0),
    "min": lambda n: values(n, "int", 4, 5).min(axis=0),
    "arg": lambda n: n.argmax(values(n, "int", 4, 5) <= 3, axis=0),
    "nonzero": lambda n: values(n, "bool", 12).nonzero()[0],
    "parts": lambda n: n.add.reduceat(values(n, "int", 2, 9), n.array([0, 2, 3, 7]), axis=1),
    "parts in place": lambda n: changed(n, partial(_parts, n), 2, 4),
    "from iterable": lambda n: n.fromiter(map(len, ["a", "bc", "def"]), n.int64, 2),
    "choose": lambda n: n.where(values(n, "bool", 3, 4), values(n, "int", 4), 1.5),
    "join": lambda n: n.concatenate((values(n, "int", 3, 2), values(n, "int", 3, 4)), axis=1),
    "stack": lambda n: n.stack([values(n, "int", 4), values(n, "int", 4, seed=5)]),
    "set by mask": lambda n: changed(n, partial(_set, values(n, "bool", 12), 0), 12),
    "set by index": lambda n: changed(n, partial(_set, n.array([3, 1]), n.array([8, 9])), 12),
    "set a column": lambda n: changed(n, partial(_set, (slice(None), n.array([1])), 4), 3, 4),
    "views": lambda n: changed(n, _view, 12),
}


@pytest.mark.parametrize("name", CASES)
def test_a_function_does_what_numpy_does(name: str) -> None:
    ours, theirs = CASES[name](arrays), CASES[name](np)
    if np.ndim(theirs) == 0:
        assert ours == theirs
        return
    assert ours.tolist() == theirs.tolist()
    assert ours.shape == theirs.shape
    assert ours.dtype.__name__ == {"bool": "bool_"}.get(theirs.dtype.name, theirs.dtype.name)


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(IndexError, match="out of bounds"):
        arrays.arange(3)[arrays.array([3])]
    with pytest.raises(ValueError, match="do not fit"):
        arrays.arange(3) + arrays.arange(4)
    with pytest.raises(AttributeError):
        _ = arrays.linalg
