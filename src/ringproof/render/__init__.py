"""Renders the generated blocks of a skill's Markdown files from its card and its lock."""
