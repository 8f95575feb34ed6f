"""The hook of mkdocs that adds all pages which are made and not written; see `docs/making`."""

from __future__ import annotations

import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # `docs.making` is no part of the package

from docs.making import browser, reference, results, skills  # noqa: E402 - needs the path above


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and plots."""
    found = skills.read_skills(ROOT)
    pages: dict[str, str | bytes] = {
        "skills/index.md": skills.overview_page(found),
        "pitfalls.md": skills.pitfalls_page(found),
        "reference/cli.md": reference.commands_page(),
        "reference/card-schema.md": reference.schema_page(),
        "proven.md": results.proven_page(found, ROOT),
    }
    pages |= {f"skills/{skill.name}.md": skills.skill_page(skill) for skill in found}
    pages |= {f"images/{name}": plot for name, plot in results.plots(ROOT).items()}
    for name, content in pages.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_post_build(config: MkDocsConfig) -> None:
    """Put the planner's files into the site."""
    browser.put(Path(config.site_dir))
