"""``ringproof fences``: does the code that documents quote still stand where they say?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from ringproof.anchors.fences import (
    as_json,
    check_documents,
    fences_report,
    mend,
    repository_root,
)
from ringproof.anchors.sources import CHECKOUT
from ringproof.cli.options import UpstreamOptions, command_of
from ringproof.cli.reporting import Outputs
from ringproof.options import option
from ringproof.upstream.git import SubmoduleSources, refuse_unused
from ringproof.upstream.sources import given_submodules, open_tree, parse_overrides
from ringproof.upstream.tree import UpstreamTree

EXAMPLE = (
    "Example: ringproof fences path/to/skills "
    "--upstream 3rdparty/Megatron-LM=git:../Megatron-LM@SHA"
)


@dataclass(frozen=True, kw_only=True)
class FencesCommand(Outputs, UpstreamOptions):
    """The options of ``ringproof fences``."""

    path: Path = option(
        ...,
        "A repository, a folder of skills, a skill or a Markdown file.",
        metavar="PATH",
        argument=True,
    )
    fix: bool = option(False, "Correct the line numbers of code that has moved.")
    exit_zero: bool = option(False, "Exit with 0 also where mentions are not exact.")


@command_of(FencesCommand)
def fences(options: FencesCommand) -> None:
    """Compare the code and line numbers that documents quote with the code itself.

    These are fences that begin with start:end:path, and mentions such as path:line and
    path::symbol. The name of an --upstream is a path that they begin with. Exit code 1: some
    mention was not exact when it was read, even where --fix has corrected it.
    """
    specs = parse_overrides(options.upstream)
    roots = _open_roots(options.path, specs, given_submodules(specs), **options.source)
    code = check_fences(options.path, roots, fix=options.fix, outputs=options)
    raise typer.Exit(0 if options.exit_zero else code)


def check_fences(
    path: Path, roots: Mapping[str, UpstreamTree], *, fix: bool, outputs: Outputs
) -> int:
    """Report the mentions of code that are not exact, and mend those that moved if asked.

    Args:
        path, roots: See `check_documents`.

    Returns:
        The exit code: 0 if everything was exact when it was read, otherwise 1.
    """
    documents = check_documents(path, roots)
    report = fences_report(documents)
    outputs.publish(report, as_json(documents))
    if fix:
        typer.echo(f"{mend(documents)} files rewritten", err=True)
    return int(report.failed)


def _open_roots(
    path: Path, specs: Mapping[str, str], sources: SubmoduleSources, **how: Any
) -> Mapping[str, UpstreamTree]:
    """Open the roots that a user gives, and those for submodules of the documents' repository.

    A name in ``sources`` is no path prefix: it stands for the submodules of that repository, read
    at the commits that the roots, or the checkout's HEAD, pin.
    """
    roots = {
        name: open_tree(spec, submodules=sources, **how)
        for name, spec in specs.items()
        if name not in sources.paths
    }
    if not sources.paths:
        return roots
    if CHECKOUT in roots:
        refuse_unused(sources, roots.values())
        return roots
    root = repository_root(path.resolve())
    own: Any = open_tree(f"git:{root}@HEAD", submodules=sources, **how)
    refuse_unused(sources, (*roots.values(), own))
    for item in own.submodules():
        nested = any(item.path.startswith(f"{name}/") for name in roots)
        if not nested and item.path not in roots and sources.find(item.repo) is not None:
            roots[item.path] = own.enter(item.path)
    return roots
