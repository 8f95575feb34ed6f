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
    str,
    typer.Option(
        metavar="PRESET|FILE",
        help="Model whose cost is computed: a preset such as llama3-8b (the default), or a JSON "
        "file.",
    ),
]
HardwareOption = Annotated[
    str,
    typer.Option(
        metavar="PRESET|FILE",
        help="Hardware whose speed is assumed: a100, h100 (the default), h200, b200, gb200, or a "
        "JSON "
        "file.",
    ),
]
InnerOption = Annotated[
    int | None,
    typer.Option(metavar="N", help="Number of ranks that exchange heads under --comm a2a+p2p."),
]
TensorOption = Annotated[
    int,
    typer.Option(
        metavar="N", help="Tensor parallel size. A rank stands for that many GPUs of a node."
    ),
]
JsonOption = Annotated[
    str,
    typer.Option(
        "--json",
        metavar="PATH",
        help="Write the result as JSON to this file. - writes it to standard output.",
    ),
]


LengthsOption = Annotated[
    str,
    typer.Option(
        metavar="FILE|DIST",
        help="Lengths of the sequences: a file (text, CSV, JSON, JSON lines, NPY or Parquet; "
        "- is "
        "standard input), a distribution such as "
        "lognormal:mean=1024,sigma=1.5,min=128,max=8192,n=512,seed=0, or the files of a folder "
        "such as folder:PATH,glob=*.py,bytes-per-token=3.6.",
    ),
]
MicrobatchMultipleOption = Annotated[
    int | None,
    typer.Option(
        metavar="M",
        help="Make the number of microbatches a multiple of M. With --vpp, M is a multiple "
        "of --pp, "
        "and --pp is the default.",
    ),
]
MaxSequencesOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Largest number of sequences in one group, for example a CUDA graph's capacity.",
    ),
]
ObjectiveOption = Annotated[
    str,
    typer.Option(
        metavar="sync|async",
        help="With sync, a microbatch ends for all ranks together. With async, only the "
        "ranks of a "
        "group wait for each other.",
    ),
]
CostOption = Annotated[
    str,
    typer.Option(
        metavar="full|attention-only",
        help="Cost measure. full counts computation, communication and launches. "
        "attention-only is "
        "upstream's measure, squared length over group size, and has no price for "
        "communication.",
    ),
]
GraphsOption = Annotated[
    bool,
    typer.Option(
        "--graphs",
        help="Also compute what CUDA graphs need: capacity, slots, padding and bytes.",
    ),
]
TargetOption = Annotated[
    str,
    typer.Option(
        metavar="dev|pr5618|main",
        help="Version of Megatron-LM whose flags are printed: dev, pull request 5618 (with "
        "graphs), or "
        "main and the releases.",
    ),
]


def _batch_options(
    *,
    lengths: LengthsOption = "",
    column: Annotated[
        str, typer.Option(metavar="NAME", help="Column or key that holds the lengths in the file.")
    ] = "",
    ranks: Annotated[
        int | None,
        typer.Option(
            metavar="G", help="Number of ranks: data parallel size times context parallel size."
        ),
    ] = None,
    min_cp: Annotated[
        int, typer.Option(metavar="N", help="Smallest CP group size that may be used.")
    ] = 1,
    microbatch_multiple: MicrobatchMultipleOption = None,
    max_sequences: MaxSequencesOption = None,
    objective: ObjectiveOption = "sync",
    pp: Annotated[int, typer.Option(metavar="N", help="Number of pipeline stages.")] = 1,
    vpp: Annotated[
        int, typer.Option(metavar="N", help="Number of virtual stages on each pipeline stage.")
    ] = 1,
    tp: TensorOption = 1,
    cost: CostOption = "full",
    model: ModelOption = "",
    hardware: HardwareOption = "",
    calibration: Annotated[
        str,
        typer.Option(
            metavar="FILE", help="Use the rates that `ringproof plan calibrate` wrote to this file."
        ),
    ] = "",
    inner_size: InnerOption = None,
    graphs: GraphsOption = False,
    target: TargetOption = "dev",
) -> None:
    """Declare the options; see `with_batch_options`."""


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
