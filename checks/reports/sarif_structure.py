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


def _object(required: str = "", **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _schema() -> dict[str, Any]:
    message = _object("text", text=TEXT)
    uri = {"type": "string", "pattern": URI}
    absolute = {"type": "string", "pattern": "^[a-z][a-z0-9+.-]*://"}
    rule = _object(
        "id",
        id=TEXT,
        name=TEXT,
        shortDescription=message,
        help=message,
        helpUri=absolute,
        defaultConfiguration=_object(level={"enum": LEVELS}),
    )
    driver = _object("name", name=TEXT, version=TEXT, informationUri=absolute, rules=_list(rule))
    artifact = _object(uri=uri, uriBaseId=TEXT)
    place = _object(
        artifactLocation=artifact, region=_object("startLine", startLine=LINE, endLine=LINE)
    )
    result = _object(
        "message",
        ruleId=TEXT,
        ruleIndex={"type": "integer", "minimum": 0},
        level={"enum": LEVELS},
        message=message,
        locations=_list(_object(physicalLocation=place)),
        partialFingerprints={"type": "object", "additionalProperties": TEXT},
        suppressions=_list(_object("kind", kind={"enum": ["inSource", "external"]})),
    )
    bases = {"type": "object", "additionalProperties": _object(uri=uri, description=message)}
    run = _object(
        "tool",
        tool=_object("driver", driver=driver),
        originalUriBaseIds=bases,
        columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
        results=_list(result),
    )
    version = {"enum": ["2.1.0"]}
    return _object("version runs", **{"$schema": absolute}, version=version, runs=_list(run))


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
