"""Batches routed between real ranks: every row in its place, one exchange, no byte too many."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from checks.training.steps import check_batches, foreign_rows
from ringproof.cluster import CaseOutcome, Cluster, RankContext
from ringproof.errors import InputError
from ringproof.reference.attention.communicator import Traffic
from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.topology.context import parallel_context
from ringproof.reference.topology.dynamic import dynamic_groups
from ringproof.reference.topology.layout import RankLayout
from ringproof.reference.training.agreement import check_agreement
from ringproof.reference.training.data import Documents, Sampler, Tokens, read_data
from ringproof.reference.training.routing import TokenNeeds, owned_documents, route_batches
from ringproof.reference.training.schedules import Schedule, StepPlan, plan_digest, plan_step

BATCH = 12
STEPS = 2
SCHEDULES = [
    pytest.param({"name": "padded", "cp_size": 2}, id="padded"),
    pytest.param({"name": "packed", "cp_size": 2}, id="packed"),
    pytest.param({"name": "dynamic", "cp_sizes": (1, 2, 4)}, id="dynamic"),
    pytest.param({"name": "dynamic", "forced_sizes": (1, 2, 4)}, id="forced"),
    pytest.param({"name": "dynamic", "forced_sizes": (4,), "row_shards": 2}, id="shards"),
    pytest.param({"name": "packed", "cp_size": 4, "partition": "contiguous"}, id="contiguous"),
]


def planned(schedule: Schedule, *, seed: int, step: int) -> tuple[Documents, StepPlan]:
    """A step of the synthetic language, as a trainer plans it."""
    documents = read_data("synthetic:documents=200,mean=40", longest=160).training
    sampler = Sampler(seed=seed, global_batch=BATCH, documents=len(documents.lengths))
    indices = sampler.indices(step)
    return documents, plan_step(documents.lengths[indices], schedule, documents=indices)


def arrived(batch: PackedBatch) -> SimpleNamespace:
    """A microbatch as a rank got it, on the CPU and without its group."""
    names = ("positions", "entries", "real", "tokens", "future")
    tensors = {name: getattr(batch, name) for name in names}
    moved = {name: None if one is None else one.cpu() for name, one in tensors.items()}
    return SimpleNamespace(size=batch.group.size, rows=batch.rows, **moved)


def raised(document: Tokens, above: int) -> Tokens:
    """A document of bytes with larger token ids."""
    return (document.astype(np.int64) + above).astype(np.min_scalar_type(255 + above))


def route_steps(
    rank: RankContext,
    *,
    layout: RankLayout,
    schedule: Schedule,
    depths: int,
    steps: int,
    liar: int | None = None,
    above: int = 0,
) -> list[dict[str, Any]]:
    """Route some steps: what this rank got, and what it sent.

    ``liar`` is a rank that sends its documents backwards; ``above`` is added to every token id.
    """
    stage = layout.coordinate("pp", rank.rank)
    needs = TokenNeeds(
        depths=depths, embeds=stage == 0, predicts=stage == layout.pp - 1, device=rank.device,
        ids=np.min_scalar_type(255 + above),
    )  # fmt: skip
    found = []
    with (
        parallel_context(layout) as context,
        dynamic_groups(context, schedule.sizes, comm_type="p2p", ranks_per_node=8) as groups,
    ):
        for number in range(steps):
            documents, step = planned(schedule, seed=5, step=number)
            owned = owned_documents(documents, step, groups.domain_rank)
            owned = {sequence: raised(text, above) for sequence, text in owned.items()}
            if rank.rank == liar:
                owned = {sequence: text[::-1].copy() for sequence, text in owned.items()}
            traffic = Traffic()
            batches = route_batches(step, owned, groups, needs, traffic=traffic)
            operations = {name: dict(kinds) for name, kinds in traffic.operations.items()}
            found.append(
                {
                    "batches": [arrived(batch) for batch in batches],
                    "operations": operations,
                    "bytes": sum(traffic.bytes_sent.values()),
                }
            )
    return found


def disagree(rank: RankContext, *, schedule: Schedule, different: Sequence[int]) -> None:
    """Some ranks have another seed."""
    _, step = planned(schedule, seed=int(rank.rank in different), step=7)
    check_agreement(plan_digest(step), what="plan of step 7")


def schedule(ranks: int, fields: dict[str, Any]) -> Schedule:
    return Schedule(ranks=ranks, max_tokens_per_rank=160, **fields)


def routed(
    cluster: Cluster, layout: RankLayout, how: Schedule, *, depths: int = 1, **fields: Any
) -> CaseOutcome:
    return cluster.run(
        route_steps,
        world_size=layout.world_size,
        layout=layout,
        schedule=how,
        depths=depths,
        steps=STEPS,
        **fields,
    )


def expected(how: Schedule, number: int) -> tuple[StepPlan, list[Tokens]]:
    """The step as this process plans it, and its documents."""
    documents, step = planned(how, seed=5, step=number)
    return step, [documents.read(document) for document in step.documents]


def check_domain(outcome: CaseOutcome, ranks: list[int], how: Schedule, width: int) -> None:
    """What the ranks of one domain got and sent, in each step."""
    for number in range(STEPS):
        step, documents = expected(how, number)
        values = [outcome.values[rank][number] for rank in ranks]
        check_batches(step, documents, [value["batches"] for value in values])
        for rank, value in enumerate(values):
            sizes = [step.group_of(k, rank).size for k in range(len(step.plan.microbatches))]
            assert [batch.size for batch in value["batches"]] == sizes
            assert [*value["operations"].values()] == [{"all_to_all": 1}]
        assert sum(value["bytes"] for value in values) == width * rows_from_others(step, values)


def rows_from_others(step: StepPlan, values: list[dict[str, Any]]) -> int:
    """Real rows that are computed on another rank than their document's."""
    return sum(
        foreign_rows(step, rank, number, batch)
        for rank, value in enumerate(values)
        for number, batch in enumerate(value["batches"])
    )


