"""A skill with every kind of statement, and its lock, small enough to read."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ruamel.yaml import YAML

from ringproof.anchors.lock import Lock

RELEASED, MAIN = "a" * 40, "b" * 40

CARD: Mapping[str, Any] = MappingProxyType(
    YAML(typ="safe", pure=True).load(f"""
title: demo
summary: What it is.
validated_on: '2026-11-20'
upstreams:
  core: {{package: megatron-core, version: 0.16.1, repo: NVIDIA/Megatron-LM, commit: {RELEASED}}}
  release: {{repo: NVIDIA/Megatron-LM, ref: core_v0.16.1, commit: {RELEASED}}}
  main: {{repo: NVIDIA/Megatron-LM, ref: main, commit: {MAIN}}}
  te: {{package: transformer-engine, version: 2.20.2}}
lines:
- {{id: released, repo: NVIDIA/Megatron-LM, says: The first form., trains: false,
   because: Nothing calls it., upstreams: [core, release], probe: [{{path: megatron/config.py}}]}}
- {{id: announced, repo: NVIDIA/Megatron-LM, says: The next form., trains: true,
   unread: Not published., probe: [{{path: megatron/next.py}}]}}
anchors:
- {{id: switch, upstream: core, path: megatron/config.py, symbol: Config.hybrid_switch,
   role: Turns it on., expects: [size], short: the switch}}
- {{id: renamed, upstream: main, path: megatron/config.py, symbol: Config.dynamic_switch,
   role: Its name on main.}}
- {{id: attention, upstream: te, path: te/attention.py, symbol: Attention.forward, role: Runs it.}}
constraints:
- {{id: product, says: The sizes multiply to CP., proof: 'anchor:switch',
   short: '`prod(sizes) == CP`'}}
- {{id: heads, says: Heads divide., proof: 'unproven: needs 2 GPUs'}}
pitfalls:
- {{id: silent, symptom: The loss is wrong., cause: No group was made., remedy: Set the sizes.,
   affects: [0.16.1, main], proof: 'anchor:switch', short: {{symptom: wrong loss}}}}
markers:
- {{id: line, pattern: 'group=L[0-9]+ (a|b)', where: census, says: They exist.,
   proof: 'anchor:switch'}}
commands:
- {{id: run, run: ringproof lint skills, expects: no finding, needs: cpu, proof: 'anchor:switch'}}
- {{id: smoke, run: torchrun train.py, expects: a loss, needs: {{gpus: 2}},
   proof: 'unproven: needs 2 GPUs'}}
claims:
- {{id: fast, says: It is fast., proof: 'unproven: nobody measured'}}
version_matrix:
- {{about: the switch, anchors: [switch, renamed]}}
- {{about: attention, anchors: [attention]}}
""")
)

ALL_BLOCKS = (
    "anchors",
    "anchors style=files",
    "anchors style=links",
    "anchors style=lines",
    "anchors columns=id,where,path,symbol,role,expects,links,lines",
    "constraints",
    "constraints style=table",
    "claims",
    "claims style=table",
    "pitfalls",
    "pitfalls style=full",
    "markers columns=id,pattern,where,says,proof",
    "commands",
    "commands style=table columns=id,run,expects,needs,proof",
    "lines",
    "lines columns=id,repo,says,trains,at only=announced",
    "upstreams columns=id,name,source,ref,commit",
    "version-matrix",
)


def changed(*changes: tuple[tuple[str | int, ...], Any]) -> dict[str, Any]:
    """The card with values replaced, each given with its place."""
    data = copy.deepcopy(dict(CARD))
    for place, value in changes:
        target: Any = data
        for part in place[:-1]:
            target = target[part]
        target[place[-1]] = value
    return data


def block(line: str, inside: str = "") -> str:
    """A block as an author writes it, or with something between its markers."""
    return f"<!-- ringproof:begin {line} -->\n{inside}<!-- ringproof:end -->\n"


def lock_of(data: Mapping[str, Any]) -> Lock:
    """What `ringproof anchors lock` would write: ``switch`` also lives on main, otherwise."""

    def place(anchor: Mapping[str, Any], name: str) -> dict[str, Any]:
        where = {"switch": ("core", "release", "main"), "renamed": ("main",)}
        if name not in where.get(anchor["id"], ("te",)):
            return {"status": "missing symbol", "path": anchor["path"]}
        missing = 1 if (anchor["id"], name) == ("switch", "main") else 0
        found = {"start": 3, "end": 5, "fingerprint": "f" * 64, "missing": missing}
        return {"status": "found", "path": anchor["path"], **found}

    def repository(name: str) -> str:
        return str(data["upstreams"][name].get("repo", name))

    return Lock.model_validate(
        {
            "version": 1,
            "upstreams": {
                name: {
                    key: upstream[key]
                    for key in ("repo", "ref", "commit", "package", "version")
                    if key in upstream and not (key == "commit" and "package" in upstream)
                }
                for name, upstream in data["upstreams"].items()
            },
            "anchors": {
                anchor["id"]: {
                    **{key: anchor[key] for key in ("upstream", "path", "symbol")},
                    "places": {
                        name: place(anchor, name)
                        for name in data["upstreams"]
                        if repository(name) == repository(anchor["upstream"])
                    },
                }
                for anchor in data["anchors"]
            },
        }
    )


def write_skill(skills: Path, text: str, data: Mapping[str, Any] = CARD) -> Path:
    """A skill folder with a card, its lock and a ``SKILL.md``; the path of the last."""
    folder = skills / "demo"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "card.yaml").open("w", encoding="utf-8") as stream:
        YAML(typ="safe", pure=True).dump(dict(data), stream)
    (folder / "anchors.lock").write_text(lock_of(data).text(), encoding="utf-8")
    (folder / "SKILL.md").write_bytes(text.encode())
    return folder / "SKILL.md"
