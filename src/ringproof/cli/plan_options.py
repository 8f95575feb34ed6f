"""Options that the commands of ``ringproof plan`` share, each said once."""

from __future__ import annotations

import functools
import importlib.util
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from ringproof.errors import InputError

ModelOption = Annotated[
    str, typer.Option(metavar="PRESET|FILE", help="llama3-8b (default), ..., or a JSON file.")
]
HardwareOption = Annotated[
    str, typer.Option(metavar="PRESET|FILE", help="a100, h100 (default), ..., or a JSON file.")
]
InnerOption = Annotated[
    int | None, typer.Option(metavar="N", help="Ranks that exchange under a2a+p2p.")
]
TensorOption = Annotated[int, typer.Option(metavar="N", help="Tensor parallel size of each rank.")]
JsonOption = Annotated[str, typer.Option("--json", metavar="PATH", help="Write JSON; - is stdout.")]


def _batch_options(
    *,
    lengths: Annotated[
        str,
        typer.Option(
            metavar="FILE|DIST",
            help="Text, CSV, JSON, JSON lines, NPY or Parquet; - is stdin; or "
            "lognormal:mean=1024,sigma=1.5,min=128,max=8192,n=512,seed=0; or "
            "folder:PATH,glob=*.py,bytes-per-token=3.6.",
        ),
    ] = "",
    column: Annotated[str, typer.Option(metavar="NAME", help="Column or key of the lengths.")] = "",
    ranks: Annotated[
        int | None, typer.Option(metavar="G", help="Ranks of the domain: DP times CP.")
    ] = None,
    min_cp: Annotated[int, typer.Option(metavar="N", help="Smallest group size.")] = 1,
    microbatch_multiple: Annotated[
        int | None,
        typer.Option(metavar="M", help="Of the number of microbatches; --pp under --vpp."),
    ] = None,
    max_sequences: Annotated[
        int | None, typer.Option(metavar="N", help="Most sequences in one group (graph capacity).")
    ] = None,
    objective: Annotated[
        str,
        typer.Option(metavar="sync|async", help="Ranks end microbatches together, or run ahead."),
    ] = "sync",
    pp: Annotated[int, typer.Option(metavar="N", help="Pipeline stages.")] = 1,
    vpp: Annotated[int, typer.Option(metavar="N", help="Virtual stages on each.")] = 1,
    tp: TensorOption = 1,
    cost: Annotated[
        str,
        typer.Option(
            metavar="full|attention-only", help="What costs time; squared length over size."
        ),
    ] = "full",
    model: ModelOption = "",
    hardware: HardwareOption = "",
    calibration: Annotated[
        str,
        typer.Option(metavar="FILE", help="What `plan calibrate` wrote, in place of the preset."),
    ] = "",
    inner_size: InnerOption = None,
    graphs: Annotated[
        bool,
        typer.Option("--graphs", help="Also size CUDA graphs: capacity, slots, padding, bytes."),
    ] = False,
    target: Annotated[
        str,
        typer.Option(
            metavar="dev|pr5618|main",
            help="Whose flags: dev, pull request 5618 (graphs), or main and the releases.",
        ),
    ] = "dev",
) -> None:
    """Declares them; see `with_batch_options`."""


def with_batch_options(command: Callable[..., None]) -> Callable[..., None]:
    """Put the options that describe a batch and its machine before a command's own.

    The command finds them among the parameters of its context, where `PlanOptions.of` takes them.
    """
    shared = inspect.signature(_batch_options, eval_str=True).parameters
    own = inspect.signature(command, eval_str=True)
    context, *rest = own.parameters.values()

    @functools.wraps(command)
    def run(**given: Any) -> None:
        command(**{name: given[name] for name in own.parameters})

    together = [context.replace(kind=context.KEYWORD_ONLY), *shared.values(), *rest]
    vars(run)["__signature__"] = own.replace(parameters=together)  # what typer reads
    run.__annotations__ = {item.name: item.annotation for item in together}
    return run


def need_numpy() -> None:
    """Refuse to go on without numpy, which planning needs and the rest does not.

    Raises:
        InputError: It is not installed.
    """
    if importlib.util.find_spec("numpy") is None:
        remedy = "install ringproof[reference], or numpy alone"
        raise InputError("ringproof plan", None, "needs the package numpy", remedy)
