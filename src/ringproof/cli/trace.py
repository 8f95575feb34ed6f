"""``ringproof trace``: what two runs computed, tensor by tensor."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ringproof.cli.options import command_of, json_option
from ringproof.cli.output import write_result
from ringproof.cli.rehearse import require_packages
from ringproof.errors import InputError
from ringproof.options import option

if TYPE_CHECKING:
    from ringproof.rehearsal.locate.kept import KeptTrace
    from ringproof.rehearsal.locate.result import WrongPlace

BESIDE = "disturbed"

app = typer.Typer(no_args_is_help=True)


@dataclass(frozen=True, kw_only=True)
class CompareCommand:
    """The options of ``ringproof trace compare``."""

    a: Path = option(..., "Folder with the trace of a run.", metavar="A", argument=True)
    b: Path = option(..., "Folder with the trace of its reference.", metavar="B", argument=True)
    disturbed: Path | None = option(
        None,
        "Trace of B with disturbed weights, which says what rounding explains.  "
        "[default: the folder disturbed beside B]",
        metavar="DIR",
    )
    json_path: str = json_option()


@app.callback()
def trace() -> None:
    """Compare what two runs computed, tensor by tensor."""


@app.command(epilog="Example: ringproof trace compare traces/launch/run traces/launch/reference")
@command_of(CompareCommand)
def compare(options: CompareCommand) -> None:
    """Find the first tensor in which the trace A departs from the trace B.

    ringproof rehearse --keep-trace DIR writes traces. Both may have context parallelism of any
    size; TP, DP and PP have to be the same.

    Exit code 0: every tensor that can be compared agrees; 1: one does not, or none can be
    compared; 2: bad input.
    """
    require_packages("trace", ("numpy",))
    from ringproof.rehearsal.locate import saying
    from ringproof.rehearsal.locate.kept import read_trace

    other = options.disturbed or options.b.parent / BESIDE
    traces = (
        read_trace(options.a, "A"),
        read_trace(options.b, "B"),
        read_trace(other, "--disturbed"),
    )
    found = _compared(*traces)
    names = (f"{which}: {one.head.name}" for which, one in zip("AB", traces, strict=False))
    data = {
        "a": asdict(traces[0].head),
        "b": asdict(traces[1].head),
        "sentence": saying.sentence(found),
        **asdict(found),
    }
    good = found.culprit is None and found.compared > 0
    verdict, *more = saying.lines(found)
    write_result(data, (verdict, *names, *more), options.json_path, good=good)


def _compared(a: KeptTrace, b: KeptTrace, disturbed: KeptTrace) -> WrongPlace:
    from ringproof.rehearsal.locate.locating import located

    if b.head.disturbed or not disturbed.head.disturbed:
        sentence = (
            "weights have to be disturbed in this trace and not in B; name them in this order"
        )
        raise InputError("--disturbed", sentence)
    steps = sorted({*a.head.steps} & {*b.head.steps} & {*disturbed.head.steps})
    if not steps:
        raise InputError("B", "it has no training step of A; trace the same steps of both")
    try:
        return located(a.run, b.run, disturbed.run, steps)
    except Exception as error:  # the files may be anybody's
        why = f"they cannot be compared ({type(error).__name__}: {error}); trace both runs again"
        raise InputError("A", why) from error
