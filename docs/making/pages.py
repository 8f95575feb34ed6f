"""The pages that are made: skills and their evidence, the commands, and the schema of a card."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import typer
from markupsafe import Markup, escape

from docs.making import skill_text
from ringproof.anchors.lock import LOCK_FILE, Lock, permalink, read_lock
from ringproof.cards import Anchor, Card, ProofKind, find_cards, load_card, statements
from ringproof.cards.card import GpuNeed
from ringproof.cards.proof import parse_proof
from ringproof.cards.schema import card_schema
from ringproof.cli.main import app
from ringproof.errors import InputError
from ringproof.prove.results import Verdict
from ringproof.render import versions
from ringproof.templates import environment

Record = Mapping[str, Any]
_TITLE = re.compile(r"^# (.+)$", re.MULTILINE)
_CODE = re.compile(r"`([^`]+)`")
_MARKDOWN = re.compile(r"[\\`*_\[\]<>|~&{}#!]")
_STATES = ("agrees", "differs", "other path", "refused", "not offered", "races", "hung")


def prose(text: str) -> Markup:
    """Escape a card's text for HTML; text in backticks becomes code."""
    folded = " ".join(text.split())
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(folded))))


def heading(text: str) -> Markup:
    """Escape a card's text for a heading in Markdown, where it must stay on its line."""
    folded = " ".join(text.replace("`", "").split())
    return Markup(_MARKDOWN.sub(lambda match: f"&#{ord(match[0])};", folded))


def _gpus(found: Sequence[Any]) -> str:
    return f"{len(found)} GPUs" if found else "no GPU"


def filled(template: str, **values: Any) -> str:
    """Fill a template of `docs/making/templates`; every value is escaped for HTML."""
    filters = {"prose": prose, "heading": heading, "gpus": _gpus}
    made = environment("docs.making", html=True, filters=filters)
    return str(made.get_template(template).render(**values))


# -- skills ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Skill:
    """Everything that a skill's page is made of.

    Attributes:
        name: Folder of the skill.
        title: First heading of its ``SKILL.md``.
        documents: Its ``SKILL.md`` and its references by path, without frontmatter.
        lock: Places of its anchors; without it no permalinks.
        records: Evidence records by environment class.
    """

    name: str
    title: str
    documents: Mapping[str, str]
    card: Card
    lock: Lock | None
    records: Mapping[str, Record]

    def verdicts(self, statement: str) -> dict[str, Record]:
        """What each environment found about a statement."""
        return {
            environment: claim
            for environment, record in self.records.items()
            for claim in record["claims"]
            if claim["id"] == statement
        }


def read_skills(root: Path) -> list[Skill]:
    """Read the skills of a repository, in the order of their names.

    Raises:
        InputError: A card cannot be read, or its lock is older than the card.
    """
    found = []
    for name, path in sorted(find_cards(root / "skills").items()):
        folder = root / "skills" / name
        paths = [folder / "SKILL.md", *sorted(folder.glob("references/*.md"))]
        documents = {
            file.relative_to(folder).as_posix(): skill_text.body(file.read_text("utf-8"))
            for file in paths
        }
        title = _TITLE.search(documents["SKILL.md"])
        records = {
            record.parent.name: json.loads(record.read_text("utf-8"))
            for record in sorted((root / "evidence").glob(f"*/{name}.json"))
        }
        card, lock = load_card(path), read_lock(path.with_name(LOCK_FILE))
        stale = next(versions.lock_differences(card, lock), None) if lock else None
        if stale is not None:
            problem = f"the lock is older than the card: it {stale}"
            raise InputError(f"{name}/{LOCK_FILE}", f"{problem}; run `ringproof anchors lock`")
        shown = title[1].replace("`", "") if title else name
        found.append(Skill(name, shown, documents, card, lock, records))
    return found


def skill_pages(skill: Skill) -> dict[str, str]:
    """The pages of one skill by path: its text, its references, its statements with proofs."""
    start = f"skills/{skill.name}"
    made = {f"{start}.md": _skill_page(skill), f"{start}/statements.md": statements_page(skill)}
    for path, text in skill.documents.items():
        if path != "SKILL.md":
            shown = skill_text.linked(text, _targets(skill, "../"))
            made[f"{start}/{path}"] = f"---\nsearch:\n  exclude: true\n---\n{shown}"
    return made


