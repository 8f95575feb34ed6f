"""JSON Schema of ``card.yaml`` for editors, generated from the model.

It has the types, the keys and all patterns. Only `load_card` checks references between the parts of
a card and that ids are unique.
"""

from __future__ import annotations

import json
from typing import Any

from ringproof.cards.card import Card

DIALECT = "https://json-schema.org/draft/2020-12/schema"
IDENTITY = "urn:ringproof:card.schema.json"


def schema_text() -> str:
    """Return the schema as the text of a file."""
    return json.dumps(card_schema(), indent=2, ensure_ascii=False) + "\n"


def card_schema() -> dict[str, Any]:
    """Return the schema of a card in JSON Schema draft 2020-12."""
    made = _tidied(Card.model_json_schema())
    return {"$schema": DIALECT, "$id": IDENTITY, **made, "title": "ringproof card.yaml"}


def _tidied(value: Any) -> Any:
    """Remove defaults, which editors would offer, and make the pattern of keys binding."""
    if isinstance(value, list):
        return [_tidied(item) for item in value]
    if not isinstance(value, dict):
        return value
    new = {key: _tidied(item) for key, item in value.items() if key != "default"}
    if isinstance(new.get("description"), str):
        new["description"] = " ".join(new["description"].split())
    for pattern, items in new.pop("patternProperties", {}).items():
        new["propertyNames"] = {**new.get("propertyNames", {}), "pattern": pattern}
        new["additionalProperties"] = items
    return new
