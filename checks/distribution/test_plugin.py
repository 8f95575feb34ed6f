"""The manifests of Claude Code's plugin and marketplace, by the fields that its documents name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from checks.findings.sarif_structure import TEXT, list_of, object_of

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".claude-plugin"
NAME = {"type": "string", "pattern": "^[a-z][a-z0-9]*(-[a-z0-9]+)*$"}
VERSION = {"type": "string", "pattern": r"^\d+\.\d+\.\d+$"}
PERSON = object_of("name", name=TEXT, email=TEXT, url=TEXT)
# A plugin may leave out where its parts are: skills are then those below skills/.
COMMON = {
    "name": NAME,
    "version": VERSION,
    "author": PERSON,
    "keywords": list_of(TEXT),
    **dict.fromkeys(("description", "homepage", "repository", "license"), TEXT),
}
PLUGIN = object_of("name description version", **COMMON)
# Paths of a marketplace begin with ./ and stay in the repository.
SOURCE = {"type": "string", "pattern": r"^\./(?!.*\.\.)"}
ENTRY = object_of("name source", **COMMON, source=SOURCE, category=TEXT, tags=list_of(TEXT))
MARKETPLACE = object_of(
    "name owner plugins",
    name=NAME,
    owner=PERSON,
    metadata=object_of(description=TEXT, version=VERSION, pluginRoot=TEXT),
    plugins={**list_of(ENTRY), "minItems": 1},
)


def read(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return document


def test_the_manifests_have_documented_fields_only() -> None:
    jsonschema.validate(read("plugin.json"), PLUGIN)
    jsonschema.validate(read("marketplace.json"), MARKETPLACE)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("plugin.json", {"name": "Ringproof"}),
        ("plugin.json", {"author": "somebody"}),
        ("plugin.json", {"skils": ["./skills"]}),
        ("marketplace.json", {"owner": {}}),
        ("marketplace.json", {"plugins": [{"name": "x", "source": "skills"}]}),
        ("marketplace.json", {"plugins": [{"name": "x", "source": "./../x"}]}),
        ("marketplace.json", {"plugins": ["x"]}),
    ],
)
def test_wrong_manifests_are_refused(name: str, change: dict[str, Any]) -> None:
    schema = PLUGIN if name == "plugin.json" else MARKETPLACE
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**read(name), **change}, schema)


def test_the_marketplace_leads_to_the_plugin_and_that_to_the_skills() -> None:
    (entry,) = read("marketplace.json")["plugins"]
    assert entry["name"] == read("plugin.json")["name"]
    root = (ROOT / entry["source"]).resolve()
    assert (root / ".claude-plugin" / "plugin.json").is_file()
    skills = sorted((root / "skills").glob("*/SKILL.md"))
    assert len(skills) == 3
    for path in skills:
        head = path.read_text(encoding="utf-8").split("\n---\n", 1)[0]
        assert re.search(rf"^name: {path.parent.name}$", head, re.MULTILINE)
