"""Answers requests of the planner's page in a process of its own, with or without numpy.

python -m checks.site.planning_in_a_child plain < requests.json > answers.json
"""

from __future__ import annotations

import json
import sys

from docs.making.browser import planner

if __name__ == "__main__":
    entry = planner(with_numpy=sys.argv[1] == "numpy")
    answers = [json.loads(entry.answer(json.dumps(item))) for item in json.load(sys.stdin)]
    assert (sys.modules.get("numpy") is not None) == (sys.argv[1] == "numpy")
    assert not {"psutil", "ruamel.yaml"} & sys.modules.keys(), "a browser has none"
    json.dump(answers, sys.stdout)
