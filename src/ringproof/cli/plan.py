"""``ringproof plan``: microbatches, CP groups and gain for a batch of lengths."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from ringproof.cli.options import ForceOption, given, with_parameters
from ringproof.cli.output import told_to_wait, write_json, write_result, write_text
from ringproof.errors import InputError

app = typer.Typer(
    help="Plan a batch: microbatches, CP groups and the gain over static CP.",
    subcommand_metavar="[validate|sweep] ...",
)
EXAMPLE = (
    "Example: ringproof plan --lengths lognormal:mean=1024,sigma=1.5,min=128,max=8192,n=512 "
    "--ranks 16 --max-tokens-per-rank 2048 --html plan.html"
)
SWEEP_EXAMPLE = (
    "Example: ringproof plan sweep --lengths lengths.txt --ranks 24 "
    "--max-tokens-per-rank 2048,4096 --cp-sizes pow2 --cp-sizes divisors --comm p2p,a2a"
)
MAX_PLAN_BYTES = 1024 * 1024 * 1024


def _option(metavar: str, text: str, *names: str) -> Any:
    """An option with a value: its placeholder, its help, and its names."""
    return typer.Option(*names, metavar=metavar, help=text)


_Model = Annotated[
    str,
    _option(
        "PRESET|FILE",
        "Model whose cost is computed: a preset such as llama3-8b (the default), or a JSON file.",
    ),
]
_Hardware = Annotated[
    str,
    _option(
        "PRESET|FILE",
        "Hardware whose speed is assumed: a100, h100 (the default), h200, b200, gb200, or a JSON "
        "file.",
    ),
]
_InnerSize = Annotated[
    int | None, _option("N", "Number of ranks that exchange heads under --comm a2a+p2p.")
]
_Tensor = Annotated[
    int, _option("N", "Tensor parallel size. A rank stands for that many GPUs of a node.")
]
_Json = Annotated[
    str,
    _option(
        "PATH", "Write the result as JSON to this file. - writes it to standard output.", "--json"
    ),
]


@dataclass(frozen=True)
class SharedPlanOptions:
    """The options that describe a batch and its machine, which planning and sweeping share.

    They are ``None`` or empty where not given.
    """

    lengths: Annotated[
        str,
        _option(
            "FILE|DIST",
            "Lengths of the sequences: a file (text, JSON, JSON lines or NPY; - is standard "
            "input), a distribution such as "
            "lognormal:mean=1024,sigma=1.5,min=128,max=8192,n=512,seed=0, or the files of a folder "
            "such as folder:PATH,glob=*.py,bytes-per-token=3.6.",
        ),
    ] = ""
    column: Annotated[str, _option("NAME", "Key that holds the lengths in JSON.")] = ""
    ranks: Annotated[
        int | None, _option("G", "Number of ranks: data parallel size times context parallel size.")
    ] = None
    min_cp: Annotated[int, _option("N", "Smallest CP group size that may be used.")] = 1
    microbatch_multiple: Annotated[
        int | None,
        _option(
            "M",
            "Make the number of microbatches a multiple of M. With --vpp, M is a multiple of --pp, "
            "and --pp is the default.",
        ),
    ] = None
    max_sequences: Annotated[
        int | None,
        _option(
            "N", "Largest number of sequences in one group, for example a CUDA graph's capacity."
        ),
    ] = None
    objective: Annotated[
        str,
        _option(
            "sync|async",
            "With sync, a microbatch ends for all ranks together. With async, only the ranks of a "
            "group wait for each other.",
        ),
    ] = "sync"
    pp: Annotated[int, _option("N", "Number of pipeline stages.")] = 1
    vpp: Annotated[int, _option("N", "Number of virtual stages on each pipeline stage.")] = 1
    tp: _Tensor = 1
    cost: Annotated[
        str,
        _option(
            "full|attention-only",
            "Cost measure. full counts computation, communication and launches. attention-only is "
            "upstream's measure, squared length over group size, and has no price for "
            "communication.",
        ),
    ] = "full"
    model: _Model = ""
    hardware: _Hardware = ""
    inner_size: _InnerSize = None
    graphs: Annotated[
        bool,
        typer.Option(
            "--graphs",
            help="Also compute what CUDA graphs need: capacity, slots, padding and bytes.",
        ),
    ] = False
    target: Annotated[
        str,
        _option(
            "dev|pr5618|main",
            "Version of Megatron-LM whose flags are printed: dev, pull request 5618 (with graphs), "
            "or main and the releases.",
        ),
    ] = "dev"
    force: ForceOption = False


_with_batch_options = with_parameters(
    tuple(inspect.signature(SharedPlanOptions, eval_str=True).parameters.values())
)
"""Gives a command the `SharedPlanOptions`; `PlanOptions.of` takes them from its context."""


def _need_numpy() -> None:
    """Refuse to go on without numpy, which planning needs and the rest does not."""
    if importlib.util.find_spec("numpy") is None:
        remedy = "install ringproof[reference], or numpy alone"
        raise InputError("ringproof plan", None, "needs the package numpy", remedy)


@app.callback(invoke_without_command=True, epilog=EXAMPLE)
@_with_batch_options
def plan(
    context: typer.Context,
    *,
    max_tokens_per_rank: Annotated[
        int | None,
        _option("C", "Largest number of tokens on a rank in one microbatch, padding included."),
    ] = None,
    cp_sizes: Annotated[
        str,
        _option("pow2|divisors|LIST", "CP group sizes: pow2, divisors, or a list such as 1,2,3."),
    ] = "pow2",
    comm: Annotated[
        str, _option("TYPE", "Communication type: p2p (the default), all_gather, a2a or a2a+p2p.")
    ] = "",
    static_cp: Annotated[
        int | None,
        _option(
            "N",
            "CP size of the static baselines. The default is the smallest size that can hold "
            "every sequence.",
        ),
    ] = None,
    batches: Annotated[
        int, _option("K", "Draw K batches and size the graphs for the largest (with --graphs).")
    ] = 1,
    json_path: _Json = "",
    html: Annotated[
        str,
        _option("PATH", "Write a page with pictures to this file. - writes it to standard output."),
    ] = "",
    megatron_flags: Annotated[
        bool, typer.Option("--megatron-flags", help="Also print the flags of Megatron-LM.")
    ] = False,
) -> None:
    """Plan one global batch, and compare it with static packing and with padding."""
    named = [name for name in context.params if given(context, name)]
    if context.invoked_subcommand is not None:
        if named:
            option = "--json" if named[0] == "json_path" else f"--{named[0].replace('_', '-')}"
            problem = f"stands before {context.invoked_subcommand}"
            raise InputError(option, None, problem, "write it behind")
        return
    if not named:
        typer.echo(context.get_help())
        raise typer.Exit
    _need_numpy()
    _plan(context.params, json_path, html, megatron_flags)


def _plan(values: dict[str, Any], json_path: str, html: str, show_flags: bool) -> None:
    """Plan, and write what was asked for."""
    from ringproof.cli.plan_flags import check_target
    from ringproof.cli.plan_page import page
    from ringproof.cli.plan_result import plan_result
    from ringproof.cli.plan_setup import PlanOptions, as_options, check_plan
    from ringproof.cli.plan_text import print_result

    options = PlanOptions.of(values)
    check_target(options.target)
    options.refuse_contradictions()
    with as_options():
        options.goal()
        batch = options.read()
        if not options.force:
            check_plan(len(batch.values), options.ranks or 0, options.batches)
        with told_to_wait(f"planning {len(batch.values):,} sequences"):
            result = plan_result(options, batch)
    flags = result.flags(options.target) if show_flags or options.target != "dev" else []
    if json_path:
        write_json(result.as_json(), json_path)
    if html:
        write_text(page(result), html, field="--html")
    quiet = "-" in (json_path, html)
    if not quiet:
        print_result(result)
    for line in flags:
        typer.echo(line, err=quiet)


@app.command(epilog="Example: ringproof plan validate plan.json")
def validate(
    path: Annotated[
        str, typer.Argument(metavar="PLAN.json", help="Plan to check. - is standard input.")
    ],
    *,
    microbatch_multiple: Annotated[
        int, _option("M", "Require a number of microbatches that is a multiple of M.")
    ] = 1,
    max_sequences: Annotated[
        int | None, _option("N", "Require at most N sequences in each group.")
    ] = None,
    tp: _Tensor = 1,
    json_path: _Json = "",
) -> None:
    """Check a plan, whoever made it. The check shares no code with the planner.

    The exit code is 1 if the plan breaks a rule, and 2 if the file is not a plan.
    """
    _need_numpy()
    from ringproof.cli.lengths import read_bytes
    from ringproof.cli.plan_setup import parse_json
    from ringproof.reference.planning.domain import ZIGZAG_CHUNKS
    from ringproof.reference.planning.validate import capacity_violations, violations

    counts = {"--microbatch-multiple": microbatch_multiple, "--tp": tp}
    counts["--max-sequences"] = 1 if max_sequences is None else max_sequences
    for name, value in counts.items():
        if value < 1:
            raise InputError(name, value, "is less than 1", "give 1 or more")
    data = parse_json(read_bytes(path, "PLAN.json", MAX_PLAN_BYTES), path, "PLAN.json")
    rows = ZIGZAG_CHUNKS * tp
    found = violations(
        data, rank_multiple=rows, multiple=microbatch_multiple, max_sequences=max_sequences
    ) or capacity_violations(data, rank_multiple=rows)
    result = {"version": 1, "valid": not found, "violations": found}
    write_result(result, found or _described(data), json_path, good=not found)


def _described(plan: dict[str, Any]) -> Iterator[str]:
    yield (
        f"valid: {len(plan['lengths']):,} sequences in {len(plan['microbatches']):,} "
        f"microbatches on {plan['ranks']:,} ranks"
    )


@app.command(epilog=SWEEP_EXAMPLE)
@_with_batch_options
def sweep(
    context: typer.Context,
    *,
    budgets: Annotated[
        str,
        _option(
            "C,C,...",
            "Token budgets per rank to try, separated by commas.",
            "--max-tokens-per-rank",
        ),
    ] = "",
    size_sets: Annotated[
        list[str] | None,
        _option(
            "SET",
            "Set of CP group sizes to try: pow2, divisors or a list. The option may be repeated; "
            "pow2 and divisors are tried when it is not given.",
            "--cp-sizes",
        ),
    ] = None,
    comm_types: Annotated[
        str,
        _option(
            "TYPE,...",
            "Communication types to try, separated by commas: p2p,all_gather,a2a,a2a+p2p.",
            "--comm",
        ),
    ] = "",
    json_path: _Json = "",
) -> None:
    """Plan one batch at many settings, and recommend one.

    The fastest setting is recommended. Of settings within 1% of it, the one with the smallest
    budget is taken, because it needs the least memory.
    """
    _need_numpy()
    from ringproof.cli.plan_sweep import run

    run(context.params, budgets, size_sets, comm_types, json_path)
