"""The ``ringproof`` command: its subcommands, which are loaded when they are used, and exit codes.

Exit codes of every command: 0 ok, 1 problems found, 2 bad usage or input, 3 internal error; 129,
130 and 143 when it was interrupted by SIGHUP, SIGINT or SIGTERM.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, TextIO

import typer
from typer.core import TyperGroup

from ringproof import __version__
from ringproof.cli.limits import limit_behind
from ringproof.cli.places import guard
from ringproof.cli.termination import Interrupted, termination_as_exit
from ringproof.errors import InputError, printable, shown

CLOSED_PIPE = 141
"""Exit code of a command whose reader has gone: that of a process ended by SIGPIPE."""

_GROUPS = MappingProxyType(
    {
        "Before a run": {
            "doctor": "Examine the configuration of a training job before it starts.",
            "rehearse": "Run a training launch in small on the CPU of this machine.",
            "fit": "Measure what a launch takes of a GPU's memory, without a GPU.",
            "stack": "Say which upstream a checkout is, and what of the skills holds in it.",
            "plan": "Plan a batch: microbatches, CP groups and the gain over static CP.",
        },
        "After a run": {
            "logs": "Read what the logs of a run prove.",
        },
        "Is it correct": {
            "conform": "Compare tiny CP trainings of a Megatron with the same on one rank.",
            "parity": "Compare CP attention with attention on one rank.",
            "smoke": "Run upstream's training program on a cluster, with a feature on and off.",
            "trace": "Compare what two runs computed, tensor by tensor.",
            "train": "Train a tiny model with any mix of parallelism.",
        },
        "Use the skills": {
            "skills": "List, print, install, update and remove the skills.",
        },
        "Write and prove skills": {
            "prove": "Run the proofs of the skills and give a verdict on each statement.",
            "lint": "Check agent skills against the specification and for safety.",
            "fences": "Check the code and line numbers that documents quote.",
            "anchors": "Find and check the places in upstream's code that cards point to.",
            "upstream": "Bring the upstream code that cards name to this machine.",
            "render": "Fill the generated blocks of skills from their cards.",
            "card": "Print the JSON Schema of cards, for editors.",
        },
    }
)
"""One sentence for each command, in groups by what a user wants."""

_HELP = MappingProxyType({name: text for group in _GROUPS.values() for name, text in group.items()})

_KEPT = MappingProxyType(
    {
        "fit": "the folder of the run keeps the logs written so far",
        "prove": "no evidence is recorded; what was fetched stays",
        "rehearse": "the folder of the run keeps the logs written so far",
        "skills": "skills installed before stay, each complete",
        "smoke": "the folder of the run keeps the logs written so far",
        "train": "a log keeps the steps done, and the newest finished checkpoint stays",
        "upstream": "what was fetched stays, and the same command goes on",
    }
)
"""What is there after a command was interrupted; the others write their results at the end."""


class _Loaded(Mapping[str, Any]):
    """The commands by name; a command's module is imported when the command is asked for."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(_HELP)

    def __len__(self) -> int:
        return len(_HELP)

    def __getitem__(self, name: str) -> Any:
        if name not in _HELP:
            raise KeyError(name)
        if name not in self._known:
            self._known[name] = _load(name)
        return self._known[name]


def _load(name: str) -> Any:
    """The command of ``ringproof.cli.NAME``: its ``app``, or its function of that name."""
    module = importlib.import_module(f"ringproof.cli.{name}")
    holder = typer.Typer(add_completion=False, rich_markup_mode=None)
    if hasattr(module, "app"):
        holder.add_typer(module.app, name=name, help=_HELP[name])
    else:
        function = getattr(module, name)
        holder.command(name, epilog=getattr(module, "EXAMPLE", None))(function)
    command = typer.main.get_group(holder).commands[name]
    guard(command)
    _leave_out_types_of_arguments(command)
    return command


def _leave_out_types_of_arguments(command: Any) -> None:
    """Let the help of a tree of commands list arguments without types: placeholders say them.

    Typer shows them from 0.29 on.
    """
    for part in getattr(command, "commands", {}).values():
        _leave_out_types_of_arguments(part)
    for item in command.params:
        if item.param_type_name == "argument" and hasattr(item, "display_type_rich"):
            item.display_type_rich = lambda *, ctx: ""


