"""JSON Schema of ``card.yaml`` for editors, generated from the model.

It has the types, the keys and all patterns. Only `load_card` checks references between the parts of
a card and that ids are unique.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from ringproof.harness.cards import model
from ringproof.harness.cards.model import Card
from ringproof.harness.cards.proof import PROOF_NODE

SCHEMA_FILE = "card.schema.json"
"""File in this folder with the text of `schema_text`."""

DIALECT = "https://json-schema.org/draft/2020-12/schema"
IDENTITY = "urn:ringproof:card.schema.json"

_ATTRIBUTE = re.compile(r"\s{4}((?:\w+)(?:, \w+)*): (.*)")
_RELATIVE_PATH = r"^(?![^/]*:)(?!(?:.*/)?\.{0,2}(?:/|$))[^\\\x00]+$"
_DATE = r"^\d{4}-\d{2}-\d{2}$"

# Descriptions of fields without one in a docstring.
_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "title": "The feature, in snake_case.",
        "summary": "What it is, in a few sentences.",
        "validated_on": "The day on which the statements were last looked at: YYYY-MM-DD.",
        "upstreams": "The code that anchors point into, by a name of your choice.",
        "feature_meaning": "Term -> what it means here.",
        "recommended_path": "Configuration key -> value to start with.",
        "lines": "Lines of upstream: in the card their list, in a statement the ids of its scope.",
        "anchors": "Places in upstream's code.",
        "constraints": "Rules that a configuration must obey.",
        "pitfalls": "What goes wrong, how it shows, and the way out.",
        "markers": "Lines to look for in logs.",
        "commands": "Commands, and what their success looks like.",
        "claims": "All other statements.",
        "package": "Name on the package index.",
        "version": "One exact version, in quotes if it looks like a number.",
        "repo": "OWNER/NAME of the repository.",
        "ref": "The branch or tag that the commit was read from.",
        "commit": "All 40 digits of the commit id.",
        "id": "Unique in the card; proofs and lists refer to it.",
        "says": "The statement, in words.",
        "proof": "checks/FILE.py::test, smoke/FILE.py::test, anchor:ID, or `unproven: WHY`.",
        "rule": "The function that decides it.",
        "upstream_anchor": "The anchor of upstream's own check of it.",
        "symptom": "How it shows.",
        "cause": "Why it happens.",
        "remedy": "The way out.",
        "affects": "Versions, paths or configurations it concerns.",
        "references": "Issues and pages about it.",
        "pattern": "A regular expression, sought in each line.",
        "where": "The log it is sought in.",
        "run": "The command; it is never executed from here.",
        "expects": "What its success looks like.",
        "needs": "cpu, upstream checkout, or {gpus: N}.",
        "gpus": "How many GPUs, at least 1.",
        "short": "The same in fewer words, for tables.",
    }
)


def schema_text() -> str:
    """Return the schema as the text of `SCHEMA_FILE`."""
    return json.dumps(card_schema(), indent=2, ensure_ascii=False) + "\n"


def card_schema() -> dict[str, Any]:
    """Return the schema of a card in JSON Schema draft 2020-12."""
    body = Card.model_json_schema(schema_generator=_Generator)
    described = {"Card": body, **body.get("$defs", {})}
    for name, definition in described.items():
        kind = getattr(model, name, None)
        if inspect.isclass(kind) and issubclass(kind, BaseModel):
            _describe(definition, kind)
    tidy = _tidied(body)
    return {"$schema": DIALECT, "$id": IDENTITY, **tidy, "title": "ringproof card.yaml"}


class _Generator(GenerateJsonSchema):
    """Adds the patterns of validators, which pydantic leaves out."""

    def str_schema(self, schema: core_schema.StringSchema) -> JsonSchemaValue:
        """Require a visible character in text that is stripped and not empty."""
        found = super().str_schema(schema)
        if schema.get("strip_whitespace") and schema.get("min_length"):
            found.setdefault("pattern", r"\S")
        return found

    def date_schema(self, schema: core_schema.DateSchema) -> JsonSchemaValue:
        """Add a pattern, since not every reader checks `format`."""
        return {**super().date_schema(schema), "pattern": _DATE}

    def function_after_schema(
        self, schema: core_schema.AfterValidatorFunctionSchema
    ) -> JsonSchemaValue:
        """Add the pattern of a validator of `model`."""
        inner = self.generate_inner(schema["schema"])
        function = schema["function"]["function"]
        name = getattr(function, "__name__", "")
        if name == "relative_path":
            return {**inner, "pattern": _RELATIVE_PATH}
        if name == "_regular_expression":
            return {**inner, "format": "regex"}
        if name == "_unquoted":
            return {**inner, "quotable": True}
        if name == "_proofs":
            item, several = inner["anyOf"]
            tests = rf"(?![^:\[]*/\.{{1,2}}/){_portable(PROOF_NODE.pattern)}"
            form = rf"^\s*(?:(?:anchor|unproven):\s*\S[\s\S]*|{tests})\s*$"
            item = {**item, "pattern": form}
            return {"anyOf": [item, {**several, "items": item, "minItems": 1, "uniqueItems": True}]}
        pattern = inspect.getclosurevars(function).nonlocals.get("pattern")
        if not isinstance(pattern, re.Pattern):
            return inner
        form = _portable(pattern.pattern)
        quotes = inner.pop("quotable", False)
        whole = f"{form}|\"(?:{form})\"|'(?:{form})'" if quotes else form
        return {**inner, "pattern": f"^(?:{whole})$"}

    def function_before_schema(
        self, schema: core_schema.BeforeValidatorFunctionSchema
    ) -> JsonSchemaValue:
        """Allow one item without a list."""
        inner = super().function_before_schema(schema)
        if getattr(schema["function"]["function"], "__name__", "") != "_as_list":
            return inner
        return {"anyOf": [inner["items"], inner]}


def _portable(pattern: str) -> str:
    """Convert a pattern to ECMAScript."""
    return re.sub(r"\(\?P<\w+>", "(?:", pattern)


def _describe(definition: dict[str, Any], kind: type[BaseModel]) -> None:
    """Add descriptions from the docstring: its first paragraph and its attributes."""
    text = inspect.cleandoc(kind.__doc__ or "")
    definition["description"] = " ".join(text.split("\n\n")[0].split())
    said = {**_FIELDS, **_attributes(text)}
    for name, entry in definition.get("properties", {}).items():
        if name in said:
            entry["description"] = said[name]


def _attributes(docstring: str) -> dict[str, str]:
    """Return the descriptions of attributes by name. Several names may share a line."""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in docstring.partition("Attributes:\n")[2].split("\n"):
        match = _ATTRIBUTE.fullmatch(line)
        if match is not None:
            names = match[1].split(", ")
            found.update(dict.fromkeys(names, match[2].strip()))
        elif line.strip():
            found.update({name: f"{found[name]} {line.strip()}" for name in names})
    return {name: text.replace("``", "`") for name, text in found.items()}


def _tidied(value: Any) -> Any:
    """Remove defaults, which editors would offer, and make the pattern of keys binding."""
    if isinstance(value, list):
        return [_tidied(item) for item in value]
    if not isinstance(value, dict):
        return value
    new = {key: _tidied(item) for key, item in value.items() if key != "default"}
    for pattern, items in new.pop("patternProperties", {}).items():
        new["propertyNames"] = {**new.get("propertyNames", {}), "pattern": pattern}
        new["additionalProperties"] = items
    return new
