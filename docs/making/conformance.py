"""Writes the page of versions by features and the known results from recorded runs.

Run ``python -m docs.making.conformance`` in a checkout after ``ringproof conform --json
evidence/cpu-gloo/conform-NAME.json``. The text around the tables is in the template, and the
explanations of what differs are in ``conformance.toml``.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from ringproof.rehearsal.conform.cases import CASES, VERL_CASES, Case
from ringproof.rehearsal.conform.record import (
    FILE,
    CaseResult,
    ConformanceRecord,
    Status,
    read,
)
from ringproof.rehearsal.verdict.agreement import MEASURED_ITERATIONS, TOLERANCES
from ringproof.tables import read_table
from ringproof.templates import environment

RECORDS = Path("evidence/cpu-gloo")
PAGE = Path("docs/conformance.md")
KNOWN = Path("src/ringproof/rehearsal/conform") / FILE
ORDER = ("megatron-core", "core_r", "main", "dev", "pull request", "verl")
REFUSALS = (Status.REFUSED, Status.RACES, Status.CANNOT_RUN, Status.HUNG, Status.STARTS)
ODD = (Status.DIFFERS, Status.OTHER_PATH, Status.HUNG)


def records(folder: Path) -> list[ConformanceRecord]:
    """Read all records of a folder: releases, then branches, then pull requests."""

    def place(record: ConformanceRecord) -> tuple[int, str]:
        start = [number for number, prefix in enumerate(ORDER) if record.name.startswith(prefix)]
        return (start[0] if start else len(ORDER), record.name)

    found = [read(path, str(path)) for path in sorted(folder.glob("conform-*.json"))]
    return sorted(found, key=place)


def page(found: Sequence[ConformanceRecord]) -> str:
    """Return the page."""
    fine = TOLERANCES["float32"]
    every = [case for record in found for case in record.cases]
    agreeing = [
        case.largest_difference
        for case in every
        if case.status is Status.AGREES and case.tolerance == fine.loss and case.largest_difference
    ]
    explained = read_table("docs.making", "conformance.toml")["explained"]
    known = {name for one in explained for name in one["cases"]}
    filters = {"cell": _cell, "origin": _origin, "word": _word}
    made = environment("docs.making", filters=filters)
    return str(
        made.get_template("conformance.md.jinja").render(
            fine=fine,
            coarse=TOLERANCES["bfloat16"],
            steps=MEASURED_ITERATIONS,
            largest=max(agreeing, default=0.0),
            statuses=list(Status),
            records=found,
            parts=[
                (part, _groups(matrix), sum(_ran(case, part) for case in matrix), len(matrix))
                for part, matrix in (
                    ([one for one in found if not _is_verl(one)], CASES),
                    ([one for one in found if _is_verl(one)], VERL_CASES),
                )
                if part
            ],
            explained=explained,
            unexplained=sorted({case.id for case in every if case.status in ODD} - known),
            messages=sorted(_messages(found)),
        )
    )


def _groups(matrix: Iterable[Case]) -> list[tuple[str, list[Case]]]:
    return [(name, list(cases)) for name, cases in groupby(matrix, lambda case: case.group)]


def _ran(case: Case, part: Iterable[ConformanceRecord]) -> bool:
    return any(case.id in record.by_id for record in part)


def _is_verl(record: ConformanceRecord) -> bool:
    return record.name.startswith("verl ")


def _word(status: Status) -> str:
    """Return the text of a cell, in bold where the verdict is bad."""
    return f"**{status.label}**" if status.bad else status.label


def _origin(origin: str) -> str:
    """Return a commit by its first ten digits, and another origin as it is.

    Where there are several, releases have no hashes.
    """
    first, *others = origin.split(", ")
    return "`, `".join([_one_origin(first), *(one.partition("#")[0] for one in others)])


def _one_origin(origin: str) -> str:
    _, found, commit = origin.partition("#commit=")
    return f"NVIDIA/Megatron-LM@{commit[:10]}" if found else origin.removeprefix("git:")


def _cell(result: CaseResult | None) -> str:
    if result is None:
        return ""
    difference = result.largest_difference
    if difference is None or result.status not in (Status.AGREES, Status.DIFFERS):
        return _word(result.status)
    word = "" if result.status is Status.AGREES else f"{_word(result.status)} "
    return f"{word}{difference:.1e}"


def _messages(
    found: Sequence[ConformanceRecord],
) -> Iterator[tuple[str, list[tuple[tuple[str, ...], list[str]]]]]:
    """Yield messages of refusals, each with the cases and the places that raise it for these."""
    origins: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for record in found:
        for case in record.cases:
            if case.status in REFUSALS:
                where = f"{record.short} (`{case.place}`)" if case.place else record.short
                origins[case.message][where].append(case.id)
    for message, ids_by_place in origins.items():
        together: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for where, ids in ids_by_place.items():
            together[tuple(ids)].append(where)
        yield message, list(together.items())


def known_results(found: Iterable[ConformanceRecord]) -> str:
    """Return the JSON that is shipped of records, with one case on each line."""

    def kept(case: CaseResult) -> list[Any]:
        difference = case.largest_difference
        rounded = None if difference is None else float(f"{difference:.1e}")
        return [case.status.value, rounded, case.message, case.place]

    parts = []
    for record in found:
        head = {"name": record.name, "engine": record.engine, "iterations": record.iterations}
        cases = (f"{json.dumps(case.id)}: {json.dumps(kept(case))}" for case in record.cases)
        parts.append(f'{json.dumps(head)[:-1]}, "cases": {{\n' + ",\n".join(cases) + "\n}}")
    return "[\n" + ",\n".join(parts) + "\n]\n"


def main() -> None:
    """Write both files from the records."""
    found = records(RECORDS)
    PAGE.write_text(page(found), encoding="utf-8")
    KNOWN.write_text(known_results(found), encoding="utf-8")


if __name__ == "__main__":
    main()
