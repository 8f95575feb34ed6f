"""Ask an assistant's command line, in a scratch folder with or without the skill, and score it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from ringproof.errors import InputError
from ringproof.evals.cases import EvalCase
from ringproof.files import read_bounded
from ringproof.installing import AGENTS
from ringproof.processes import contained
from ringproof.progress import progress

PROMPT = "{prompt}"
"""Stands in a command line for the prompt; without it, the prompt is standard input."""
MAX_ANSWER_BYTES = 4_000_000
_NOT_GIVEN = ("evals", "__pycache__")
"""Parts of a skill that hold the answers, or that nobody reads."""


@dataclass(frozen=True)
class Arm:
    """A case, with the skill or without it."""

    case: EvalCase
    skill: Path | None

    @property
    def name(self) -> str:
        """``with`` or ``without``."""
        return "without" if self.skill is None else "with"


@dataclass(frozen=True)
class Answer:
    """What an assistant made of a case.

    Attributes:
        state: ``answered``, ``failed`` for another exit code than 0, or ``timed out``.
        met: For each expectation of the case, whether the answer meets it.
        seconds: Time from start to end.
        text: What it wrote to standard output.
        errors: The end of what it wrote to standard error.
    """

    arm: Arm
    state: str
    met: tuple[bool, ...]
    seconds: float
    text: str
    errors: str

    @property
    def score(self) -> float:
        """Share of the expectations that are met."""
        return sum(self.met) / len(self.met)


def judged(case: EvalCase, answer: str) -> tuple[bool, ...]:
    """Return for each expectation whether an answer meets it.

    An answer that says nothing of what it must say meets none: what it leaves out is no merit then.
    """
    met = tuple(one.met(answer) for one in case.expectations)
    useful = any(ok for ok, one in zip(met, case.expectations, strict=True) if one.says)
    return met if useful else (False,) * len(met)


def ask_all(
    arms: Sequence[Arm], command: Sequence[str], limit: float, console: Console
) -> Iterator[Answer]:
    """Ask for each arm, one after the other, and yield the answers.

    Raises:
        InputError: The command does not exist.
    """
    failed = 0
    with progress(console, "evals", len(arms)) as update:
        for done, arm in enumerate(arms):
            update(done, len(arms), failed, f"{arm.case.id} {arm.name}")
            answer = ask(arm, command, limit)
            failed += answer.state != "answered"
            yield answer
        update(len(arms), len(arms), failed, "")


def ask(arm: Arm, command: Sequence[str], limit: float) -> Answer:
    """Run the command once in a folder of its own, and score what it writes to standard output."""
    with tempfile.TemporaryDirectory(prefix="ringproof-eval-") as scratch:
        project, out = Path(scratch, "project"), Path(scratch, "out")
        _furnish(project, arm)
        words = [word.replace(PROMPT, arm.case.prompt) for word in command]
        given = "" if any(PROMPT in word for word in command) else arm.case.prompt
        started = time.monotonic()
        code = _run(words, project, given, out, limit)
        seconds = time.monotonic() - started
        text, errors = _text(out), _text(out.with_suffix(".err"))[-2000:]
    state = "timed out" if code is None else "failed" if code else "answered"
    met = judged(arm.case, text) if state == "answered" else (False,) * len(arm.case.expectations)
    return Answer(arm, state, met, seconds, text, errors)


def _furnish(project: Path, arm: Arm) -> None:
    project.mkdir()
    if arm.skill is not None:
        for place in sorted({AGENTS["claude-code"], AGENTS["universal"]}):
            ignored = shutil.ignore_patterns(*_NOT_GIVEN)
            shutil.copytree(arm.skill, project / place / arm.skill.name, ignore=ignored)
    for name, content in arm.case.files.items():
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _run(words: Sequence[str], project: Path, given: str, out: Path, limit: float) -> int | None:
    """Return the exit code, or ``None`` after the limit; nothing that it started stays.

    Its output goes to files, because a grandchild that holds a pipe would keep it open.
    """
    with (
        tempfile.TemporaryFile() as stdin,
        out.open("wb") as stdout,
        out.with_suffix(".err").open("wb") as stderr,
    ):
        stdin.write(given.encode())
        stdin.seek(0)
        streams = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
        try:
            with contained(words, cwd=project, **streams) as process:
                return process.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        except OSError as error:
            problem = f"cannot be started: {error.strerror}"
            raise InputError("--cmd", words[0], problem, "name a program on the PATH") from error


def _text(path: Path) -> str:
    try:
        return read_bounded(path, MAX_ANSWER_BYTES).decode("utf-8", errors="replace")
    except OSError as error:
        return f"(not read: {error.strerror})"


def mean_scores(answers: Sequence[Answer]) -> Mapping[tuple[str, str], float]:
    """Mean score by skill and arm."""
    scores: dict[tuple[str, str], list[float]] = {}
    for answer in answers:
        scores.setdefault((answer.arm.case.skill, answer.arm.name), []).append(answer.score)
    return {key: sum(values) / len(values) for key, values in scores.items()}