def _skill_page(skill: Skill) -> str:
    """The text of SKILL.md, with a line below its title that says what else there is."""
    line = filled("skill.md.jinja", skill=skill, statements=statements)
    text = _TITLE.sub(lambda title: f"{title[0]}\n\n{line}", skill.documents["SKILL.md"], count=1)
    return skill_text.linked(text, _targets(skill, f"{skill.name}/"))


def _targets(skill: Skill, base: str) -> dict[str, str]:
    """Addresses of the statements and documents that a skill names, below ``base``."""
    ids = [item.id for item in statements(skill.card) if item.kind.value != "anchor"]
    made = {name: f"{base}statements.md#{name}" for name in ids}
    return made | {path: base + path for path in skill.documents if path != "SKILL.md"}


def statements_page(skill: Skill) -> str:
    """All statements of a skill with what proves them, as Markdown with HTML."""
    return filled(
        "statements.md.jinja",
        skill=skill,
        card=skill.card,
        meanings=[(verdict.value, verdict.meaning) for verdict in Verdict],
        checked=lambda line: versions.checked(skill.card, line),
        can_train=versions.can_train,
        proofs=lambda item: list(_proofs(skill, item.id, item.proof)),
        found=lambda item: skill.verdicts(item.id),
        scope={statement.id: statement.lines for statement in statements(skill.card)},
        need=_need,
        anchors=[_anchor(skill, anchor) for anchor in skill.card.anchors],
        matrix=list(versions.matrices(skill.card, skill.lock)) if skill.lock else [],
    )


def overview_page(skills: Sequence[Skill]) -> str:
    """The list of skills, with what is proven of each."""
    return filled("skills.md.jinja", skills=skills, statements=statements)


def pitfalls_page(skills: Sequence[Skill]) -> str:
    """All pitfalls by symptom, each with a link to its place among the statements of its skill."""
    return filled("pitfalls.md.jinja", skills=skills, found=lambda s, item: s.verdicts(item.id))


def proven_page(skills: Sequence[Skill], root: Path) -> str:
    """Evidence by environment, conformance of versions, and planted faults."""
    paths = sorted((root / "evidence").glob("*/*.json"))
    records = [json.loads(path.read_text("utf-8")) for path in paths]
    faults = root / "benchmarks" / "training" / "results" / "faults.json"
    return filled(
        "proven.md.jinja",
        skills=skills,
        states=_STATES,
        conform=[record for record in records if "cases" in record and "name" in record],
        counts=lambda record: Counter(case["status"] for case in record["cases"]),
        engine=[row for record in records for row in record.get("planted", ())],
        trained=json.loads(faults.read_text("utf-8")),
    )


def _need(item: Any) -> str:
    if isinstance(item.needs, GpuNeed):
        return f"needs {item.needs.gpus} GPUs"
    return "runs on a CPU" if item.needs == "cpu" else f"needs an {item.needs}"


def _proofs(skill: Skill, statement: str, entries: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The proofs of a statement, with what each environment recorded of them."""
    ran = {
        proof["id"]: (environment, proof)
        for environment, claim in skill.verdicts(statement).items()
        for proof in claim["proofs"]
    }
    for entry in entries:
        proof = parse_proof(entry)
        environment, recorded = ran.get(proof.id, ("", {}))
        read_at = {item.removeprefix("executed ") for item in recorded.get("upstream", ())}
        yield {
            "kind": {ProofKind.PYTEST: "test", ProofKind.ANCHOR: "anchor"}.get(proof.kind, "none"),
            "target": proof.target,
            "outcome": recorded.get("outcome", "not run"),
            "environment": environment,
            "evidence": recorded.get("evidence", ""),
            "upstream": [_shortened(item) for item in sorted(read_at)],
        }


def _shortened(place: str) -> str:
    """``NVIDIA/Megatron-LM git:COMMIT`` with a commit of twelve digits."""
    return re.sub(r"\b([0-9a-f]{12})[0-9a-f]{28}\b", r"\1", place)


def _anchor(skill: Skill, anchor: Anchor) -> dict[str, Any]:
    """An anchor and its places, each with a permalink where the commit is known."""
    found = versions.found_places(skill.card, skill.lock, anchor) if skill.lock else ()
    places = [
        {
            "version": version.label,
            "repository": locked.repo or locked.package,
            "start": place.start,
            "end": place.end,
            "link": permalink(locked, place),
            "whole": place.missing == 0,
        }
        for version, locked, place in found
    ]
    return {"anchor": anchor, "where": versions.home(skill.card, anchor), "places": places}


# -- reference -------------------------------------------------------------------------------------


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
    schema = card_schema()
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