class _Commands(TyperGroup):
    """The root command. Its help needs no subcommand to be loaded."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Loaded()  # type: ignore[assignment] # nothing adds to it

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands in their groups, each with one sentence."""
        widest = max(map(len, _HELP))
        for title, commands in _GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{widest}}", said) for name, said in commands.items()])

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Complete the name of a command without loading any; options as click does."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [SimpleNamespace(value=name, type="plain", help=said)
                for name, said in _HELP.items() if name.startswith(incomplete)]  # fmt: skip

    def invoke(self, ctx: Any) -> Any:
        """Run the command; click would end silently on a broken pipe of any file."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:  # that of a rank or another child: see _Output
            raise RuntimeError(f"broken pipe: {error}") from error


app = typer.Typer(
    name="ringproof",
    cls=_Commands,
    help="Agent skills for context parallelism in LLM training, with a proof for each statement.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False,
        "--version",
        "-V",
        callback=_version,
        is_eager=True,
        help="Print the version and exit.",
    ),
) -> None:
    pass


class _Output(io.TextIOWrapper):
    """Standard output or standard error, whose failures are told apart from those of files."""

    def write(self, text: str) -> int:
        """Write the text."""
        with self._reported():
            return super().write(text)

    def flush(self) -> None:
        """Write what is buffered."""
        with self._reported():
            super().flush()

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())  # so that exit can flush
            if isinstance(error, BrokenPipeError):
                sys.exit(CLOSED_PIPE)
            sentence = f"it cannot be written ({error.strerror}); write to a place that has room"
            raise InputError("output", sentence) from error


def main() -> None:
    """Run the command line; what goes wrong is one line on stderr and an exit code."""
    sys.stdout, sys.stderr = _output(sys.stdout), _output(sys.stderr)
    try:
        with termination_as_exit():
            _require_folder()
            code = app(standalone_mode=False)
    except Interrupted as signal:
        name = next((word for word in sys.argv[1:] if word in _HELP), "")
        kept = signal.kept or _KEPT.get(name, "no result is written")
        with contextlib.suppress(InputError):  # where the terminal is gone
            typer.echo(f"interrupted by {signal.name}: {kept}", err=True)
        raise
    except InputError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
    except Exception as error:
        sys.exit(_refused(error) if hasattr(error, "format_message") else _explained(error))
    sys.exit(code or 0)


def _require_folder() -> None:
    """Refuse to run in a folder that was deleted, in which no relative path means anything."""
    try:
        Path.cwd()
    except OSError as error:
        sentence = f"it cannot be used ({error.strerror}); change to one that exists"
        raise InputError("current folder", sentence) from error


def _listed(names: list[str]) -> str:
    return f"is unknown; use one of {', '.join(names)}"


_OWN_WORDS: tuple[tuple[re.Pattern[str], Any], ...] = (  # for what click and pydantic say otherwise
    (re.compile(r"^Invalid value for '([^']+)': (?:Value error, )?"), r"\1: "),
    (
        re.compile(r"^Missing (?:option|argument|parameter) '([^']+)'\.?"),
        r"\1 is missing; see --help",
    ),
    (
        re.compile(r"Input should be (?:a|an) (?:valid )?([^,]+)(?:, .*)?$"),
        r"this is not a valid \1; see --help",
    ),
    (re.compile(r"is not one of '(.*)'\.$"), lambda found: _listed(found[1].split("', '"))),
    (re.compile(r"^Option '([^']+)' requires an argument\.?"), r"\1 needs a value; see --help"),
    (
        re.compile(
            r"^No such option: (\S+?)\.?(?: \(?(?:Possible options:|Did you mean) (.*?)\)?)?$"
        ),
        r"\1 is unknown; use one of \2",
    ),
    (re.compile(r" use one of $"), " see --help"),
)


def _refused(error: Any) -> int:
    """Say in one line what click refuses on the command line; click itself prints four.

    Without any words there is nothing to refuse: then the help is printed.
    """
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
    else:
        said = " ".join(error.format_message().split())
        for pattern, words in _OWN_WORDS:
            said = pattern.sub(words, said)
        for problem in getattr(error.__cause__, "errors", list)():  # pydantic's have the value
            said = said.replace(": this is", f": {shown(problem['input'])} is")
        typer.echo(f"error: {printable(said)}", err=True)
    return int(error.exit_code)


def _output(stream: TextIO) -> TextIO:
    """The stream as an `_Output`; a character that it cannot encode is printable."""
    if type(stream) is not io.TextIOWrapper:  # closed, or captured by a test
        return stream
    encoding, lines = stream.encoding, stream.line_buffering
    return _Output(stream.detach(), encoding, "backslashreplace", line_buffering=lines)


def _explained(error: Exception) -> int:
    """Say what happened in one line.

    Returns:
        1 for a rank that failed, 2 for a limit of the machine, 3 for anything else: that is a fault
        of ringproof.
    """
    limit = limit_behind(error)
    if limit is not None:
        typer.echo(f"error: {limit}", err=True)
        return 2
    from ringproof.cluster import RankFailure  # after that, since a limit may forbid an import

    if isinstance(error, RankFailure):
        typer.echo(f"error: {error}", err=True)
        return 1
    said = " ".join(traceback.format_exception_only(error)[-1].split())[:300]
    typer.echo(f"internal error: {printable(said)}; {_kept_traceback(error)}", err=True)
    return 3


def _kept_traceback(error: Exception) -> str:
    """Write the traceback into a file in the temporary folder, and say where it is."""
    lines = "".join(traceback.format_exception(error))
    try:
        handle, name = tempfile.mkstemp(prefix="ringproof-error-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(f"ringproof {__version__}: {sys.argv}\n{lines}")
    except OSError:
        typer.echo(lines, err=True)
        return "the traceback is above"
    return f"the traceback is in {name}"
