"""Plans for the planner's page: `ringproof plan` in a browser, called by `docs/assets/worker.js`.

The page calls the functions that the command calls, with the options that the command has, so the
two cannot disagree. What comes back is the page that ``ringproof plan --html`` writes.
"""

from __future__ import annotations

import json
import shlex
from typing import Any

from ringproof.cli.lengths import parse
from ringproof.cli.plan_options import OTHER_NAMES, PlanOptions
from ringproof.cli.plan_page import page
from ringproof.cli.plan_result import Result, plan_result
from ringproof.errors import InputError
from ringproof.options import named_by_option

MOST_SEQUENCES = 2048
"""More take a browser too long; the command plans a million."""
FILE = "lengths.txt"
"""The name by which the shown command calls the lengths that the reader gave."""


def answer(request: str) -> str:
    """Plan a batch.

    Args:
        request: JSON object with the options of `PlanOptions` that the form has, and ``text``: the
            reader's own lengths, which take the place of ``lengths`` where they are given.

    Returns:
        JSON object: ``error``, or ``page``, ``numbers``, ``plan`` and ``command``.
    """
    given = json.loads(request)
    text = given.pop("text", "")
    given |= {"lengths": FILE} if text else {}
    try:
        with named_by_option(PlanOptions, OTHER_NAMES):
            result = _planned(PlanOptions(**given), text)
    except InputError as error:
        return json.dumps({"error": str(error)})
    found = {
        "page": page(result),
        "numbers": numbers(result),
        "plan": result.as_json(),
        "command": command(given),
    }
    return json.dumps(found)


def _planned(options: PlanOptions, text: str) -> Result:
    lengths = parse(text.encode(), FILE, "") if text else options.read()
    if len(lengths) > MOST_SEQUENCES:
        sentence = f"{len(lengths):,} sequences are more than {MOST_SEQUENCES:,}"
        raise InputError("--lengths", f"{sentence}; plan them with the command")
    return plan_result(options, lengths)


def numbers(result: Result) -> dict[str, Any]:
    """What the page shows above the pictures."""
    metrics = result.plan.metrics
    return {
        "iteration": metrics.makespan,
        "unit": metrics.unit,
        "gains": {item.name: gain for item, gain in result.gains()},
        "warnings": list(result.warnings),
    }


def command(given: dict[str, Any]) -> str:
    """The command that gives the same plan."""
    words = ["ringproof", "plan"]
    for name, value in given.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(words)
