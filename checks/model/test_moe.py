"""The mixture of experts on one rank against a loop over tokens and choices, in float64."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from checks.model.whole_model import distance, rows
from ringproof.errors import InputError
from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.model.config import ModelConfig, preset
from ringproof.reference.model.moe import MixtureOfExperts, RoutedExperts, balance_loss, route
from ringproof.reference.model.parameters import Builder
from ringproof.reference.model.tensor_parallel import TensorParallel
from ringproof.reference.topology.dynamic import ContextParallelGroup
from smoke.model_batches import LENGTHS, random_sequences, rank_batch, totals

MOONLIGHT = preset("moonlight-tiny")
Tensors = Mapping[str, torch.Tensor]


def changed(**fields: Any) -> ModelConfig:
    """Moonlight with another shape of its experts."""
    assert MOONLIGHT.experts is not None
    return replace(MOONLIGHT, experts=replace(MOONLIGHT.experts, **{"score": "softmax", **fields}))


def experts(config: ModelConfig) -> MixtureOfExperts:
    builder = Builder(3, torch.float64, torch.device("cpu"), TensorParallel(), registry={})
    return MixtureOfExperts(config, builder.scope("moe"))


def naive_scores(logits: torch.Tensor, score: str) -> torch.Tensor:
    return torch.sigmoid(logits) if score == "sigmoid" else logits.exp() / logits.exp().sum()


def naive_choice(scores: torch.Tensor, count: int) -> list[int]:
    return sorted(range(len(scores)), key=lambda expert: (-scores[expert].item(), expert))[:count]


def naive_expert(x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    width = down.shape[1]
    gate, up = gate_up[:width] @ x, gate_up[width:] @ x
    return down @ (gate * torch.sigmoid(gate) * up)


def naive(
    x: torch.Tensor, weights: Tensors, batch: PackedBatch, config: ModelConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and auxiliary loss, one token at a time, one sequence at a time."""
    shape = config.experts
    assert shape is not None
    all_scores, choices, outputs = [], [], []
    for row in x:
        scores = naive_scores(weights["router.weight"] @ row, shape.score)
        chosen = naive_choice(scores, shape.chosen)
        share = sum(scores[expert] for expert in chosen) if shape.chosen > 1 else 1.0
        out = naive_expert(row, weights["shared.gate_up.weight"], weights["shared.down.weight"])
        for expert in chosen:
            matrices = weights["experts.gate_up"][expert], weights["experts.down"][expert]
            out = out + shape.scale * scores[expert] / share * naive_expert(row, *matrices)
        all_scores.append(scores)
        choices.append(chosen)
        outputs.append(out)
    auxiliary = torch.zeros((), dtype=torch.float64)
    for entry in range(len(batch.packed.lengths)):
        own = [row for row in range(len(x)) if batch.real[row] and int(batch.entries[row]) == entry]
        if own:
            loss = naive_balance([all_scores[row] for row in own], [choices[row] for row in own])
            auxiliary = auxiliary + len(own) * loss
    return torch.stack(outputs), shape.auxiliary * auxiliary / batch.totals.tokens


def naive_balance(scores: Sequence[torch.Tensor], choices: Sequence[Sequence[int]]) -> torch.Tensor:
    """``E * sum_e f_e P_e`` of one sequence."""
    total = torch.zeros((), dtype=torch.float64)
    for expert in range(len(scores[0])):
        times = sum(chosen.count(expert) for chosen in choices)
        fraction = times / sum(map(len, choices))
        total = total + fraction * sum(s[expert] / s.sum() for s in scores) / len(scores)
    return len(scores[0]) * total


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
@pytest.mark.parametrize("chosen", [1, 2, 8])
def test_the_loop_agrees(alone: ContextParallelGroup, score: str, chosen: int) -> None:
    batch = rank_batch(random_sequences(), alone, tail_rows=8)
    config = changed(score=score, chosen=chosen)
    module = experts(config)
    x, upstream = rows(batch.rows), rows(batch.rows, seed=1)
    found_x, naive_x = (x.clone().requires_grad_() for _ in range(2))
    out, auxiliary = module(found_x, batch)
    leaves = {name: p.detach().clone().requires_grad_() for name, p in module.named_parameters()}
    wanted, wanted_auxiliary = naive(naive_x, leaves, batch, config)
    # The auxiliary loss weighs as much as the output here, or its gradient would not be seen.
    ((out * upstream).sum() + 1e3 * auxiliary).backward()
    ((wanted * upstream).sum() + 1e3 * wanted_auxiliary).backward()
    pairs = {
        "out": (out, wanted),
        "auxiliary": (auxiliary, wanted_auxiliary),
        "x": (found_x.grad, naive_x.grad),
        **{name: (p.grad, leaves[name].grad) for name, p in module.named_parameters()},
    }
    assert all(theirs is not None and theirs.abs().max() > 0 for _, theirs in pairs.values())
    errors = {name: distance(ours, theirs) for name, (ours, theirs) in pairs.items()}
    assert len(errors) == 8
    assert max(errors.values()) <= 1e-10, errors


