"""Runs programs and ``ringproof`` for tests, and captures what they write."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from ringproof.cli.main import main
from ringproof.errors import InputError


def ran(*words: str | Path, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run a program for at most 110 s; ``settings`` are those of `subprocess.run`."""
    usual = {"capture_output": True, "text": True, "timeout": 110, "check": False}
    return subprocess.run([str(word) for word in words], **{**usual, **settings})


def ringproof(*words: str | Path, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run ``ringproof`` in a process of its own."""
    return ran(sys.executable, "-m", "ringproof", *words, **settings)


def run_here(folder: Path, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run ``ringproof`` in this process, from a folder."""
    code, before = 0, Path.cwd()
    with (
        contextlib.redirect_stdout(io.StringIO()) as output,
        contextlib.redirect_stderr(io.StringIO()) as errors,
        mock.patch.object(sys, "argv", ["ringproof", *words]),
    ):
        os.chdir(folder)
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            os.chdir(before)
    return subprocess.CompletedProcess([*words], code, output.getvalue(), errors.getvalue())


@contextlib.contextmanager
def one_line(problem: str | None = None) -> Iterator[pytest.ExceptionInfo[InputError]]:
    """Expect bad input that is explained in one line, in which a pattern occurs."""
    with pytest.raises(InputError, match=problem) as refused:
        yield refused
    assert "\n" not in str(refused.value)


def contents(folder: Path) -> dict[str, bytes]:
    """The files below a folder, by their relative paths."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def schema_problems(schema: str, *paths: Path) -> str:
    """What is wrong with files by a schema that check-jsonschema brings with it."""
    check = (sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}")
    done = ran(*check, *paths)
    return "" if done.returncode == 0 else done.stdout + done.stderr
