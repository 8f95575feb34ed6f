"""Options that several commands have, each with one name, one meaning and one help text."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ringproof import __version__
from ringproof.cache import default_cache
from ringproof.errors import InputError
from ringproof.shipped import shipped_skills


def _chosen(ctx: typer.Context, param: typer.CallbackParam, value: Path) -> Path:
    """Return the folder that was given, or that is here, or else that of the installation."""
    shipped = None if given(ctx, param.name) or value.exists() else shipped_skills()
    if shipped is None:
        return value
    typer.echo(f"skills: those of ringproof {__version__}, as no folder skills is here", err=True)
    return shipped


def _knowing(ctx: typer.Context, param: typer.CallbackParam, value: Path) -> Path:
    """Return the folder that was given, or that is here and has cards, or the installation's.

    A checkout of upstream may have a folder of skills whose cards, if any, are of another form.
    """
    from ringproof.cards import has_card  # 80 ms, which most commands need not pay

    return value if has_card(value) or given(ctx, param.name) else shipped_skills() or value


def given(ctx: typer.Context, name: str | None) -> bool:
    """Whether the value of a parameter is of the command line, and not its default."""
    source = ctx.get_parameter_source(str(name))
    return source is not None and source.name != "DEFAULT"


_LONGEST = 1_000_000
"""Seconds: a wait on a file descriptor takes at most 2**31 ms, which is 25 days."""


def seconds(text: str, metavar: str | None = None) -> Any:
    """Declare an option that is a time in seconds, which is checked when it is read."""
    return typer.Option(metavar=metavar, callback=_checked_seconds, help=text)


def _checked_seconds(
    ctx: typer.Context, param: typer.CallbackParam, value: float | None
) -> float | None:
    """Return the value of an option that is a time, which is `None` if it was not given.

    Raises:
        InputError: It is no number above 0, or no wait can be as long.
    """
    if value is not None and not 0 < value <= _LONGEST:
        remedy = f"give a number above 0, and at most {_LONGEST:,}"
        raise InputError(f"--{param.name}", value, "not a time in seconds", remedy)
    return value


SkillsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="SKILL", help="Names of skills; without one, all skills."),
]
WrittenFolderOption = Annotated[
    Path, typer.Option("--skills", metavar="DIR", help="The folder that holds the skills.")
]
_INSTALLED = "The folder that holds the skills; without it here, the skills of the installation."
FolderOption = Annotated[
    Path, typer.Option("--skills", metavar="DIR", help=_INSTALLED, callback=_chosen)
]
KnowingFolderOption = Annotated[
    Path, typer.Option("--skills", metavar="DIR", help=_INSTALLED, callback=_knowing)
]
UpstreamOption = Annotated[
    list[str] | None,
    typer.Option(
        "--upstream",
        metavar="NAME=SPEC",
        help="Where upstream code is. NAME is an upstream of a card, a repository OWNER/NAME, or "
        "a path that documents begin with; SPEC is git:PATH[@REF], fetched:OWNER/NAME@COMMIT, "
        "pip:PACKAGE==VERSION, dir:PATH or installed:PACKAGE. Can be given several times.",
    ),
]
ForceOption = Annotated[
    bool, typer.Option("--force", help="Start even if the machine seems too small for it.")
]
CacheOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="The folder for downloads. [default: ~/.cache/ringproof]"),
]
OfflineOption = Annotated[bool, typer.Option("--offline", help="Do not download anything.")]
JsonOption = Annotated[
    str,
    typer.Option(
        "--json", metavar="PATH", help="Write the result as JSON to this file; - is stdout."
    ),
]


def cache_folder(chosen: Path | None) -> Path:
    """The folder for downloads: the one that was given, or the default.

    Raises:
        InputError: The path is empty, which would be the current folder.
    """
    if chosen is not None and not str(chosen).strip("."):
        raise InputError("--cache", str(chosen), "is the current folder", "name another folder")
    return chosen if chosen is not None else default_cache()


def with_parameters(
    declared: Iterable[inspect.Parameter],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Put declared parameters between the context and a command's own, where typer finds them.

    The command itself finds their values in ``params`` of its context.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)
        context, *rest = own.parameters.values()

        @functools.wraps(command)
        def run(**values: Any) -> None:
            command(**{name: values[name] for name in own.parameters})

        together = [one.replace(kind=one.KEYWORD_ONLY) for one in (context, *declared, *rest)]
        vars(run)["__signature__"] = own.replace(parameters=together)
        run.__annotations__ = {one.name: one.annotation for one in together}
        return run

    return decorate


@contextlib.contextmanager
def named_by_option(options: Mapping[str, str], given: Container[str]) -> Iterator[None]:
    """Name the option instead of the field in refusals.

    Args:
        options: Option of each field whose option is not its name with dashes.
        given: Parameters of the command. A field that is neither keeps its name.
    """
    try:
        yield
    except InputError as error:
        name = options.get(error.field, error.field)
        if name in given:
            name = f"--{name.replace('_', '-')}"
        raise InputError(name, error.value, error.problem, error.remedy) from None
