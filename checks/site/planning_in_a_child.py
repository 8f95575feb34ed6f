"""Answers requests of the planner's page in a process of its own, with numpy or with `arrays`.

python -m checks.site.planning_in_a_child arrays < requests.json > answers.json
"""

from __future__ import annotations

import json
import sys

from docs.making.browser import planner

if __name__ == "__main__":
    entry = planner(sys.argv[1])
    answers = [json.loads(entry.answer(json.dumps(item))) for item in json.load(sys.stdin)]
    assert ("numpy.linalg" in sys.modules) == (sys.argv[1] == "numpy")
    assert not {"psutil", "ruamel.yaml"} & sys.modules.keys(), "a browser has none"
    json.dump(answers, sys.stdout)
