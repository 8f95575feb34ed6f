"""A reference without context parallelism that does not run, and what takes its place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from checks.rehearsal.test_rehearse import outcome, variant
from ringproof.launch.flags import Flags
from ringproof.launch.small.reference import undivided
from ringproof.launch.small.shrink import SmallProgram
from ringproof.rehearsal.protocol.program import Upstream
from ringproof.rehearsal.protocol.reports import Failure
from ringproof.rehearsal.runs.outcome import Outcome
from ringproof.rehearsal.verdict.variant import Variant

FAILS = Failure("raised", 0, "IndexError: index 128", "megatron/core/attention.py:1508")
LAUNCH = (
    "--tensor-model-parallel-size", "2", "--sequence-parallel", "--pipeline-model-parallel-size",
    "2", "--num-layers-per-virtual-pipeline-stage", "1", "--expert-model-parallel-size", "2",
    "--make-vocab-size-divisible-by", "32", "--num-experts", "4",
)  # fmt: skip


def failed(failure: Failure = FAILS) -> Variant:
    """Return a variant whose reference has ended with an error."""
    first = replace(variant(), reference=None)
    assert first.small is not None
    return first.compared(first.small, Outcome((), failure, 1.0, 0, Path("logs", "reference")))


def test_the_line_and_the_logs_of_a_reference_that_fails_are_said() -> None:
    assert failed().headline == (
        "It starts on the path asked for, but whether it is right is not known. The reference "
        "without CP did not run: megatron/core/attention.py:1508: IndexError: index 128 (logs in "
        "logs/reference). The launch's own code fails without CP."
    )
    ours = failed(replace(FAILS, symbol="a.b"))
    assert "fails without CP" not in ours.headline


@pytest.mark.parametrize(
    ("loss", "begins"),
    [
        (5.0, "2 steps agree"),
        (4.0, "The lm loss differs first in step 1"),
    ],
)
def test_a_reference_without_any_degrees_decides_where_the_first_fails(
    loss: float, begins: str
) -> None:
    first = failed()
    assert first.small is not None
    found = first.compared(first.small, outcome(loss))
    assert found.agreement.agrees is (loss == 5.0)
    assert found.agreement.reason.startswith(begins)
    assert "This is against the same program with TP 1 and PP 1, too. The reference" in (
        found.agreement.reason
    )


def test_both_references_that_fail_are_said() -> None:
    first = failed()
    assert first.small is not None
    found = first.compared(first.small, Outcome((), replace(FAILS, place=""), 1.0, 0, Path("b")))
    assert found.agreement.agrees is False
    assert found.headline.endswith(
        "fails without CP. The same with TP 1 and PP 1, too, did not run: IndexError: index 128 "
        "(logs in b)."
    )


def test_all_degrees_of_a_reference_are_taken_off() -> None:
    small = SmallProgram("pretrain_gpt.py", LAUNCH, {}, 8, (), "float32")
    found = undivided(small, {word for word in LAUNCH if word.startswith("--")})
    flags = Flags(found.arguments)
    sizes = [flags.integer(f"--{name}-model-parallel-size", 0) for name in ("tensor", "pipeline")]
    assert (sizes, found.ranks) == ([1, 1], 2)
    assert not any(flags.has(name) for name in (LAUNCH[2], LAUNCH[5]))
    # The padded vocabulary stays: upstream pads it to a multiple of this number and of TP.
    assert flags.integer("--make-vocab-size-divisible-by", 0) == 64
    assert flags.integer("--expert-model-parallel-size", 0) == 2


def test_a_checkout_of_transformer_engine_is_named(tmp_path: Path) -> None:
    upstream = Upstream(tmp_path, "m", tmp_path / "fork", "2.16.0", None)
    assert upstream.engine_name == "2.16.0"
    (tmp_path / "fork" / "build_tools").mkdir(parents=True)
    assert upstream.engine_name == "2.16.0 (dir:fork)"
