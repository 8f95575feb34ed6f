"""Writes the page of versions by features and the known results from recorded runs.

Run ``python -m ringproof.rehearsal.conform.page`` in a checkout after ``ringproof conform --json
evidence/cpu-gloo/conform-NAME.json``. Nothing on the page is written by hand except the text around
the tables, which is here, and the explanations.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from ringproof.rehearsal.conform.cases import CASES
from ringproof.rehearsal.conform.explanations import EXPLANATIONS
from ringproof.rehearsal.conform.known import FILE, collect, column_name, place_in_table
from ringproof.rehearsal.conform.result import (
    LABELS,
    MEANINGS,
    WORSE,
    CaseResult,
    Record,
    Status,
    read,
)

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
norm over the steps (programs in float32). A case agrees up to {tolerance:g}; the largest number
here is {largest:.1e}. bfloat16 cases agree up to {coarse:g}.
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


def records(folder: Path) -> list[Record]:
    """Read all records of a folder, in the order of the table."""
    found = [read(path, str(path)) for path in sorted(folder.glob("conform-*.json"))]
    return sorted(found, key=place_in_table)


def page(found: Sequence[Record]) -> str:
    """Return the page."""
    from ringproof.rehearsal.conform.cases import BFLOAT16_TOLERANCE, TOLERANCE

    agreeing = [
        case.largest_difference
        for record in found
        for case in record.cases
        if case.status is Status.AGREES and case.tolerance == TOLERANCE and case.largest_difference
    ]
    parts = [
        INTRODUCTION.format(
            tolerance=TOLERANCE, coarse=BFLOAT16_TOLERANCE, largest=max(agreeing, default=0.0)
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
    for status, text in MEANINGS.items():
        if status is not Status.AGREES:
            yield f"| {_word(status)} | {text} |"
    yield "| (empty) | was not run on this upstream |"


def _word(status: Status) -> str:
    """The text of a cell, in bold where the verdict is bad."""
    return f"**{LABELS[status]}**" if status in WORSE else LABELS[status]


def _upstreams(found: Sequence[Record]) -> Iterator[str]:
    yield "| column | Megatron | Transformer Engine | steps | cases | seconds |"
    yield "|---|---|---|---|---|---|"
    for one in found:
        yield (
            f"| {column_name(one.name, one.engine)} | `{_short(one.megatron)}` | {one.engine} | "
            f"{one.iterations} | {len(one.cases)} | {one.seconds:.0f} |"
        )


def _short(origin: str) -> str:
    """A commit by its first ten digits; other origins as they are."""
    _, found, commit = origin.partition("#commit=")
    return f"NVIDIA/Megatron-LM@{commit[:10]}" if found else origin.removeprefix("git:")


def _table(group: str, found: Sequence[Record]) -> Iterator[str]:
    columns = [(one, one.by_id()) for one in found]
    yield f"## {group.capitalize()}"
    yield ""
    names = " | ".join(column_name(one.name, one.engine) for one, _ in columns)
    yield f"| case | ranks | {names} |"
    yield "|---|---|" + "---|" * len(columns)
    for case in CASES:
        if case.group == group:
            cells = " | ".join(_cell(results.get(case.id)) for _, results in columns)
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


def _explained(found: Sequence[Record]) -> Iterator[str]:
    yield "## Why cases differ"
    yield ""
    known: set[str] = set()
    for one in EXPLANATIONS:
        known.update(one.cases)
        yield f"- {', '.join(f'`{name}`' for name in one.cases)} ({one.kind}): {one.text}"
    odd = {
        case.id
        for record in found
        for case in record.cases
        if case.status in (Status.DIFFERS, Status.OTHER_PATH, Status.HUNG) and case.id not in known
    }
    for name in sorted(odd):
        yield f"- `{name}`: the cause is not known yet."


def _messages(found: Sequence[Record]) -> Iterator[str]:
    """Messages of refusals, each once, with the places where upstream raises them."""
    wanted = (
        Status.REFUSED, Status.RACES, Status.CANNOT_RUN, Status.HUNG, Status.STARTS,
    )  # fmt: skip
    places: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for record in found:
        name = column_name(record.name, record.engine)
        for case in record.cases:
            if case.status in wanted:
                where = f"{name} (`{case.place}`)" if case.place else name
                places[case.message][where].append(case.id)
    yield "## What refuses"
    yield ""
    for message, ids_by_place in sorted(places.items()):
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
    KNOWN.write_text(json.dumps(collect(found), indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
