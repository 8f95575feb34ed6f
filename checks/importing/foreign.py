"""A made-up skill with a card in NVIDIA's form, and the code that it speaks of."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path

from checks.anchors.gitrepo import commit, make_repository
from ringproof.importing.importer import Imported, convert
from ringproof.importing.roots import Roots, open_roots

TODAY = datetime.date(2026, 1, 2)

SKILL = """---
name: kite-flying
description: How to fly a kite on a cluster.
---

# Kites

The string is wound like this:

```3:4:src/kite/reel.py
def wind(length, slack_ratio):
    return length * slack_ratio
```

and a tangle is refused (it was here once):

```1:2:src/kite/reel.py
    if knots > MAX_KNOTS:
        raise ValueError("too many knots in the string")
```

In the submodule: `wing_area` (src/kite/../x.py is none), see

```1:2:3rdparty/wind/gust.py
class Gust:
    peak_speed: float = 0.0
```

It was never like this:

```2:3:src/kite/reel.py
launch_missiles(everything)
and_then(regret)
```

The knots are counted in `count_knots` (`reel.py:11`).
"""

CARD = """# Where kites come from
title: kite_flying
validated_on: "2025-05-06"
summary: >
  Kites fly when there is wind.
  They need a string.
validation_status:
  string_checks:
    - code_verified  # reel.py:4 has slack_ratio
  wind_tests: [measured, unclear]
feature_meaning:
  slack_ratio: >
    How loose the string is.
  odd: [1, two]
recommended_path:
  kite.height: 30
  kite.string: nylon
  kite.sizes: [2, 2]
  kite.tail: true
  kite.gain: 0.250
  nested:
    a.b: 1
    c: text
known_constraints:
  - slack_ratio must be above zero (reel.py:3).
  - two: parts
    of: it
known_limitations:
  - No kite flies indoors.
  - No kite flies indoors.
enable_when:
  - there is wind
avoid_when: it rains
interactions:
  required: [string, hands]
  incompatible:
    - trees
config_keys: [kite.height, kite.tail]
training_dimensions:
  speed: {effect: "+/-", confidence: low, rationale: "Depends on the wind: measure it."}
expected_metric_change:
  - metric: height
    direction: up
    magnitude: ~15-25%
measured_results:
  - kite: red
    metres: 299.350
    ok: true
  - kite: blue
    metres: 7
failure_modes:
  - name: tangled_string
    symptom: the kite dives
    likely_cause: knots
    fix: untie them
    seen_by: [anna, bert]
  - name: Broken stick!
    symptom: no lift
  - only a sentence
evidence:
  - src/kite/reel.py
  - 3rdparty/wind/gust.py
  - src/kite
  - src/kite/gone.py
  - a talk with a kite maker
best_configs:
  red_kite:
    sizes: [1, 2]
    deeper: {deepest: {why: because}}
minimal_example: |
  def fly():
      go()
surprise: 007
nothing:
follow_up_validation:
  - Fly one at night.
"""

REEL = """import os

def wind(length, slack_ratio):
    return length * slack_ratio


def check(knots):
    if knots > MAX_KNOTS:
        raise ValueError("too many knots in the string")

def count_knots(text):
    return text.count("x")
"""

GUST = '''class Gust:
    peak_speed: float = 0.0
    """How fast it was at most."""
'''


def write_skill(
    folder: Path, card: str | None = CARD, skill: str | None = SKILL, **others: str
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    files: Mapping[str, str | None] = {"card.yaml": card, "SKILL.md": skill, **others}
    for name, text in files.items():
        if text is not None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(text.encode())
    return folder


def kite_roots(folder: Path, *, wind: bool = True) -> Roots:
    """The kite's repository with a submodule, and the submodule's repository."""
    other = make_repository(folder / "wind")
    pin = commit(other, {"gust.py": GUST})
    own = make_repository(folder / "kite")
    modules = (
        '[submodule "wind"]\n\tpath = 3rdparty/wind\n\turl = https://example.org/air/wind.git\n'
    )
    commit(own, {"src/kite/reel.py": REEL, ".gitmodules": modules}, pins={"3rdparty/wind": pin})
    specs = {"air/kite": f"git:{folder / 'kite'}@main"}
    if wind:
        specs["air/wind"] = f"git:{folder / 'wind'}@{pin}"
    return open_roots(specs, cache=folder / "cache", offline=True)


def imported(folder: Path, card: str | None = CARD, roots: Roots | None = None) -> Imported:
    return convert(write_skill(folder / "kites", card), roots or Roots(), today=TODAY)
