"""What a command writes is checked before it runs, for every command and every option."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from ringproof.cli.main import app
from ringproof.cli.places import FILES
from ringproof.errors import InputError

LOG = "iteration 1/ 1 | lm loss: 1.0 | grad norm: 1.0 |\n"


def commands(command: Any, *name: str) -> Iterator[tuple[str, Any]]:
    yield " ".join(name), command
    for part, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, *name, part)


def writers() -> list[tuple[str, str]]:
    """Each command with each of its options that name a file to write."""
    return [
        (name, parameter.opts[0])
        for name, command in commands(typer.main.get_command(app))
        for parameter in command.params
        if parameter.opts[0] in FILES and parameter.metavar != "DIR"
    ]


def refused(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments))
    assert isinstance(done.exception, InputError), done.output
    return str(done.exception)


def test_options_that_write_a_file_are_known() -> None:
    """By their help; a new one has to be named in FILES, or be a folder."""
    said = ("Write ", "Draw ", "File to write")
    unknown = {
        f"{name} {parameter.opts[0]}"
        for name, command in commands(typer.main.get_command(app))
        for parameter in command.params
        if (getattr(parameter, "help", None) or "").startswith(said)
        and parameter.opts[0] not in FILES
    }
    unknown -= {"prove --record", "smoke megatron --trace"}  # folders
    unknown -= {"render --check", "plan --batches", "upstream list --write"}  # no names
    assert unknown == set()
    assert len(writers()) > 25


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lengths").write_text("100\n200\n")
    for name in ("a", "b"):
        (tmp_path / name).write_text(LOG)
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "hard").hardlink_to(tmp_path / "a")
    (tmp_path / "folder").mkdir()
    return tmp_path


PLAN = ("plan", "--lengths", "lengths", "--ranks", "8", "--max-tokens-per-rank", "100")
PARITY = ("logs", "parity", "a", "b")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*PARITY, "--html", "a"), "--html: 'a' is an input of this command; name another"),
        ((*PARITY, "--json", "./b"), "is an input of this command"),
        ((*PARITY, "--json", "link"), "is an input of this command"),
        ((*PARITY, "--json", "hard"), "is an input of this command"),
        ((*PLAN, "--json", "lengths"), "is an input of this command"),
        ((*PLAN, "--json", "x", "--html", "./x"), "--html: './x' is where --json writes"),
        (("train", "--log", "x", "--json", "x"), "'x' is where --"),
        (("prove", "--json", "folder"), "--json: 'folder' is a folder"),
        (("lint", "folder", "--sarif", "missing/x"), "--sarif: 'missing/x' cannot be written"),
    ],
)
def test_nothing_is_overwritten(files: Path, arguments: tuple[str, ...], message: str) -> None:
    assert message in refused(*arguments)
    assert (files / "a").read_text() == (files / "b").read_text() == LOG
    assert not (files / "x").exists()


@pytest.mark.parametrize(("command", "option"), writers(), ids=" ".join)
def test_every_command_refuses_a_folder(files: Path, command: str, option: str) -> None:
    """Before anything else: what the other arguments name is not there."""
    words = [*command.split(), option, "folder"]
    found = next(one for name, one in commands(typer.main.get_command(app)) if name == command)
    for parameter in found.params:
        if parameter.required or command == "logs parity":
            is_option = parameter.param_type_name == "option"
            words += [parameter.opts[0], "a"] if is_option and parameter.required else []
            words += [] if is_option else ["a"]
    assert f"{option}: 'folder' is a folder" in refused(*words)


def test_a_place_below_a_file_is_refused_before_the_work(files: Path) -> None:
    assert "--json: 'a/x' cannot be written; name another place" in refused(*PLAN, "--json", "a/x")


def test_a_place_that_takes_no_files_is_refused_before_the_work(files: Path) -> None:
    """Also for root, who has all permissions."""
    (files / "b").chmod(0o444)
    for command in ("fit", "rehearse"):
        words = (command, "--upstream", "nothing-here", "missing.sh")
        for option in ("--html", "--json"):
            said = f"{option}: '/proc/x' cannot be written; name another place"
            assert said in refused(*words, option, "/proc/x")
            assert f"{option}: 'b' is read-only" in refused(*words, option, "b")


def test_devices_and_standard_output_can_be_shared(files: Path) -> None:
    done = CliRunner().invoke(app, [*PLAN, "--json", "/dev/null", "--html", "/dev/null"])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("option", ["--out", "--record"])
def test_a_folder_that_cannot_be_made_is_refused(files: Path, option: str) -> None:
    assert f"{option}: '{files / 'a'}' is a file" in refused("prove", option, "a/b")
    (files / "folder").chmod(0o500)
    if os.access(files / "folder", os.W_OK):
        pytest.skip("this user may write everywhere")
    assert f"{option}: '{files / 'folder'}' cannot be written" in refused("prove", option, "folder")
