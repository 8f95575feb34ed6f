"""Options that several commands have, each with one name, one meaning and one help text."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import typer

from ringproof import __version__
from ringproof.cache import default_cache
from ringproof.errors import InputError, shown
from ringproof.options import check_options, named_by_option, option, option_fields, spelled, told
from ringproof.shipped import shipped_skills


def chosen_skills(ctx: typer.Context, param: typer.CallbackParam, value: Path) -> Path:
    """Return the folder that was given, or that is here, or else that of the installation."""
    shipped = None if given(ctx, param.name) or value.exists() else shipped_skills()
    if shipped is None:
        return value
    typer.echo(f"skills: those of ringproof {__version__}, as no folder skills is here", err=True)
    return shipped


def knowing_skills(ctx: typer.Context, param: typer.CallbackParam, value: Path) -> Path:
    """Return the folder that was given, or `known_skills`."""
    return value if given(ctx, param.name) else known_skills(None)


def known_skills(chosen: Path | None, needed: str = "") -> Path:
    """Return the folder of skills that was given, or that is here and has cards, or is installed.

    One here has to have the card of the skill that is needed, which that of a project of one's own
    may not. A checkout of upstream may have a folder of skills whose cards, if any, are of another
    form.
    """
    from ringproof.cards.loading import find_card, has_card  # 80 ms, which most need not pay

    here = Path("skills")
    if chosen is not None:
        return chosen
    found = has_card(here) and (not needed or find_card(here / needed) is not None)
    return here if found else shipped_skills() or here


def given(ctx: typer.Context, name: str | None) -> bool:
    """Whether the value of a parameter is of the command line, and not its default."""
    source = ctx.get_parameter_source(str(name))
    return source is not None and source.name != "DEFAULT"


T = TypeVar("T")

_JSON = "Write the result as JSON to this file. - writes it to standard output."
JsonOption = Annotated[str, typer.Option("--json", metavar="PATH", help=_JSON)]


def json_option() -> Any:
    """Declare the option ``--json``."""
    return option("", _JSON, "--json", metavar="PATH")


def force_option() -> Any:
    """Declare the option ``--force`` of the commands that start processes."""
    return option(False, "Start even if the machine seems too small for it.")


def folder_option(choose: Callable[..., Path] | None = None) -> Any:
    """Declare the option ``--skills``.

    Args:
        choose: One of `chosen_skills` and `knowing_skills` for a command that reads skills. A
            command that writes into them takes the folder as it is given.
    """
    help = "The folder that holds the skills"
    more = "; without it here, the skills of the installation." if choose else "."
    return option(Path("skills"), help + more, "--skills", metavar="DIR", callback=choose)


@dataclass(frozen=True, kw_only=True)
class CacheOptions:
    """Where downloads are kept."""

    cache: Path | None = option(
        None, "The folder for downloads. [default: ~/.cache/ringproof]", metavar="DIR"
    )

    @property
    def downloads(self) -> Path:
        """The folder for downloads: the one that was given, or the default.

        Raises:
            InputError: The path is empty, which would be the current folder.
        """
        if self.cache is None:
            return default_cache()
        if not str(self.cache).strip("."):
            sentence = f"{shown(self.cache)} is the current folder; name another folder"
            raise InputError("--cache", sentence)
        return self.cache


@dataclass(frozen=True, kw_only=True)
class SkillNames:
    """Which skills a command is about."""

    skills: tuple[str, ...] = option(
        (), "Names of skills; without one, all skills.", metavar="SKILL", argument=True
    )


@dataclass(frozen=True, kw_only=True)
class SkillOptions(SkillNames, CacheOptions):
    """Which skills a command is about, where they are, and where downloads are kept."""

    folder: Path = folder_option(chosen_skills)


@dataclass(frozen=True, kw_only=True)
class SourceOptions(CacheOptions):
    """Where downloads are kept, and whether there may be new ones."""

    offline: bool = option(False, "Do not download anything.")

    @property
    def source(self) -> dict[str, Any]:
        """Both, as the functions that open upstream code take them."""
        return {"cache": self.downloads, "offline": self.offline}


@dataclass(frozen=True, kw_only=True)
class UpstreamOptions(SourceOptions):
    """Where the upstream code is that cards or documents name."""

    upstream: tuple[str, ...] = option(
        (),
        "Where upstream code is. NAME is an upstream of a card, a repository OWNER/NAME, or "
        "a path that documents begin with; SPEC is git:PATH[@REF], fetched:OWNER/NAME@COMMIT, "
        "pip:PACKAGE==VERSION, dir:PATH or installed:PACKAGE. Can be given several times.",
        metavar="NAME=SPEC",
    )


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
    """Declare the option or argument of a field as typer wants it."""
    limits, default = told(one), one.default
    names = () if limits.argument else limits.names or (spelled(one),)
    if default is True and not limits.names:
        names = (f"{names[0]}/--no-{names[0][2:]}",)
    metavar = limits.metavar or "|".join(limits.choices)
    if annotation == tuple[int, ...]:  # typer's own lists are options that are repeated
        annotation, default = str, ""
    elif get_origin(annotation) is tuple:
        several = list[get_args(annotation)[0]]  # type: ignore[valid-type,misc] # made for typer
        annotation, default = (several, ...) if default is ... else (several | None, None)
    if not metavar and annotation in (int, int | None, float, float | None):
        metavar = "N" if annotation in (int, int | None) else "X"
    declare = typer.Argument if limits.argument else typer.Option
    declared = declare(
        default, *names, metavar=metavar or None, help=limits.help, callback=limits.callback
    )
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(one.name, kind, default=declared, annotation=annotation)


def _built(kind: type[T], values: Mapping[str, Any]) -> T:
    """Build a dataclass from the values of the command line, and check them."""
    hints, made = get_type_hints(kind), {}
    for one in fields(kind):  # type: ignore[arg-type] # T is a dataclass
        if "option" not in one.metadata:
            made[one.name] = _built(hints[one.name], values)
        elif hints[one.name] == tuple[int, ...]:
            made[one.name] = integers(spelled(one), values[one.name])
        elif get_origin(hints[one.name]) is tuple:
            made[one.name] = tuple(values[one.name] or ())
        else:
            made[one.name] = values[one.name]
    built = kind(**made)
    check_options(built)
    return built


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
