"""Do the graphs of a plan's ``graphs`` hold the plan? Shares no code with what wrote them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ringproof.errors import InputError

_MOST_PROBLEMS = 20
_COUNTS = ("rows_per_rank", "thd_max_packed_sequences", "microbatches", "slots")


def capacity_violations(plan: Mapping[str, Any], *, rank_multiple: int) -> list[str]:
    """What graphs of that capacity could not replay, at most the first twenty; empty if nothing.

    Args:
        plan: A legal plan.
        rank_multiple: Rows of a sequence on one rank are padded to a multiple of this.

    Raises:
        InputError: The key ``graphs`` has not the form that it is written in.
    """
    if "graphs" not in plan:
        return []
    graphs = plan["graphs"]
    sizes = graphs.get("groups") if isinstance(graphs, Mapping) else None
    if not isinstance(sizes, Mapping) or not all(map(str.isdecimal, sizes)):
        raise InputError("graphs.groups", None, "is not an object of CP sizes", "plan it anew")
    for name in _COUNTS:
        if type(graphs.get(name)) is not int or graphs[name] < 1:
            raise InputError(
                f"graphs.{name}", graphs.get(name), "is not a positive number", "plan it"
            )
    found = (*_shape_problems(plan, graphs), *_pack_problems(plan, graphs, rank_multiple))
    return list(found[:_MOST_PROBLEMS])


def _shape_problems(plan: Mapping[str, Any], graphs: Mapping[str, Any]) -> Iterator[str]:
    captured = sorted(map(int, graphs["groups"]))
    if captured != sorted(plan["cp_sizes"]):
        yield f"graphs.groups: CP sizes {captured}, but the plan has {sorted(plan['cp_sizes'])}"
    if graphs["microbatches"] < len(plan["microbatches"]):
        most = len(plan["microbatches"])
        yield f"graphs.microbatches: {graphs['microbatches']}, but the plan has {most}"
    if graphs["rows_per_rank"] > plan["max_tokens_per_rank"]:
        budget = plan["max_tokens_per_rank"]
        yield f"graphs.rows_per_rank: {graphs['rows_per_rank']}, more than the budget {budget}"
    if graphs["slots"] > graphs["microbatches"]:
        yield f"graphs.slots: {graphs['slots']} for {graphs['microbatches']} microbatches"


def _pack_problems(
    plan: Mapping[str, Any], graphs: Mapping[str, Any], rank_multiple: int
) -> Iterator[str]:
    rows, entries = graphs["rows_per_rank"], graphs["thd_max_packed_sequences"]
    for number, microbatch in enumerate(plan["microbatches"]):
        for index, group in enumerate(microbatch["groups"]):
            where = f"microbatches[{number}].groups[{index}]"
            chunk = len(group["ranks"]) * rank_multiple
            members = [plan["lengths"][member] for member in group["sequences"]]
            used = sum((length + chunk - 1) // chunk * rank_multiple for length in members)
            if len(members) + 1 > entries:
                yield f"{where}: {len(members)} sequences and a dummy in {entries} entries"
            if used > rows:
                yield f"{where}: {used} rows on a rank, graphs have {rows}"
