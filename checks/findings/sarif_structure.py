"""What SARIF 2.1.0 says of the objects we write, as a JSON Schema that allows nothing else.

The OASIS schema has the same properties, types and limits for these objects, and many more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jsonschema import Draft7Validator

URI = r"^[A-Za-z0-9._~!$&'()*+,;=@%/:#-]+$"
LEVELS = ["none", "note", "warning", "error"]
TEXT = {"type": "string", "minLength": 1}
LINE = {"type": "integer", "minimum": 1}


def object_of(required: str = "", **properties: Any) -> dict[str, Any]:
    """The schema of an object with these properties alone; the required ones in one text."""
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


def list_of(items: dict[str, Any]) -> dict[str, Any]:
    """The schema of a list."""
    return {"type": "array", "items": items}


def _schema() -> dict[str, Any]:
    message = object_of("text", text=TEXT)
    uri = {"type": "string", "pattern": URI}
    absolute = {"type": "string", "pattern": "^[a-z][a-z0-9+.-]*://"}
    rule = object_of(
        "id",
        id=TEXT,
        name=TEXT,
        shortDescription=message,
        help=message,
        helpUri=absolute,
        defaultConfiguration=object_of(level={"enum": LEVELS}),
    )
    driver = object_of(
        "name", name=TEXT, version=TEXT, informationUri=absolute, rules=list_of(rule)
    )
    artifact = object_of(uri=uri, uriBaseId=TEXT)
    place = object_of(
        artifactLocation=artifact, region=object_of("startLine", startLine=LINE, endLine=LINE)
    )
    result = object_of(
        "message",
        ruleId=TEXT,
        ruleIndex={"type": "integer", "minimum": 0},
        level={"enum": LEVELS},
        message=message,
        locations=list_of(object_of(physicalLocation=place)),
        partialFingerprints={"type": "object", "additionalProperties": TEXT},
        suppressions=list_of(object_of("kind", kind={"enum": ["inSource", "external"]})),
    )
    bases = {"type": "object", "additionalProperties": object_of(uri=uri, description=message)}
    run = object_of(
        "tool",
        tool=object_of("driver", driver=driver),
        originalUriBaseIds=bases,
        columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
        results=list_of(result),
    )
    version = {"enum": ["2.1.0"]}
    return object_of("version runs", **{"$schema": absolute}, version=version, runs=list_of(run))


def sarif_problems(log: Any) -> list[str]:
    """What is wrong with a log: the schema's complaints, and references that lead nowhere."""
    found = [
        f"{'/'.join(map(str, error.absolute_path))}: {error.message}"
        for error in Draft7Validator(_schema()).iter_errors(log)
    ]
    return found or [problem for run in log["runs"] for problem in _references(run)]


def _references(run: Any) -> Iterator[str]:
    """Indices and names that lead nowhere."""
    ids = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    if len(set(ids)) != len(ids):
        yield "a rule stands twice"
    bases = run.get("originalUriBaseIds", {})
    for result in run["results"]:
        if ids[result["ruleIndex"] :][:1] != [result["ruleId"]]:
            yield f"{result['ruleId']}: its index is another rule's"
        for location in result["locations"]:
            base = location["physicalLocation"]["artifactLocation"].get("uriBaseId")
            if base is not None and base not in bases:
                yield f"{base}: no such base"