def spread(
    alone: ContextParallelGroup, packs: Sequence[Sequence[int]], **padding: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Auxiliary loss and its gradient of the router, with the sequences cut into packs."""
    everything = random_sequences()
    vectors = [rows(length, seed=10 + entry) for entry, length in enumerate(LENGTHS)]
    module, total = experts(changed()), torch.zeros((), dtype=torch.float64)
    for members in packs:
        batch = rank_batch(
            [everything[entry] for entry in members], alone, total=totals(everything), **padding
        )
        x = rows(batch.rows, seed=99)  # padding holds something, too
        x[batch.real] = torch.cat([vectors[entry] for entry in members])
        total = total + module(x, batch)[1]
    (gradient,) = torch.autograd.grad(total, [module.router.weight])
    return total.detach(), gradient


@pytest.mark.parametrize(
    ("packs", "padding"),
    [
        ([[3, 1, 0, 2]], {}),
        ([[0], [1], [2], [3]], {}),
        ([[2, 0], [3, 1]], {"multiple": 16}),
        ([[0, 1, 2, 3]], {"multiple": 32, "tail_rows": 64}),
    ],
)
def test_packing_and_padding_change_nothing(
    alone: ContextParallelGroup, packs: list[list[int]], padding: dict[str, int]
) -> None:
    wanted, gradient = spread(alone, [[0, 1, 2, 3]])
    found, found_gradient = spread(alone, packs, **padding)
    assert abs(found - wanted) <= 1e-12 * wanted
    assert (found_gradient - gradient).abs().max() <= 1e-12


def test_a_missing_sequence_changes_the_loss(alone: ContextParallelGroup) -> None:
    """Negative control of the above."""
    wanted, _ = spread(alone, [[0, 1, 2, 3]])
    assert abs(spread(alone, [[0, 2, 3]])[0] - wanted) > 1e-6


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_ties_go_to_the_first_experts(score: str) -> None:
    logits = torch.zeros(3, 32)
    logits[1, 20] = 1
    logits[2, 7:9] = -1
    routing = route(logits, chosen=8, scale=1.0, score=score)
    assert routing.chosen.tolist() == [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [20, 0, 1, 2, 3, 4, 5, 6],
        [0, 1, 2, 3, 4, 5, 6, 9],
    ]


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_weights_sum_to_the_scale_even_where_scores_vanish(score: str) -> None:
    logits = torch.tensor([[-200.0, -201.0, -300.0], [200.0, 1.0, 0.0]], requires_grad=True)
    routing = route(logits, chosen=2, scale=2.446, score=score)
    torch.testing.assert_close(routing.weights.sum(-1), torch.full((2,), 2.446))
    torch.testing.assert_close(routing.probabilities.sum(-1), torch.ones(2))
    routing.weights[:, 0].sum().backward()
    assert logits.grad is not None and logits.grad.isfinite().all()


def test_a_balanced_sequence_costs_its_length() -> None:
    """``E * sum_e (1 / E)^2 = 1`` for each token, and ``E`` where one expert has them all."""
    even, sequences = torch.full((6, 4), 0.25, dtype=torch.float64), torch.zeros(6).long()
    chosen = torch.tensor([[0, 1], [2, 3]]).repeat(3, 1)
    real = torch.tensor([True] * 4 + [False] * 2)
    assert balance_loss(even, chosen, sequences, real, entries=2, groups=()) == 4
    one = torch.eye(4, dtype=torch.float64)[:1].repeat(6, 1)
    assert balance_loss(one, chosen[:, :1] * 0, sequences, real, entries=1, groups=()) == 16


def test_the_router_works_in_float32_at_least(alone: ContextParallelGroup) -> None:
    module = experts(changed()).to(torch.bfloat16)
    batch = rank_batch(random_sequences(), alone)
    x = rows(batch.rows).to(torch.bfloat16)
    routing, auxiliary = module.router(x, batch)
    assert {routing.weights.dtype, routing.probabilities.dtype, auxiliary.dtype} == {torch.float32}
    out, _ = module(x, batch)
    assert out.dtype == torch.bfloat16


def test_the_router_reads_nothing_back_and_dispatch_does() -> None:
    """On a device without data, as in a graph's capture; dispatch is the negative control."""
    meta = Builder(0, torch.float32, torch.device("meta"), TensorParallel(), registry={})
    logits = torch.zeros(8, 8, device="meta", requires_grad=True)
    routing = route(logits, chosen=2, scale=1.0, score="softmax")
    sequences, real = (torch.zeros(8, dtype=t, device="meta") for t in (torch.int64, torch.bool))
    loss = balance_loss(
        routing.probabilities, routing.chosen, sequences, real, entries=3, groups=()
    )
    (loss + routing.weights.sum()).backward()
    assert logits.grad is not None and logits.grad.shape == (8, 8)
    dispatch = RoutedExperts(MOONLIGHT, meta.scope("experts"))
    x = torch.zeros(8, MOONLIGHT.hidden, device="meta")
    with pytest.raises((RuntimeError, NotImplementedError)):
        dispatch(x, routing.chosen, routing.weights)


@pytest.mark.parametrize("chosen", [0, 9])
def test_a_choice_that_cannot_be_made_is_refused(chosen: int) -> None:
    with pytest.raises(InputError, match=r"chosen: .* of 8 experts"):
        replace(MOONLIGHT.experts, chosen=chosen)


def test_an_unknown_score_is_refused() -> None:
    with pytest.raises(InputError, match="score"):
        replace(MOONLIGHT.experts, score="tanh")


def test_experts_start_different() -> None:
    """A router among equal experts would be right whatever it chose."""
    module = experts(MOONLIGHT)
    first, *others = module.experts.gate_up
    assert min((first - other).abs().max().item() for other in others) > 1e-3
    assert math.isclose(float(module.experts.down.detach().std()), 32**-0.5, rel_tol=0.05)
