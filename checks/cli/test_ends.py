"""A command that is ended early leaves nothing behind, and `checks.cli.ends` sees what is left."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path

import pytest

from checks.cli import ends
from checks.cli.ends import ITSELF, SIGNALS, Command, trial, trials

TRAIN = Command(
    ("train", "--dp", "2", "--steps", "8", "--global-batch", "4", "--max-length", "64",
     "--max-tokens-per-rank", "128", "--log", "log", "--save", "kept", "--save-every", "1",
     "--json", "out.json"),
    ("out.json",), True, "log", "kept",
)  # fmt: skip
PLAN = Command(
    ("plan", "--lengths", "lognormal:mean=1024,sigma=1.5,max=65536,n=60000", "--ranks", "64",
     "--max-tokens-per-rank", "8192", "--json", "out.json"),
    ("out.json",),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("command", [TRAIN, PLAN], ids=["train", "plan"])
def test_ended_early(command: Command) -> None:
    done = list(trials(command, 1, random.Random(15)))
    assert len(done) == len(SIGNALS) + 1
    assert [wrong for _, found in done for wrong in found] == []


def script(text: str) -> str:
    return f"import atexit, os, pathlib, signal, subprocess, sys, tempfile, time\n{text}"


WAITS = "print('waits', flush=True); time.sleep(60)"
IGNORES = f"signal.signal(signal.SIGTERM, signal.SIG_IGN); {WAITS}"
SAYS = (
    "def end(*_): print('interrupted by SIGTERM: x'); sys.exit(143)\n"
    f"signal.signal(signal.SIGTERM, end); {WAITS}"
)


@pytest.mark.parametrize(
    ("does", "said"),
    [
        (SAYS, ""),
        (IGNORES, "did not end within 1 s"),
        (SAYS.replace("interrupted", "ended"), "did not say so"),
        (f"tempfile.mkstemp()\n{SAYS}", "left tmp"),
        (f"subprocess.Popen(['sleep', '60'])\n{SAYS}", "left process"),
        (f"print('Traceback (most recent')\n{SAYS}", "traceback"),
        (SAYS.replace("143", "3"), "exit code 3"),
        (f"pathlib.Path('out.json').write_text('{{')\n{SAYS}", "out.json is half written"),
        (f"pathlib.Path('log').write_text('{{}}\\n{{')\n{SAYS}", "a line of log is half written"),
        (f"pathlib.Path('.out').touch()\n{SAYS}", ".out is left"),
        (f"os.mkdir('kept'); pathlib.Path('kept/latest').write_text('a')\n{SAYS}", "run.json of"),
    ],
)
def test_what_is_wrong_is_seen(does: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends, "ENTRY", script(does))
    monkeypatch.setattr(ends, "PATIENCE_SECONDS", 1)
    monkeypatch.setattr(ends, "ENDED_SECONDS", 1)
    command = Command((), ("out.json",), growing="log", checkpoints="kept")
    wrong = trial(command, number=signal.SIGTERM, after=1.5)
    assert any(said in found for found in wrong) if said else wrong == []


@pytest.mark.parametrize(("code", "said"), [(0, ""), (3, "exit code 3")])
def test_a_process_of_the_command_is_killed(
    code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = f"sys.exit({code} if subprocess.Popen(['sleep', '60']).wait() == -9 else 7)"
    monkeypatch.setattr(ends, "ENTRY", script(ended))
    wrong = trial(Command((), ()), number=signal.SIGTERM, after=0.7, victim=random.Random(0))
    assert any(said in found for found in wrong) if said else wrong == []


@pytest.mark.parametrize("says", ["git was ended by signal SIGKILL", "git is damaged"])
def test_what_names_the_process_that_was_killed_is_not_a_refusal(
    says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = f"subprocess.Popen(['sleep', '60']).wait(); print({says!r}); sys.exit(2)"
    monkeypatch.setattr(ends, "ENTRY", script(ended))
    early, wrong = ends.ended_early(
        Command((), (), logs="logs"), number=signal.SIGTERM, after=0.7, victim=random.Random(0)
    )
    assert (early, wrong == []) == (("SIGKILL" in says,) * 2)


def test_a_command_that_ends_by_itself_is_not_counted_as_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ends, "ENTRY", "")
    monkeypatch.setattr(ends, "COMMANDS", {"short": Command((), (), seconds=60)})
    assert [ends.end("short", seed)[0] for seed in (0, 4)] == [ITSELF, ITSELF]


def test_the_committed_record_of_ends_is_whole() -> None:
    """It names only commands whose ends were recorded; CHANGELOG.md says which are not."""
    record = json.loads(Path(ends.__file__).with_name("ended.json").read_text(encoding="utf-8"))
    changes = " ".join((ends.ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split())
    assert record and {*record} <= {*ends.COMMANDS}
    for name, kept in record.items():
        assert sum(kept["counts"].values()) == kept["runs"] == len({*kept["seeds"]})
        assert {*kept["counts"]} <= {ITSELF, ends.RANK, *(one.name for one in SIGNALS)}
        assert len(kept["commit"]) == 40 and kept["dirty"] is False
        assert kept["wrong"] == []
        assert f"{kept['runs']} ends of `{name}` (`{kept['commit'][:8]}`)" in changes
