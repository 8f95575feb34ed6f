"""``ringproof anchors check --fences``: the code that other people's skills point to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import typer

from ringproof.cli.output import write_json
from ringproof.harness.anchors.tree import UpstreamTree
from ringproof.harness.fences import as_json, as_text, check_documents, mend


def check_fences(
    path: Path, roots: Mapping[str, UpstreamTree], *, fix: bool, json_path: str
) -> int:
    """Judge the mentions of code in skills, report them, and mend those that moved if asked.

    Args:
        path: A repository, a folder of skills, a skill or a Markdown file.
        roots: Path prefix to the tree that stands there (``3rdparty/Megatron-LM``); ``.`` replaces
            the repository that the skills lie in.
        fix: Rewrite the line numbers of what moved, in place.
        json_path: Where to write JSON; ``-`` is standard output, empty is nowhere.

    Returns:
        0 if everything was exact when read, 1 otherwise, also when ``fix`` mended it.

    Raises:
        InputError: The input cannot be used, or a file cannot be written.
    """
    documents = check_documents(path, roots)
    findings = [finding for document in documents for finding in document.findings]
    if json_path:
        write_json(as_json(findings), json_path)
    if json_path != "-":
        for line in as_text(findings):
            typer.echo(line)
    if fix:
        typer.echo(f"{mend(documents)} files rewritten", err=True)
    return int(any(finding.placement.status != "exact" for finding in findings))
