"""The hook of mkdocs that adds all pages which are made and not written; see `docs/making`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # `docs.making` is no part of the package

from docs.making import browser, pages, plots  # noqa: E402 - needs the path above

_UNSET = re.compile(r"\[([^\]]+)\]\(https://github\.com/OWNER/[^)]*\)")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Show links to the project's address as text until `checks.house.address` has set it."""
    return _UNSET.sub(r"\1", markdown)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and plots."""
    found = pages.read_skills(ROOT)
    made: dict[str, str | bytes] = {
        "skills/index.md": pages.overview_page(found),
        "pitfalls.md": pages.pitfalls_page(found),
        "reference/cli.md": pages.commands_page(),
        "reference/card-schema.md": pages.schema_page(),
        "proven.md": pages.proven_page(found, ROOT),
    }
    for skill in found:
        made |= pages.skill_pages(skill)
    made |= {f"images/{name}": plot for name, plot in plots.drawn(ROOT).items()}
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_post_build(config: MkDocsConfig) -> None:
    """Put the planner's files into the site."""
    browser.put(Path(config.site_dir))
