"""Whether a defect of upstream shows in a checkout, and a checkout with a proposed change."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from checks.faults import trials
from checks.faults.programs import SCRIPT, Defect
from ringproof.errors import InputError
from ringproof.rehearsal.protocol.program import Program, Upstream
from ringproof.rehearsal.runs.outcome import Outcome

NORM = 1e-5  # relative; the smallest known defect differs by 5e-5, rounding by 2e-7


@dataclasses.dataclass(frozen=True)
class DefectOutcome:
    """What a defect's program did.

    Attributes:
        shown: Whether the defect shows.
        said: The message of a program that failed, the path of its attention, or the difference.
    """

    shown: bool
    said: str


def look(run: Callable[[Program], Outcome], upstream: Upstream, defect: Defect) -> DefectOutcome:
    """Run a defect's program, and the one that it must agree with where it has one."""
    outcome = run(Program(upstream, SCRIPT, defect.arguments, defect.ranks))
    if outcome.failure is not None:
        said = next(iter(outcome.failure.message.splitlines()), outcome.failure.kind)
        return DefectOutcome(
            bool(defect.message) and defect.message in outcome.failure.message, said
        )
    if defect.path:
        calls = {call.comm_type for report in outcome.ranks for call in report.attention}
        return DefectOutcome(calls - {"none"} == {defect.path}, ", ".join(sorted(calls - {"none"})))
    if defect.expected:
        expected = run(Program(upstream, SCRIPT, defect.expected, 1))
        norm = trials.largest(outcome, expected)["norm"]
        return DefectOutcome(norm > NORM, f"gradient norms differ by {norm:.1e}")
    return DefectOutcome(False, f"trains for {len(outcome.losses)} steps")


def patched(upstream: Upstream, patch: Path, folder: Path) -> Upstream:
    """Copy a checkout into a folder, with a patch.

    A patch without context lines would go in anywhere, so its files have to be those that it was
    made for.

    Raises:
        InputError: The patch does not apply, or was made for another version of a file.
    """
    _refuse_other_files(upstream.megatron, patch)
    shutil.copytree(upstream.megatron, folder, symlinks=True)
    command = ("git", "apply", "--unidiff-zero", str(patch.resolve()))
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        why = done.stderr.strip().splitlines()[0]
        sentence = f"{why}; take the commit that {patch.name} was made for"
        raise InputError("patch", sentence)
    return dataclasses.replace(
        upstream, megatron=folder, megatron_name=f"{upstream.megatron_name} with {patch.name}"
    )


def _refuse_other_files(megatron: Path, patch: Path) -> None:
    text = patch.read_text(encoding="utf-8")
    for path, blob in re.findall(r"^diff --git a/(\S+) .*\nindex (\w+)\.\.", text, re.MULTILINE):
        file = megatron / path
        command = ("git", "hash-object", "--no-filters", str(file))
        here = file.is_file() and subprocess.check_output(command, text=True).strip()
        if here != blob:
            sentence = f"{patch.name} was made for another {path}; take the page's commit"
            raise InputError("patch", sentence)
