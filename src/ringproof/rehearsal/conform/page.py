"""Writes the page of versions by features and the known results from recorded runs.

Run ``python -m ringproof.rehearsal.conform.page`` in a checkout after ``ringproof conform --json
evidence/cpu-gloo/conform-NAME.json``. Nothing on the page is written by hand except the text around
the tables, which is here, and the explanations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from ringproof.rehearsal.conform.cases import CASES
from ringproof.rehearsal.conform.record import (
    FILE,
    CaseResult,
    ConformanceRecord,
    Status,
    place_in_table,
    read,
    shipped_text,
)
from ringproof.rehearsal.verdict.agreement import MEASURED_ITERATIONS, TOLERANCES

RECORDS = Path("evidence/cpu-gloo")
PAGE = Path("docs/conformance.md")
KNOWN = Path("src/ringproof/rehearsal/conform") / FILE
INTRODUCTION = """# What runs and agrees, by version

`ringproof conform` trains tiny models on CPU with a Megatron's own programs and compares losses and
gradient norms of each step with the same training on one rank: the same samples, the same weights,
without context parallelism. Nothing of Megatron or of Transformer Engine's Python is replaced but
devices, NCCL and compiled kernels. See [the rehearsal](rehearsal.md) for what this can prove.

```bash
ringproof conform --megatron PATH                         # the whole matrix
ringproof conform --megatron PATH --case dynamic-cp-mamba # one case
ringproof conform --megatron PATH --against dev           # fail where dev agreed, this not
```

The tables are written by `python -m ringproof.rehearsal.conform.page` from the records in
`evidence/cpu-gloo/conform-*.json`.

A number says that the case **agrees**: it is the largest relative difference of a loss or gradient
norm over the steps (programs in float32). A case agrees up to {fine.loss:g} in each loss and
{fine.grad_norm:g} in each gradient norm of the first {steps} steps (in bfloat16: {coarse.loss:g}
and {coarse.grad_norm:g}). Beyond, both grow in proportion to the step: Adam amplifies roundings.
The largest number here is {largest:.1e}.
"""
LIMITS = """## What this does not show

- Speed, memory of a GPU, NCCL's ordering, stream races and capture are not rehearsed.
- Kernels are exact stand-ins: an error inside a real kernel is not seen.
- A case that agrees does so for these sizes and samples. The sizes are small: two to four layers,
  128 tokens, up to eight ranks.
- megatron-core 0.16.1 is a library without programs. Its column is a program of ours on its groups,
  models, schedules, optimizer and wrapper; what belongs to a program (data, loss function, loop) is
  ours.
- Conversations (`sft-*`, `hybrid-cp-*`) go through Megatron's own SFT dataset and tokenizer
  classes; the packages `datasets` and `transformers` below them are stand-ins.
