"""``ringproof render``: the generated blocks of the skills, from their cards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringproof.cards import find_cards
from ringproof.cli.options import SkillNames, command_of, folder_option, json_option
from ringproof.cli.output import write_result
from ringproof.errors import InputError, printable
from ringproof.files import write_atomically
from ringproof.options import option
from ringproof.render.render import RenderedFile, difference, render_skill


@dataclass(frozen=True, kw_only=True)
class RenderCommand(SkillNames):
    """The options of ``ringproof render``."""

    folder: Path = folder_option()
    check: bool = option(False, "Write nothing, and report which blocks are stale.")
    json_path: str = json_option()


@command_of(RenderCommand)
def render(options: RenderCommand) -> None:
    """Fill the generated blocks of skills from card.yaml and anchors.lock.

    A block stands between `ringproof:begin KIND` and `ringproof:end` comments; KIND may also be a
    name of the card's `blocks`. Exit code 1: with --check, a block does not say what the card
    says. Example: ringproof render --check
    """
    check, paths = options.check, find_cards(options.folder, options.skills)
    rendered = {skill: render_skill(path, options.folder / skill) for skill, path in paths.items()}
    files = [item for documents in rendered.values() for item in documents]
    if not files:
        remedy = (
            "write `<!-- ringproof:begin KIND -->` and `<!-- ringproof:end -->` into a .md file"
        )
        raise InputError(
            "SKILL", f"no file of {', '.join(rendered)} has a generated block; {remedy}"
        )
    if not check:
        for item in files:
            if item.stale:
                write_atomically(item.path, item.content, field=str(item.path))
    stale = any(item.stale for item in files)
    data = _as_json(files, check=check, stale=stale)
    lines = _lines(files, check=check)
    write_result(data, lines, options.json_path, good=data["pass"], verdict_first=False)


def _as_json(files: list[RenderedFile], *, check: bool, stale: bool) -> dict[str, Any]:
    blocks = [
        {
            "file": str(item.path),
            "line": made.block.begin + 1,
            "kind": made.block.kind,
            "stale": made.stale,
            "diff": list(difference(made)),
        }
        for item in files
        for made in item.blocks
    ]
    return {"version": 1, "pass": not (check and stale), "written": not check, "blocks": blocks}


def _lines(files: list[RenderedFile], *, check: bool) -> Iterator[str]:
    for item in files:
        if item.stale and not check:
            yield f"{item.path}: written"
    found = [(item.path, made) for item in files for made in item.blocks]
    stale = [(path, made) for path, made in found if made.stale]
    for path, made in stale if check else ():
        yield f"{path}:{made.block.begin + 1}: {made.block.kind}: stale"
        for line in difference(made):
            yield f"    {printable(line)}"
    counts = f"{len(stale)} {'stale' if check else 'written'}, {len(found) - len(stale)} current"
    yield f"{len(found)} blocks in {len(files)} files: {counts}"
