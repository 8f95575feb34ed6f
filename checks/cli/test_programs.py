"""What programs that are started get of this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringproof.programs import ended_by, python, run, variables

FORK = """
from ringproof.programs import forking
process = forking(["json"], {"MORE": "more"}).Process(target=exec, args=(SAYS,))
process.start()
process.join()
"""
SAYS = "import os; print(*map(os.environ.get, ('SEEN', 'MORE', 'PYTHONSTARTUP')), flush=True)"


def test_variables_reach_the_forks(tmp_path: Path) -> None:
    """The server of forks needs the search paths of modules and libraries when it starts."""
    given = {**variables(), "SEEN": "seen", "PYTHONSTARTUP": str(tmp_path)}
    done = run(python(code=FORK.replace("SAYS", repr(SAYS))), seconds=60, environment=given)
    assert done.out.split() == ["seen", "more", "None"], done


@pytest.mark.parametrize(
    ("code", "text"),
    [(0, "exit code 0"), (3, "exit code 3"), (-9, "signal SIGKILL"), (-40, "signal 40")],
)
def test_what_ended_a_process_is_said(code: int, text: str) -> None:
    """Real-time signals between the first and the last have no name in Python."""
    assert ended_by(code) == text
