"""``ringproof plan`` as a user runs it, in this process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from typer.testing import CliRunner

from ringproof.cli.main import app
from ringproof.errors import InputError

LENGTHS = "lognormal:mean=1024,sigma=1.5,min=128,max=8192,n=64"
BASIC = ("--lengths", LENGTHS, "--ranks", "8", "--max-tokens-per-rank", "2048")


@dataclass(frozen=True)
class Ran:
    """Exit code, standard output, and standard error."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Standard output, which has to be JSON and nothing else."""
        return json.loads(self.out)


def plan(*arguments: str, data: str | bytes | None = None) -> Ran:
    """Run it; bad input ends as it does in ``main``."""
    done = CliRunner().invoke(app, ["plan", *arguments], input=data)
    if isinstance(done.exception, InputError):
        return Ran(2, done.stdout, f"error: {done.exception}\n")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Ran(done.exit_code, done.stdout, done.stderr)


def refused(*arguments: str) -> str:
    """The one line that says why the arguments cannot be used."""
    done = plan(*arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ") and done.err.count("\n") == 1
    return done.err


def plan_json(*arguments: str) -> Any:
    """The plan of the basic batch with more options."""
    done = plan(*BASIC, *arguments, "--json", "-")
    assert done.code == 0, done.err
    return done.json()
