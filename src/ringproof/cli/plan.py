"""``ringproof plan``: microbatches, CP groups and gain for a batch of lengths."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ringproof.cli import plan_calibrate, plan_sweep
from ringproof.cli.output import write_json
from ringproof.cli.plan_options import JsonOption, TensorOption, need_numpy, with_batch_options
from ringproof.errors import InputError

if TYPE_CHECKING:
    from ringproof.cli.plan_result import Result
    from ringproof.cli.plan_setup import PlanOptions

app = typer.Typer(
    help="Plan a batch: microbatches, CP groups and the gain over static CP.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    subcommand_metavar="[validate|sweep|calibrate] ...",
)
EXAMPLE = (
    "Example: ringproof plan --lengths lognormal:mean=1024,sigma=1.5,min=128,max=8192,n=512 "
    "--ranks 16 --max-tokens-per-rank 2048 --html plan.html"
)
MAX_PLAN_BYTES = 1024 * 1024 * 1024


MaxTokensPerRankOption = Annotated[
    int | None,
    typer.Option(
        metavar="C",
        help="Largest number of tokens on a rank in one microbatch, padding included.",
    ),
]
CpSizesOption = Annotated[
    str,
    typer.Option(
        metavar="pow2|divisors|LIST",
        help="CP group sizes: pow2, divisors, or a list such as 1,2,3.",
    ),
]
CommOption = Annotated[
    str,
    typer.Option(
        metavar="TYPE",
        help="Communication type: p2p (the default), all_gather, a2a or a2a+p2p.",
    ),
]
StaticCpOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="CP size of the static baselines. The default is the smallest size that can "
        "hold every "
        "sequence.",
    ),
]
BatchesOption = Annotated[
    int,
    typer.Option(
        metavar="K", help="Draw K batches and size the graphs for the largest (with --graphs)."
    ),
]
HtmlOption = Annotated[
    str,
    typer.Option(
        metavar="PATH",
        help="Write a page with pictures to this file. - writes it to standard output.",
    ),
]


@app.callback(invoke_without_command=True, epilog=EXAMPLE)
@with_batch_options
def plan(
    context: typer.Context,
    *,
    max_tokens_per_rank: MaxTokensPerRankOption = None,
    cp_sizes: CpSizesOption = "pow2",
    comm: CommOption = "",
    static_cp: StaticCpOption = None,
    batches: BatchesOption = 1,
    json_path: JsonOption = "",
    html: HtmlOption = "",
    megatron_flags: Annotated[
        bool, typer.Option("--megatron-flags", help="Also print the flags of Megatron-LM.")
    ] = False,
) -> None:
    """Plan one global batch, and compare it with static packing and with padding."""
    given = [item.name for item in context.command.params if _given(context, item.name or "")]
    if context.invoked_subcommand is not None:
        if given:
            problem = f"stands before {context.invoked_subcommand}"
            raise InputError(_option(str(given[0])), None, problem, "write it behind")
        return
    if not given:
        typer.echo(context.get_help())
        raise typer.Exit
    need_numpy()
    from ringproof.cli.plan_flags import check_target
    from ringproof.cli.plan_setup import PlanOptions

    _refuse_one_place(json_path, html)
    quiet = "-" in (json_path, html)
    options, target = PlanOptions.of(context.params), context.params["target"]
    check_target(target)
    result = _planned(options)
    flags = _flags(result, target) if megatron_flags or target != "dev" else []
    _write(result, json_path, html)
    if not quiet:
        _print(result)
    for line in flags:
        typer.echo(line, err=quiet)


def _option(name: str) -> str:
    return f"--{'json' if name == 'json_path' else name.replace('_', '-')}"


def _given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _refuse_one_place(json_path: str, html: str) -> None:
    alike = json_path == html
    if "-" not in (json_path, html):
        alike = Path(json_path).absolute() == Path(html).absolute()
    if json_path and html and alike:
        raise InputError("--html", html, "is where --json writes", "name another file")


def _planned(options: PlanOptions) -> Result:
    from ringproof.cli.plan_result import plan_result
    from ringproof.cli.plan_setup import as_options

    options.refuse_contradictions()
    with as_options():
        options.goal()
        return plan_result(options, options.read())


def _flags(result: Result, target: str) -> list[str]:
    from ringproof.cli.plan_flags import megatron_flags
    from ringproof.cli.plan_result import wanted

    made = wanted(result.options, result.domain, result.lengths, graphs=result.graphs)
    return megatron_flags(made, target)


def _write(result: Result, json_path: str, html: str) -> None:
    from ringproof.cli.page import write_page
    from ringproof.cli.plan_page import page

    if json_path:
        write_json(result.as_json(), json_path)
    if html:
        write_page(page(result), html)


def _print(result: Result) -> None:
    from rich.console import Console

    from ringproof.cli.plan_text import print_result

    print_result(result, Console())


@app.command(epilog="Example: ringproof plan validate plan.json")
def validate(
    path: Annotated[
        str, typer.Argument(metavar="PLAN.json", help="Plan to check. - is standard input.")
    ],
    *,
    microbatch_multiple: Annotated[
        int,
        typer.Option(
            metavar="M",
            help="Require a number of microbatches that is a multiple of M.",
        ),
    ] = 1,
    max_sequences: Annotated[
        int | None, typer.Option(metavar="N", help="Require at most N sequences in each group.")
    ] = None,
    tp: TensorOption = 1,
    json_path: JsonOption = "",
) -> None:
    """Check a plan, whoever made it. The check shares no code with the planner.

    The exit code is 1 if the plan breaks a rule, and 2 if the file is not a plan.
    """
    need_numpy()
    from ringproof.cli.plan_graphs_check import capacity_violations
    from ringproof.cli.plan_setup import as_options, parse_json, read_bytes
    from ringproof.reference.planning.domain import ZIGZAG_CHUNKS
    from ringproof.reference.planning.validate import violations

    counts = {"--microbatch-multiple": microbatch_multiple, "--tp": tp}
    counts["--max-sequences"] = 1 if max_sequences is None else max_sequences
    for name, value in counts.items():
        if value < 1:
            raise InputError(name, value, "is less than 1", "give 1 or more")
    data = parse_json(read_bytes(path, "PLAN.json", MAX_PLAN_BYTES), path, "PLAN.json")
    with as_options():
        found = violations(
            data,
            rank_multiple=ZIGZAG_CHUNKS * tp,
            multiple=microbatch_multiple,
            max_sequences=max_sequences,
        )
        found = found or capacity_violations(data, rank_multiple=ZIGZAG_CHUNKS * tp)
    if json_path:
        write_json({"version": 1, "valid": not found, "violations": found}, json_path)
    if json_path != "-":
        for line in found or [_described(data)]:
            typer.echo(line)
    if found:
        raise typer.Exit(1)


app.command("sweep", epilog=plan_sweep.EXAMPLE)(plan_sweep.sweep)
app.command("calibrate", epilog=plan_calibrate.EXAMPLE)(plan_calibrate.calibrate)


def _described(data: dict[str, Any]) -> str:
    return (
        f"valid: {len(data['lengths']):,} sequences in {len(data['microbatches']):,} microbatches "
        f"on {data['ranks']:,} ranks"
    )
