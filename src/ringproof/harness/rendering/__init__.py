"""Generated blocks of a skill's Markdown files, rendered from its card and its lock."""

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
