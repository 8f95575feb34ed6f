"""A page per skill, made of its card, its lock and the evidence when the docs are built.

A hook of mkdocs: ``hooks: [docs/skill_pages.py]``, with ``skills/NAME.md`` under ``nav``. So a page
cannot say something else than the card.
"""

from __future__ import annotations

import json
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from ringproof.harness.anchors.lock import LOCK_FILE, read_lock
from ringproof.harness.cards import find_cards, load_card
from ringproof.harness.rendering.pages import skill_page

ROOT = Path(__file__).resolve().parents[1]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add ``skills/NAME.md`` for each skill of the repository."""
    for name, path in find_cards(ROOT / "skills").items():
        records = {
            record.parent.name: json.loads(record.read_text("utf-8"))
            for record in sorted((ROOT / "evidence").glob(f"*/{name}.json"))
        }
        lock = read_lock(path.with_name(LOCK_FILE))
        text = skill_page(name, load_card(path), lock, records)
        files.append(File.generated(config, f"skills/{name}.md", content=text))
    return files
