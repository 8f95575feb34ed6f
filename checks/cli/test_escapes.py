"""Text of other people's files cannot steer the terminal on which a command prints it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from checks.action.installed import ROOT
from ringproof.cli.console import HarmlessConsole
from ringproof.cli.main import app
from ringproof.cli.output import echo_text, write_result
from ringproof.findings.finding import Finding, Report, Rule
from ringproof.findings.formats import print_report

HOSTILE = "one\x1b]0;x\x07 two\x9b2J \u202ethree\ttab\n"


def test_a_result_is_printed_without_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    write_result({}, [HOSTILE], "")
    shown = capsys.readouterr().out
    assert shown == "one\\u001b]0;x\\u0007 two\\u009b2J \\u202ethree\ttab\n\n"


@pytest.mark.parametrize("terminal", [True, False])
def test_a_text_is_exact_unless_a_terminal_shows_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    echo_text(HOSTILE)
    shown = capsys.readouterr().out
    assert ("\x1b" in shown or "\x9b" in shown) is not terminal
    assert terminal or shown == HOSTILE


@pytest.mark.parametrize("terminal", [True, False])
def test_a_console_shows_findings_without_escapes(
    capsys: pytest.CaptureFixture[str], terminal: bool
) -> None:
    finding = Finding("RA101", f"{HOSTILE}.md", 1, HOSTILE, details=(HOSTILE,))
    report = Report((Rule("RA101", "x", "error", "y"),), (finding,), ("end",))
    print_report(report, HarmlessConsole(force_terminal=terminal, color_system=None))
    shown = capsys.readouterr().out
    assert shown.count("\\u202ethree") == 2 and shown.count("\\u009b2J") == 2
    assert not set("\x1b\x07\x9b\u202e") & set(shown)


def test_every_command_prints_on_that_console() -> None:
    texts = [path.read_text("utf-8") for path in (ROOT / "src/ringproof/cli").glob("*.py")]
    assert not any(re.search(r"(?<![\w.])Console\((?!\))", text) for text in texts)
    assert sum(text.count("HarmlessConsole(") for text in texts) >= 10


def test_the_doctor_prints_a_hostile_launch_without_escapes(tmp_path: Path) -> None:
    launch = tmp_path / "train.sh"
    odd = "'--context-parallel-size' '4' '--log-\x1b[2Jodd' '\x1b]0;x\x07' '--tensorboard-\x9bx' y"
    launch.write_text(f"torchrun --nproc-per-node 8 pretrain_gpt.py {odd}\n", encoding="utf-8")
    words = ["doctor", "--quick", str(launch), "--skills", str(ROOT / "skills")]
    done = CliRunner().invoke(app, words)
    assert done.stdout, done.exception
    assert not set("\x1b\x07\x9b") & set(done.stdout + done.stderr)