"""


# Cases that part from their reference or take another path; whether the cause is ``upstream`` (a
# defect or limit of it), ``expected`` or ``unknown``; and the cause.
EXPLANATIONS = (
    (
        ("static-p2p-pp2-vpp2",),
        "upstream",
        "Up to 0.17 the interleaved schedule releases an output tensor (programs set "
        "`deallocate_pipeline_outputs`) while its `isend` may still read it. The rehearsal keeps"
        " the memory, so losses agree, and reports the race. Without that memory losses are "
        "wrong by up to 24% or NaN on CPU. Upstream found the same as NaN gradient norms on "
        "GB200 with PP 16 and VPP 8, and waits from 0.18 on (pull request 4047).",
    ),
    (
        ("static-p2p-mtp", "static-p2p-mtp-per-token"),
        "upstream",
        "`process_mtp_loss` divides by the number of tokens of the local shard. The roll masks "
        "the last position, which only one rank of the CP group holds, so the ranks divide by "
        "different counts and the gradient of the MTP loss depends on the split. The language "
        "model's loss of step 1 agrees; its gradient does not.",
    ),
    (
        ("varlen-p2p-mtp", "dynamic-cp-mtp"),
        "upstream",
        "The same division. In packed samples the counts also depend on which sequences share a "
        "microbatch, so that two schedules of the same samples give different gradients.",
    ),
    (
        ("varlen-p2p-mamba", "dynamic-cp-mamba"),
        "upstream",
        "Mamba's state passes from one packed sequence into the next. `PackedSeqParams` makes "
        "`seq_idx`, by which the kernels keep sequences apart, only when it is given "
        "`total_tokens`, and `get_batch_on_this_rank_for_sequence_packing` does not give it. "
        "Nothing refuses this; the loss depends on which sequences share a pack, also on one rank. "
        "With `total_tokens` set to the last entry of `cu_seqlens_q_padded`, `dynamic-cp-mamba` "
        "agrees: losses of 3 steps to 1e-7, gradient norms in all digits.",
    ),
    (
        ("dynamic-cp-moe-aux-loss",),
        "expected",
        "The load balancing loss is a product of averages over the tokens of a microbatch. The "
        "scheduler puts other sequences together than the reference does, so the loss is another "
        "function of the same samples. With static CP, where microbatches are equal, it agrees.",
    ),
    (
        ("dynamic-cp-a2a",),
        "upstream",
        "With `--context-parallel-size 1`, which is the default, `--cp-comm-type` does not reach "
        "the groups that are set for each microbatch, and p2p runs. With "
        "`--context-parallel-size 2` (`dynamic-cp-a2a-of-cp2`) a2a runs.",
    ),
    (
        ("static-hcp-without-sizes",),
        "upstream",
        "The library of 0.16.1 accepts `a2a+p2p` without level sizes. Transformer Engine then gets "
        "no CP group, and each rank attends to its own tokens alone: nothing refuses it, the loss "
        "is off by 6e-4 and the gradient norm by 13%. Megatron's programs refuse the command line.",
    ),
    (
        ("hybrid-cp-tp2-sp",),
        "upstream",
        "On 0.17 the first tensor parallel rank is in its forward pass (a `reduce_scatter`) while "
        "the second one waits for a broadcast of the batch (`get_batch_on_this_tp_rank`).",
    ),
)


def records(folder: Path) -> list[ConformanceRecord]:
    """Read all records of a folder, in the order of the table."""
    found = [read(path, str(path)) for path in sorted(folder.glob("conform-*.json"))]
    return sorted(found, key=place_in_table)


def page(found: Sequence[ConformanceRecord]) -> str:
    """Return the page."""
    fine, coarse = TOLERANCES["float32"], TOLERANCES["bfloat16"]
    agreeing = [
        case.largest_difference
        for record in found
        for case in record.cases
        if case.status is Status.AGREES and case.tolerance == fine.loss and case.largest_difference
    ]
    parts = [
        INTRODUCTION.format(
            fine=fine, coarse=coarse, steps=MEASURED_ITERATIONS, largest=max(agreeing, default=0.0)
        ),
        "\n".join(_meanings()),
        "\n".join(_upstreams(found)),
        *("\n".join(_table(group, found)) for group in dict.fromkeys(c.group for c in CASES)),
        "\n".join(_explained(found)),
        "\n".join(_messages(found)),
        LIMITS,
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _meanings() -> Iterator[str]:
    yield "| cell | meaning |"
    yield "|---|---|"
    for status in Status:
        if status is not Status.AGREES:
            yield f"| {_word(status)} | {status.meaning} |"
    yield "| (empty) | was not run on this upstream |"


def _word(status: Status) -> str:
    """The text of a cell, in bold where the verdict is bad."""
    return f"**{status.label}**" if status.bad else status.label


def _upstreams(found: Sequence[ConformanceRecord]) -> Iterator[str]:
    yield "| column | Megatron | Transformer Engine | steps | cases | seconds |"
    yield "|---|---|---|---|---|---|"
    for one in found:
        yield (
            f"| {one.short} | `{_short(one.megatron)}` | {one.engine} | "
            f"{one.iterations} | {len(one.cases)} | {one.seconds:.0f} |"
        )


def _short(origin: str) -> str:
    """A commit by its first ten digits; other origins as they are."""
    _, found, commit = origin.partition("#commit=")
    return f"NVIDIA/Megatron-LM@{commit[:10]}" if found else origin.removeprefix("git:")


def _table(group: str, found: Sequence[ConformanceRecord]) -> Iterator[str]:
    columns = [one.by_id for one in found]
    yield f"## {group.capitalize()}"
    yield ""
    names = " | ".join(one.short for one in found)
    yield f"| case | ranks | {names} |"
    yield "|---|---|" + "---|" * len(columns)
    for case in CASES:
        if case.group == group:
            cells = " | ".join(_cell(results.get(case.id)) for results in columns)
            yield f"| `{case.id}` | {case.ranks} | {cells} |"


def _cell(result: CaseResult | None) -> str:
    if result is None:
        return ""
    difference = result.largest_difference
    if result.status is Status.AGREES and difference is not None:
        return f"{difference:.1e}"
    if result.status is Status.DIFFERS and difference is not None:
        return f"{_word(result.status)} {difference:.1e}"
    return _word(result.status)


def _explained(found: Sequence[ConformanceRecord]) -> Iterator[str]:
    yield "## Why cases differ"
    yield ""
    known: set[str] = set()
    for names, kind, text in EXPLANATIONS:
        known.update(names)
        yield f"- {', '.join(f'`{name}`' for name in names)} ({kind}): {text}"
    odd = {
        case.id
        for record in found
        for case in record.cases
        if case.status in (Status.DIFFERS, Status.OTHER_PATH, Status.HUNG) and case.id not in known
    }
    for name in sorted(odd):
        yield f"- `{name}`: the cause is not known yet."


def _messages(found: Sequence[ConformanceRecord]) -> Iterator[str]:
    """Messages of refusals, each once, with the places where upstream raises them."""
    wanted = (
        Status.REFUSED, Status.RACES, Status.CANNOT_RUN, Status.HUNG, Status.STARTS,
    )  # fmt: skip
    origins: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for record in found:
        name = record.short
        for case in record.cases:
            if case.status in wanted:
                where = f"{name} (`{case.place}`)" if case.place else name
                origins[case.message][where].append(case.id)
    yield "## What refuses"
    yield ""
    for message, ids_by_place in sorted(origins.items()):
        yield f"- `{message.replace('`', chr(39))}`"
        together: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for where, ids in ids_by_place.items():
            together[tuple(ids)].append(where)
        for group, where_all in together.items():
            names = ", ".join(f"`{name}`" for name in group)
            yield f"    - {names}: {', '.join(where_all)}"


def main() -> None:
    """Write both files from the records."""
    found = records(RECORDS)
    PAGE.write_text(page(found), encoding="utf-8")
    KNOWN.write_text(shipped_text(found), encoding="utf-8")


if __name__ == "__main__":
    main()
