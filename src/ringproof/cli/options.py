"""Options that several commands have, each with one name, one meaning and one help text."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import Field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from ringproof import __version__
from ringproof.cache import default_cache
from ringproof.errors import InputError, shown
from ringproof.options import (
    OptionField,
    check_value,
    named_by_option,
    option,
    option_fields,
    spelled,
    told,
)
from ringproof.shipped import shipped_skills


def _chosen(ctx: typer.Context, param: typer.CallbackParam, value: Path) -> Path:
    """Return the folder that was given, or that is here, or else that of the installation."""
    shipped = None if given(ctx, param.name) or value.exists() else shipped_skills()
    if shipped is None:
        return value
    typer.echo(f"skills: those of ringproof {__version__}, as no folder skills is here", err=True)
    return shipped


def _knowing(ctx: typer.Context, param: typer.CallbackParam, value: Path) -> Path:
    """Return the folder that was given, or `known_skills`."""
    return value if given(ctx, param.name) else known_skills(None)


def known_skills(chosen: Path | None) -> Path:
    """Return the folder of skills that was given, or that is here and has cards, or is installed.

    A checkout of upstream may have a folder of skills whose cards, if any, are of another form.
    """
    from ringproof.cards import has_card  # 80 ms, which most commands need not pay

    here = Path("skills")
    if chosen is not None:
        return chosen
    return here if has_card(here) else shipped_skills() or here


def given(ctx: typer.Context, name: str | None) -> bool:
    """Whether the value of a parameter is of the command line, and not its default."""
    source = ctx.get_parameter_source(str(name))
    return source is not None and source.name != "DEFAULT"


def seconds(text: str) -> Any:
    """Declare an option that is a time in seconds, which is checked when it is read."""

    def check(param: typer.CallbackParam, value: float | None) -> float | None:
        check_value(param.opts[0], value, OptionField(help=text, seconds=True))
        return value

    return typer.Option(metavar="SECONDS", callback=check, help=text)


T = TypeVar("T")

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
        "--json",
        metavar="PATH",
        help="Write the result as JSON to this file. - writes it to standard output.",
    ),
]


def cache_folder(chosen: Path | None) -> Path:
    """The folder for downloads: the one that was given, or the default.

    Raises:
        InputError: The path is empty, which would be the current folder.
    """
    if chosen is not None and not str(chosen).strip("."):
        raise InputError("--cache", f"{shown(chosen)} is the current folder; name another folder")
    return chosen if chosen is not None else default_cache()


def json_option() -> Any:
    """Declare the option ``--json`` as a field of a command's dataclass."""
    text = "Write the result as JSON to this file. - writes it to standard output."
    return option("", text, "--json", metavar="PATH")


def command_of(
    kind: type[T], others: Mapping[str, str] = MappingProxyType({})
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function that takes a dataclass, with an option for each of its fields.

    Args:
        kind: A dataclass whose fields are declared with `ringproof.options.option`, or are such
            dataclasses themselves. No two of all these fields have the same name.
        others: Options of what has another name where it is refused.

    The function takes the dataclass, or the context of typer and the dataclass. Whatever it, or the
    dataclass, refuses by the name of a field is refused by the name of the option.
    """
    parameters = [_parameter(one, annotation) for one, annotation in option_fields(kind)]

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(function).parameters
        context = [
            one.replace(annotation=typer.Context, kind=one.KEYWORD_ONLY)
            for one in own.values()
            if one.name == "context"
        ]

        @functools.wraps(function)
        def run(**values: Any) -> None:
            first = [values["context"]] if context else []
            with named_by_option(kind, others):
                function(*first, _built(kind, values))

        shown = [*context, *parameters]
        vars(run)["__signature__"] = inspect.Signature(shown)
        run.__annotations__ = {one.name: one.annotation for one in shown}
        return run

    return decorate


def _parameter(one: Field[Any], annotation: Any) -> inspect.Parameter:
    """Declare the option of a field as typer wants it."""
    limits, default = told(one), one.default
    names = limits.names or (spelled(one),)
    if default is True and not limits.names:
        names = (f"{names[0]}/--no-{names[0][2:]}",)
    metavar = limits.metavar or "|".join(limits.choices)
    if annotation == tuple[int, ...]:  # typer's own lists are options that are repeated
        annotation, default = str, ""
    elif annotation == tuple[str, ...]:
        annotation, default = list[str] | None, None
    if not metavar and annotation is not bool:
        metavar = "N" if annotation in (int, int | None) else "X"
    declared = typer.Option(default, *names, metavar=metavar or None, help=limits.help)
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(one.name, kind, default=declared, annotation=annotation)


def _built(kind: type[T], values: Mapping[str, Any]) -> T:
    """Build a dataclass from the values of the command line."""
    hints, made = get_type_hints(kind), {}
    for one in fields(kind):  # type: ignore[arg-type] # T is a dataclass
        if "option" not in one.metadata:
            made[one.name] = _built(hints[one.name], values)
        elif hints[one.name] == tuple[int, ...]:
            made[one.name] = integers(spelled(one), values[one.name])
        elif hints[one.name] == tuple[str, ...]:
            made[one.name] = tuple(values[one.name] or ())
        else:
            made[one.name] = values[one.name]
    return kind(**made)


def integers(option: str, text: str) -> tuple[int, ...]:
    """Return the integers of a comma-separated list; an empty text has none.

    Raises:
        InputError: A part is not an integer.
    """
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        sentence = f"{shown(text)} is not a list of integers; write it as 2,4"
        raise InputError(option, sentence) from None
