"""Reference pages made from the code: the command line, and the schema of a card."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from enum import Enum
from importlib.resources import files
from typing import Any

import typer

from docs.making.templating import filled
from ringproof.cli.main import app
from ringproof.harness.cards.schema import SCHEMA_FILE


def commands_page() -> str:
    """Every command with its arguments and options."""
    root = typer.main.get_command(app)
    context = typer.Context(root, info_name="ringproof")
    return filled("commands.md.jinja", commands=list(_commands(root, context)))


def _commands(command: Any, context: Any) -> Iterator[dict[str, Any]]:
    """The command and its subcommands, in the order in which the help shows them."""
    yield {
        "path": context.command_path,
        "depth": context.command_path.count(" "),
        "help": _paragraphs(command.help or ""),
        "epilog": _paragraphs(command.epilog or ""),
        "usage": _usage(command),
        "parameters": [
            _parameter(item)
            for item in command.params
            if item.name != "help" and not getattr(item, "hidden", False)
        ],
    }
    for name in command.list_commands(context) if hasattr(command, "list_commands") else ():
        inner = command.get_command(context, name)
        if not inner.hidden:
            yield from _commands(inner, typer.Context(inner, parent=context, info_name=name))


def _usage(command: Any) -> str:
    """What follows the command's name."""
    arguments = [item for item in command.params if item.param_type_name == "argument"]
    names = [(item.metavar or item.name.upper(), item.required) for item in arguments]
    shown = [name if needed or name[0] == "[" else f"[{name}]" for name, needed in names]
    return " ".join(("[OPTIONS]", *shown))


def _parameter(item: Any) -> dict[str, Any]:
    """Spelling, placeholder, help and default of an argument or an option."""
    argument = item.param_type_name == "argument"
    placeholder = item.metavar or item.name.upper()
    names = [placeholder] if argument else [*item.opts, *item.secondary_opts]
    default = item.default.value if isinstance(item.default, Enum) else item.default
    flag = getattr(item, "is_flag", False)
    shown = default not in (None, "", (), []) and not flag and not callable(default)
    return {
        "names": names,
        "metavar": "" if argument or flag else placeholder,
        "help": item.help or "",
        "required": item.required,
        "default": str(default) if shown else "",
    }


def _paragraphs(text: str) -> list[str]:
    return [" ".join(part.split()) for part in text.split("\n\n") if part.strip()]


def schema_page() -> str:
    """Every key of a card, from the JSON schema that editors use."""
    text = files("ringproof.harness.cards").joinpath(SCHEMA_FILE).read_text(encoding="utf-8")
    schema = json.loads(text)
    parts = [{"name": "Card", **_object(schema)}]
    parts += [{"name": name, **_object(part)} for name, part in schema["$defs"].items()]
    return filled("schema.md.jinja", parts=parts)


def _object(part: Mapping[str, Any]) -> dict[str, Any]:
    required = set(part.get("required", ()))
    rows = [
        {
            "key": key,
            "kind": _kind(value),
            "required": key in required,
            "says": value.get("description", ""),
        }
        for key, value in part.get("properties", {}).items()
    ]
    return {"says": part.get("description", ""), "rows": rows}


def _kind(value: Mapping[str, Any]) -> str:
    """The type of a value in words."""
    if "$ref" in value:
        return str(value["$ref"].rsplit("/", 1)[-1])
    if "enum" in value:
        return "one of " + ", ".join(map(str, value["enum"]))
    if "const" in value:
        return str(value["const"])
    for several in ("anyOf", "oneOf"):
        if several in value:
            return " or ".join(dict.fromkeys(_kind(part) for part in value[several]))
    kind = value.get("type", "any")
    if kind == "array":
        items = value.get("items") or next(iter(value.get("prefixItems", ())), {})
        return f"list of {_kind(items)}"
    if kind == "object" and isinstance(value.get("additionalProperties"), Mapping):
        return f"name to {_kind(value['additionalProperties'])}"
    if value.get("format") == "date":
        return "date"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)
