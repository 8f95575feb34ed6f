"""Subcommands are loaded when used, and what goes wrong ends with the exit code that says so."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import typer.testing

from checks.house.features import features
from checks.running import ran, ringproof, run_here
from ringproof.cli import main as command
from ringproof.errors import InputError

BROKEN = """
import sys
from ringproof.cli import render
def find_cards(*_): raise {error}
render.find_cards = find_cards
sys.argv = ["ringproof", "render"]
from ringproof.cli.main import main
main()
"""


def failing(error: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TMPDIR": str(folder)}
    return ran(sys.executable, "-c", BROKEN.format(error=error), env=environment)


def test_help_loads_no_command() -> None:
    program = (
        "import sys; sys.argv = ['ringproof', '--help']\n"
        "from ringproof.cli.main import main\n"
        "try: main()\n"
        "finally: print(*(m for m in sys.modules if m.split('.')[0] in ('ringproof', 'rich')))"
    )
    *shown, loaded = ran(sys.executable, "-c", program).stdout.splitlines()
    assert any(line.startswith("  lint ") for line in shown)
    small = ("cli", "cli.limits", "cli.main", "cli.places", "cli.termination", "errors")
    assert set(loaded.split()) == {"ringproof", *(f"ringproof.{name}" for name in small)}


COMPLETED = """
import sys
sys.argv = ["ringproof"]
from ringproof.cli.main import main
try: main()
finally: print(*(m for m in sys.modules if m.startswith("ringproof.cli.") or m == "torch"))
"""


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("s", "stack smoke skills"), ("rehearse --up", "--upstream"), ("skills sh", "show")],
)
def test_a_shell_completes_without_torch(typed: str, offered: str) -> None:
    words = f"ringproof {typed}"
    asked = {"_RINGPROOF_COMPLETE": "complete_bash", "COMP_WORDS": words}
    place = {"COMP_CWORD": str(len(words.split()) - 1)}
    done = ran(sys.executable, "-c", COMPLETED, env={**os.environ, **asked, **place})
    *shown, loaded = done.stdout.splitlines()
    assert (done.returncode, " ".join(shown)) == (0, offered), done.stderr
    assert "torch" not in loaded.split()
    assert (" " not in typed) == ("ringproof.cli.options" not in loaded.split())


@pytest.mark.parametrize(
    ("short", "long"), [("-h", "--help"), ("-V", "--version"), ("doctor -h", "doctor --help")]
)
def test_short_options_do_what_the_long_ones_do(short: str, long: str) -> None:
    shown = [run_here(Path(), words.split()).stdout for words in (short, long)]
    assert shown[0] == shown[1] != ""


def test_every_command_of_the_help_can_be_loaded() -> None:
    root = typer.main.get_command(command.app)
    for name in root.commands:
        assert root.commands[name].name == name
    assert "lnt" not in root.commands


@pytest.mark.parametrize(
    "error", ["KeyError('where')", "OSError('card.yaml vanished')", "BrokenPipeError(32, 'a rank')"]
)
def test_an_unexpected_error_is_exit_3_with_a_traceback_in_a_file(
    error: str, tmp_path: Path
) -> None:
    done = failing(error, tmp_path)
    assert done.returncode == 3
    assert "output" not in done.stderr
    said = re.fullmatch(r"internal error: .*; the traceback is in (\S+)\n", done.stderr)
    assert said is not None, done.stderr
    assert "find_cards" in Path(said[1]).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("train --tp x", "error: --tp: 'x' is not a valid integer; see --help\n"),
        ("train --learning-rate \\1", "error: --learning-rate: '\\1' is not a valid number; see"),
        ("card schema -o", "error: -o needs a value; see --help\n"),
        ("upstream fetch --frm x", "error: --frm is unknown; use one of --from\n"),
        ("card --zzz", "error: --zzz is unknown; see --help\n"),
        ("fit a", "error: --upstream is missing; see --help"),
        ("lint skills --format x", "error: --format: 'x' is unknown; use one of text, json,"),
        ("lnt", "error: No such command 'lnt'."),
        ("plan --rank 8", "error: --rank is unknown; use one of --ranks"),
        ("upstream", "Usage: "),
    ],
)
def test_what_is_no_command_line_is_one_line(words: str, said: str) -> None:
    done = run_here(Path(), words.split())
    assert done.returncode == 2
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == 1 or said == "Usage: "


def test_without_a_place_for_the_traceback_it_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(**_: str) -> tuple[int, str]:
        raise OSError("no room")

    monkeypatch.setattr(command.tempfile, "mkstemp", nowhere)
    assert command._kept_traceback(ValueError("x")) == "the traceback is above"


def test_output_that_cannot_be_written_is_exit_2() -> None:
    with Path("/dev/full").open("w") as full:
        streams = {"stdout": full, "stderr": subprocess.PIPE, "capture_output": False}
        done = ringproof("card", "schema", **streams)
    assert done.returncode == 2
    assert done.stderr.startswith("error: output: it cannot be written (No space left")


def test_a_reader_that_has_gone_ends_the_command_without_a_word() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    streams = {"stdout": writing, "stderr": subprocess.PIPE, "capture_output": False}
    done = ringproof("card", "schema", **streams)
    os.close(writing)
    assert (done.returncode, done.stderr) == (command.CLOSED_PIPE, "")


LOADING = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Slow:
    def find_spec(self, name, *_):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Slow())
from ringproof.__main__ import start
start()
"""
FINALIZING = """
import os, signal, time
from ringproof.cli.termination import termination_as_exit
class Last:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
with termination_as_exit():
    Last()
    time.sleep(60)
"""


@pytest.mark.parametrize(("code", "ended"), [(LOADING, -2), (FINALIZING, 143)])
def test_an_interrupt_at_an_odd_moment_ends_without_a_traceback(code: str, ended: int) -> None:
    """Before the command line is loaded, and where Python prints exceptions and goes on."""
    done = ran(sys.executable, "-c", code, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (ended, "", "")


NO_TIMES = {"--clip", "--learning-rate", "--scale", "--tol", "--weight-decay"}


@pytest.mark.parametrize("value", ["0.0", "nan", "inf", "1e+300"])
def test_a_time_is_one_that_can_be_waited_for(value: str) -> None:
    """1e300 s was an internal error of `poll`; every option that is a time has the one check."""
    numbers = [line.split()[2:] for line in features() if "(float" in line]
    times = [(words, option) for *words, option, _, _, _ in numbers if option not in NO_TIMES]
    assert {option for _, option in times} == {"--patience", "--timeout"}
    for words, option in times:
        with pytest.raises(InputError, match=re.escape(f"{option}: {value} is not a time")):
            needed = ("--upstream", "x") if words in (["fit"], ["rehearse"]) else ()
            typer.testing.CliRunner().invoke(
                command.app, [*words, *needed, option, value], catch_exceptions=False
            )
