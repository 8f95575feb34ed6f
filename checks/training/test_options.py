"""What a run may be asked for is checked before any rank starts."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from ringproof.cli.main import app
from ringproof.errors import InputError
from ringproof.reference.model.config import preset
from ringproof.reference.topology.layout import RankLayout
from ringproof.reference.training.options import (
    BatchOptions,
    KeepingOptions,
    ModelOptions,
    OptimiserOptions,
    ParallelOptions,
    TrainOptions,
    check_sizes,
)


def run(*, layout: dict[str, int] | None = None, **parts: dict[str, Any]) -> TrainOptions:
    return TrainOptions(
        model=ModelOptions(**parts.get("model", {})),
        parallel=ParallelOptions(layout=RankLayout(**(layout or {})), **parts.get("parallel", {})),
        batch=BatchOptions(**parts.get("batch", {})),
        optimiser=OptimiserOptions(**parts.get("optimiser", {})),
        keeping=KeepingOptions(**parts.get("keeping", {})),
    )


@pytest.mark.parametrize(
    ("schedule", "batch", "sizes"),
    [
        ("dynamic", {}, (1, 2, 4)),
        ("dynamic", {"forced_sizes": (4, 1, 4)}, (1, 4)),
        ("dynamic", {"cp_sizes": "2"}, (2,)),
        ("packed", {}, (2,)),
        ("padded", {}, (2,)),
    ],
)
def test_the_groups_that_a_schedule_may_use(
    schedule: str, batch: dict[str, Any], sizes: tuple[int, ...]
) -> None:
    options = run(layout={"cp": 2, "dp": 2}, batch={"schedule": schedule, **batch})
    assert options.group_sizes == sizes


def test_mtp_is_part_of_the_model() -> None:
    assert run(model={"mtp": 2}).model.config.mtp_depths == 2
    assert run().model.config == preset("qwen3-tiny")


@pytest.mark.parametrize(
    ("parts", "field"),
    [
        ({"model": {"preset": "gpt"}}, "preset"),
        ({"model": {"dtype": "int8"}}, "dtype"),
        ({"model": {"mtp": -1}}, "mtp"),
        ({"parallel": {"vpp": 2}}, "vpp"),
        ({"parallel": {"comm_type": "nccl"}}, "comm_type"),
        ({"layout": {"cp": 4}, "parallel": {"ranks_per_node": 3}}, "ranks_per_node"),
        ({"layout": {"cp": 4}, "parallel": {"ranks_per_node": -2}}, "ranks_per_node"),
        ({"layout": {"pp": 5}}, "pp"),
        ({"layout": {"pp": 2}, "parallel": {"vpp": 3}}, "pp"),
        ({"layout": {"cp": 3}, "batch": {"forced_sizes": (2,)}}, "forced_sizes"),
        ({"batch": {"schedule": "static"}}, "schedule"),
        ({"batch": {"schedule": "packed", "forced_sizes": (1,)}}, "forced_sizes"),
        ({"batch": {"max_sequence_length": 1}}, "max_sequence_length"),
        ({"batch": {"global_batch": 0}}, "global_batch"),
        ({"optimiser": {"learning_rate": float("nan")}}, "learning_rate"),
        ({"optimiser": {"clip": float("inf")}}, "clip"),
        ({"optimiser": {"steps": 0}}, "steps"),
        ({"keeping": {"resume": True}}, "save"),
        ({"keeping": {"evaluate_every": -1}}, "evaluate_every"),
    ],
)
def test_what_cannot_be_is_refused_by_name(parts: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        run(**parts)
    assert caught.value.field == field
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "sizes", "how", "refused"),
    [
        ("qwen3-tiny", (1, 3, 8), {}, None),
        ("qwen3-tiny", (1, 2, 8), {"comm_type": "a2a"}, None),
        ("qwen3-tiny", (1, 3), {"comm_type": "a2a"}, 3),
        ("qwen3-tiny", (1, 8), {"comm_type": "a2a", "tp": 2}, 8),
        ("qwen3-tiny", (6, 12), {"comm_type": "a2a+p2p", "ranks_per_node": 2}, None),
        ("qwen3-tiny", (6, 12), {"comm_type": "a2a+p2p", "ranks_per_node": 6}, 6),
        ("moonlight-tiny", (3,), {"comm_type": "a2a"}, 3),
        ("nemotron-h-tiny", (1, 2, 3, 4, 6, 8), {}, None),
        ("nemotron-h-tiny", (2, 5), {}, 5),
        ("nemotron-h-tiny", (4, 8), {"tp": 2}, 8),
    ],
)
def test_a_size_that_the_heads_cannot_serve_is_found_at_once(
    model: str, sizes: tuple[int, ...], how: dict[str, Any], refused: int | None
) -> None:
    arguments = {"tp": 1, "comm_type": "p2p", "ranks_per_node": 1, **how}
    if refused is None:
        check_sizes(preset(model), sizes, **arguments)
        return
    with pytest.raises(InputError) as caught:
        check_sizes(preset(model), sizes, **arguments)
    assert (caught.value.field, caught.value.value) == ("cp_sizes", refused)


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["--comm", "x"], "--comm"),
        (["--force-cp", "1,x"], "--force-cp"),
        (["--max-length", "1"], "--max-length"),
        (["--warmup", "-1"], "--warmup"),
        (["--cp", "0"], "--cp"),
        (["--log-format", "csv"], "--log-format"),
        (["--log", "/nowhere/run.jsonl"], "--log"),
        (["--save", "/dev/null/x"], "--save"),
        (["--json", "/nowhere/run.json"], "--json"),
        (["--json", "/"], "--json"),
        (["--cp", "3", "--schedule", "packed", "--comm", "a2a"], "--cp"),
        (["--cp", "3", "--cp-sizes", "3", "--comm", "a2a"], "--cp-sizes"),
    ],
)
def test_the_command_names_the_option(arguments: list[str], option: str) -> None:
    result = CliRunner().invoke(app, ["train", *arguments])
    assert isinstance(result.exception, InputError)
    assert result.exception.field == option


def test_without_torch_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = CliRunner().invoke(app, ["train"])
    assert isinstance(result.exception, InputError)
    assert str(result.exception).startswith("ringproof train: needs the package torch; run: pip")