@pytest.mark.parametrize("fields", SCHEDULES)
def test_four_ranks(cluster: Cluster, fields: dict[str, Any]) -> None:
    how = schedule(4, fields)
    outcome = routed(cluster, RankLayout(cp=2, dp=2), how)
    check_domain(outcome, [0, 1, 2, 3], how, width=3)


def test_token_ids_of_a_large_vocabulary_travel(cluster: Cluster) -> None:
    above, how = 150_000, schedule(2, {"name": "packed", "cp_size": 2})
    outcome = routed(cluster, RankLayout(cp=2), how, above=above)
    step, documents = expected(how, 0)
    larger = [raised(document, above) for document in documents]
    check_batches(step, larger, [value[0]["batches"] for value in outcome.values])


@pytest.mark.slow
def test_one_rank_and_eight_get_the_same_samples(cluster: Cluster) -> None:
    alone = schedule(1, {"name": "packed"})
    many = schedule(8, {"name": "dynamic", "cp_sizes": (1, 2, 4, 8)})
    check_domain(routed(cluster, RankLayout(), alone), [0], alone, width=3)
    check_domain(routed(cluster, RankLayout(dp=8), many), [*range(8)], many, width=3)
    for number in range(STEPS):
        assert expected(alone, number)[0].documents == expected(many, number)[0].documents


def test_tensor_parallel_ranks_get_the_same_rows(cluster: Cluster) -> None:
    how = schedule(4, {"name": "dynamic", "forced_sizes": (2, 4, 1), "row_shards": 2})
    outcome = routed(cluster, RankLayout(tp=2, cp=2, dp=2), how, depths=0)
    check_domain(outcome, [0, 2, 4, 6], how, width=2)
    check_domain(outcome, [1, 3, 5, 7], how, width=2)


def test_pipeline_stages_get_what_they_take(cluster: Cluster) -> None:
    how = schedule(2, {"name": "dynamic", "forced_sizes": (1, 2)})
    outcome = routed(cluster, RankLayout(dp=2, pp=4), how, depths=2)
    check_domain(outcome, [0, 1], how, width=1)
    check_domain(outcome, [6, 7], how, width=3)
    for rank, value in enumerate(outcome.values):
        for step in value:
            for batch in step["batches"]:
                assert (batch.tokens is not None) == (rank < 2)
                assert (batch.future is not None) == (rank >= 6)
            assert bool(step["operations"]) == (rank < 2 or rank >= 6)
    first, middle = outcome.values[0][0]["batches"], outcome.values[2][0]["batches"]
    assert [batch.positions.tolist() for batch in first] == [
        batch.positions.tolist() for batch in middle
    ]


def test_a_rank_that_sends_something_else_is_seen(cluster: Cluster) -> None:
    how = schedule(4, {"name": "dynamic", "cp_sizes": (1, 2, 4)})
    outcome = routed(cluster, RankLayout(dp=4), how, liar=1)
    with pytest.raises(AssertionError):
        check_domain(outcome, [0, 1, 2, 3], how, width=3)


@pytest.mark.parametrize(
    ("different", "named"), [((2,), "rank 2"), ((0, 3), "rank 0, 3"), ((), None)]
)
def test_ranks_that_disagree_about_the_plan_are_named(
    cluster: Cluster, different: tuple[int, ...], named: str | None
) -> None:
    how = schedule(5, {"name": "packed"})
    run = {"world_size": 5, "schedule": how, "different": different}
    if named is None:
        cluster.run(disagree, **run)
        return
    with pytest.raises(InputError) as refusal:
        cluster.run(disagree, **run)
    others = 5 - len(different)
    said = f"plan of step 7: {named} made another than the other {others} ranks"
    assert str(refusal.value).startswith(said)
