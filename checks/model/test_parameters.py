"""Parameters are the same numbers in any layout, and TP ranks hold them once between them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from checks.model.whole_model import whole
from ringproof.errors import InputError
from ringproof.reference.model.config import preset
from ringproof.reference.model.parameters import Builder, ParameterKind
from ringproof.reference.model.stage import Stage
from ringproof.reference.model.tensor_parallel import TensorParallel
from ringproof.reference.topology.dynamic import ContextParallelGroup
from smoke.model_cases import assembled

PRESETS = ("qwen3-tiny", "moonlight-tiny")


def builder(**fields: Any) -> Builder:
    settings: dict[str, Any] = {
        "seed": 0,
        "dtype": torch.float64,
        "device": torch.device("cpu"),
        "tensor_parallel": TensorParallel(),
        "registry": {},
    }
    return Builder(**{**settings, **fields})


def stage(name: str, tp: TensorParallel | None = None, **options: Any) -> Stage:
    return whole(preset(name), seed=3, tensor_parallel=tp or TensorParallel(), **options)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        *((name, 2) for name in PRESETS),
        ("qwen3-tiny", 4),
        ("moonlight-tiny", 4),
    ],
)
def test_parts_of_all_ranks_are_the_model(
    name: str, size: int, alone: ContextParallelGroup
) -> None:
    """Making parameters sends nothing, so any rank of any TP can be played here."""
    whole = stage(name)
    ranks = [stage(name, TensorParallel(alone.flat, size, rank)) for rank in range(size)]
    for key, parameter in whole.named_parameters():
        kind = ranks[0].kinds[key]
        parts = [rank.get_parameter(key).detach() for rank in ranks]
        held = sum(part.numel() for part in parts)
        assert held == parameter.numel() * (size if kind.split is None else 1)
        assert torch.equal(assembled(kind, parts), parameter)


def test_heads_stay_whole(alone: ContextParallelGroup) -> None:
    """Of 8 query and 4 key/value heads, rank 1 of 2 has the second half of each."""
    shape = preset("qwen3-tiny").attention
    assert shape is not None
    key, width = "layers.0.attention.qkv.weight", shape.head_width
    full = stage("qwen3-tiny").get_parameter(key)
    part = stage("qwen3-tiny", TensorParallel(alone.flat, 2, 1)).get_parameter(key)
    heads = [4, 5, 6, 7, 10, 11, 14, 15]
    assert torch.equal(part, torch.cat([full[h * width : (h + 1) * width] for h in heads]))


def test_cut_without_blocks_would_tear_heads_apart() -> None:
    """Negative control: a plain cut of q beside k gives rank 0 no key at all."""
    full = torch.arange(12.0).unsqueeze(-1)
    torn, whole = ParameterKind(split=0), ParameterKind(split=0, blocks=(8, 4))
    assert torn.cut(full, 2, 0).flatten().tolist() == [0, 1, 2, 3, 4, 5]
    assert whole.cut(full, 2, 0).flatten().tolist() == [0, 1, 2, 3, 8, 9]


def test_the_draw_depends_on_seed_and_name_alone() -> None:
    one = builder().scope("layers").scope("3").parameter("weight", (4, 5))
    torch.manual_seed(7)
    assert torch.equal(builder(prefix="layers.3.").parameter("weight", (4, 5)), one)
    assert not torch.equal(builder(prefix="layers.4.").parameter("weight", (4, 5)), one)
    assert not torch.equal(builder(seed=1, prefix="layers.3.").parameter("weight", (4, 5)), one)


def test_torch_own_generator_is_left_alone() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    builder().parameter("weight", (4, 5))
    assert torch.equal(torch.rand(3), expected)


def test_spread_and_fill() -> None:
    make = builder()
    assert float(make.parameter("a", (200, 200), std=0.5).detach().std()) == pytest.approx(
        0.5, rel=0.02
    )
    assert make.parameter("b", (3,), fill=2.0).tolist() == [2.0, 2.0, 2.0]


def test_partial_means_nothing_on_one_rank(alone: ContextParallelGroup) -> None:
    one, two = builder(), builder(tensor_parallel=TensorParallel(alone.flat, 2, 0))
    for make, expected in ((one, False), (two, True)):
        make.parameter("weight", (4,), partial=True)
        assert make.registry["weight"].partial_over_tensor_parallel is expected


def test_refusals(alone: ContextParallelGroup) -> None:
    make = builder(tensor_parallel=TensorParallel(alone.flat, 3, 0))
    with pytest.raises(InputError, match="does not divide 4"):
        make.parameter("weight", (4, 6), split=0)
    with pytest.raises(InputError, match="does not divide 2"):
        make.parameter("weight", (6, 6), split=0, blocks=(2, 4))
    make.parameter("weight", (6, 6), split=0)
    with pytest.raises(InputError, match="made twice"):
        make.parameter("weight", (6, 6))
    with pytest.raises(InputError, match="heads"):
        stage("qwen3-tiny", TensorParallel(alone.flat, 8, 0))


@pytest.mark.parametrize(("size", "rank"), [(2, 0), (1, 1), (0, 0)])
def test_ranks_without_a_group_are_refused(size: int, rank: int) -> None:
    with pytest.raises(InputError, match="tensor_parallel"):
        TensorParallel(None, size, rank)
