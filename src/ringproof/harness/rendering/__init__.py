"""Renders the generated blocks of a skill's Markdown files from its card and its lock."""

from ringproof.harness.rendering.render import (
    RenderedBlock,
    RenderedFile,
    difference,
    render_document,
    render_skill,
)

__all__ = (
    "RenderedBlock",
    "RenderedFile",
    "difference",
    "render_document",
    "render_skill",
)
