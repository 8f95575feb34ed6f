"""Options that the commands of ``ringproof plan`` share."""

from __future__ import annotations

import importlib.util
from typing import Annotated

import typer

from ringproof.errors import InputError

LengthsOption = Annotated[
    str,
    typer.Option(
        metavar="FILE|DIST",
        help="Text, CSV, JSON, JSON lines, NPY or Parquet; - is stdin; or "
        "lognormal:mean=1024,sigma=1.5,min=128,max=8192,n=512,seed=0; or "
        "folder:PATH,glob=*.py,bytes-per-token=3.6.",
    ),
]
ColumnOption = Annotated[str, typer.Option(metavar="NAME", help="Column or key of the lengths.")]
RanksOption = Annotated[
    int | None, typer.Option(metavar="G", help="Ranks of the domain: DP times CP.")
]
MinOption = Annotated[int, typer.Option(metavar="N", help="Smallest group size.")]
MultipleOption = Annotated[
    int | None,
    typer.Option(metavar="M", help="Of the number of microbatches; --pp under --vpp."),
]
SequencesOption = Annotated[
    int | None, typer.Option(metavar="N", help="Most sequences in one group (graph capacity).")
]
ObjectiveOption = Annotated[
    str, typer.Option(metavar="sync|async", help="Ranks end microbatches together, or run ahead.")
]
PipelineOption = Annotated[int, typer.Option(metavar="N", help="Pipeline stages.")]
VirtualOption = Annotated[int, typer.Option(metavar="N", help="Virtual stages on each.")]
TensorOption = Annotated[int, typer.Option(metavar="N", help="Tensor parallel size of each rank.")]
CostOption = Annotated[
    str,
    typer.Option(metavar="full|attention-only", help="What costs time; squared length over size."),
]
ModelOption = Annotated[str, typer.Option(metavar="PRESET", help="Such as llama3-8b (default).")]
HardwareOption = Annotated[
    str, typer.Option(metavar="PRESET|FILE", help="a100, h100 (default), ..., or a JSON file.")
]
CalibrationOption = Annotated[
    str, typer.Option(metavar="FILE", help="What `plan calibrate` wrote, in place of the preset.")
]
InnerOption = Annotated[
    int | None, typer.Option(metavar="N", help="Ranks that exchange under a2a+p2p.")
]
StaticOption = Annotated[
    int | None,
    typer.Option(metavar="N", help="CP size of the baselines; else the smallest that holds all."),
]
JsonOption = Annotated[str, typer.Option("--json", metavar="PATH", help="Write JSON; - is stdout.")]
FlagsOption = Annotated[
    bool, typer.Option("--megatron-flags", help="Also print the flags of Megatron-LM.")
]
TargetOption = Annotated[
    str, typer.Option(metavar="dev|main", help="Whose flags: dev, or main and the releases.")
]


def need_numpy() -> None:
    """Refuse to go on without numpy, which planning needs and the rest does not.

    Raises:
        InputError: It is not installed.
    """
    if importlib.util.find_spec("numpy") is None:
        remedy = "install ringproof[reference], or numpy alone"
        raise InputError("ringproof plan", None, "needs the package numpy", remedy)
