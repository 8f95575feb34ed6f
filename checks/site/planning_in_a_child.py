"""Answers requests of the planner's page in a process of its own, with numpy or with `arrays`.

python -m checks.site.planning_in_a_child arrays < requests.json > answers.json
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

BROWSER = Path(__file__).parents[2] / "docs" / "browser"


def loaded(name: str, file: str) -> ModuleType:
    """A module of `docs/browser` under another name."""
    spec = importlib.util.spec_from_file_location(name, BROWSER / file)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made
    spec.loader.exec_module(made)
    return made


if __name__ == "__main__":
    if sys.argv[1] == "arrays":
        loaded("numpy", "arrays.py")
        loaded("numpy.typing", "array_types.py")
    entry = loaded("entry", "entry.py")
    answers = [json.loads(entry.answer(json.dumps(item))) for item in json.load(sys.stdin)]
    assert ("numpy.linalg" in sys.modules) == (sys.argv[1] == "numpy")
    json.dump(answers, sys.stdout)
