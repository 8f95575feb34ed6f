"""``ringproof plan``: microbatches, CP groups and gain for a batch of lengths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from ringproof.cli.lengths import read_bytes
from ringproof.cli.options import JsonOption, command_of, json_option
from ringproof.cli.output import told_to_wait, write_json, write_result, write_text
from ringproof.cli.plan_options import (
    OTHER_NAMES,
    PlanOptions,
    SweepOptions,
    check_plan,
    parse_json,
)
from ringproof.errors import InputError
from ringproof.garbage import no_collection
from ringproof.options import given_options, option, require

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


@dataclass(frozen=True, kw_only=True)
class PlanCommand:
    """The options of ``ringproof plan``."""

    plan: PlanOptions
    json_path: str = json_option()
    html: str = option(
        "",
        "Write a page with pictures to this file. - writes it to standard output.",
        metavar="PATH",
    )
    megatron_flags: bool = option(False, "Also print the flags of Megatron-LM.")


@app.callback(invoke_without_command=True, epilog=EXAMPLE)
@command_of(PlanCommand, OTHER_NAMES)
def plan(context: typer.Context, command: PlanCommand) -> None:
    """Plan one global batch, and compare it with static packing and with padding."""
    given = given_options(command)
    if context.invoked_subcommand is not None:
        if given:
            sentence = f"put {given[0]} after the subcommand {context.invoked_subcommand}"
            raise InputError(given[0], sentence)
        return
    if not given:
        typer.echo(context.get_help())
        raise typer.Exit
    from ringproof.cli.plan_memory import OPTION, memory_of
    from ringproof.cli.plan_page import page
    from ringproof.cli.plan_result import plan_result
    from ringproof.cli.plan_text import print_result

    options = command.plan
    require(options, "lengths", "ranks")
    memory = None
    if path := options.memory_from:
        read = read_bytes(path, OPTION, MAX_PLAN_BYTES)
        memory = memory_of(parse_json(read, path, OPTION), options)
        options = memory.with_budget(options)
    require(options, "max_tokens_per_rank")
    batch = options.read()
    if memory and options.max_tokens_per_rank != command.plan.max_tokens_per_rank:
        memory.refuse_longer(batch, options)
    if not options.force:
        check_plan(len(batch.values), options.ranks or 0, options.batches)
    with told_to_wait(f"planning {len(batch.values):,} sequences"), no_collection():
        result = replace(plan_result(options, batch), memory=memory)
    if command.json_path:
        write_json(result.as_json(), command.json_path)
    if command.html:
        write_text(page(result), command.html, field="--html")
    quiet = "-" in (command.json_path, command.html)
    if not quiet:
        print_result(result)
    if command.megatron_flags or options.target != "dev":
        for line in result.flags(options.target):
            typer.echo(line, err=quiet)


@app.command(epilog="Example: ringproof plan validate plan.json")
def validate(
    path: Annotated[
        str, typer.Argument(metavar="PLAN.json", help="Plan to check. - is standard input.")
    ],
    *,
    microbatch_multiple: Annotated[
        int, typer.Option(metavar="N", help="Require a number of microbatches that N divides.")
    ] = 1,
    max_sequences: Annotated[
        int | None, typer.Option(metavar="N", help="Require at most N sequences in each group.")
    ] = None,
    tp: Annotated[
        int,
        typer.Option(
            metavar="N", help="Tensor parallel size. A rank stands for that many GPUs of a node."
        ),
    ] = 1,
    json_path: JsonOption = "",
) -> None:
    """Check a plan, whoever made it. The check shares no code with the planner.

    The exit code is 1 if the plan breaks a rule, and 2 if the file is not a plan.
    """
    from ringproof.reference.planning.domain import ZIGZAG_CHUNKS
    from ringproof.reference.planning.validate import capacity_violations, violations

    counts = {"--microbatch-multiple": microbatch_multiple, "--tp": tp}
    counts["--max-sequences"] = 1 if max_sequences is None else max_sequences
    for name, value in counts.items():
        if value < 1:
            raise InputError(name, f"{value} is less than 1; give 1 or more")
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


@dataclass(frozen=True, kw_only=True)
class SweepCommand:
    """The options of ``ringproof plan sweep``."""

    sweep: SweepOptions
    json_path: str = json_option()


@app.command(epilog=SWEEP_EXAMPLE)
@command_of(SweepCommand, OTHER_NAMES)
def sweep(command: SweepCommand) -> None:
    """Plan one batch at many settings, and recommend one.

    The fastest setting is recommended. Of settings within 1% of it, the one with the smallest
    budget is taken, because it needs the least memory.
    """
    from ringproof.cli.plan_sweep import run

    run(command.sweep, command.json_path)
