"""What a run may be asked for, and what is kept of it, is checked before any rank starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner

from ringproof.cli.main import app
from ringproof.errors import InputError
from ringproof.reference.model.config import preset
from ringproof.reference.training.assembly import check_longest
from ringproof.reference.training.checkpoint import identity_of
from ringproof.reference.training.data import SyntheticLanguage
from ringproof.reference.training.options import (
    BatchOptions,
    KeepingOptions,
    ModelOptions,
    OptimiserOptions,
    ParallelOptions,
    TrainOptions,
    check_sizes,
)
from ringproof.reference.training.schedules import Schedule
from smoke.training_command import Command
from smoke.training_matrix import ONE_RANK, options_of


def run(*, layout: dict[str, int] | None = None, **parts: dict[str, Any]) -> TrainOptions:
    return TrainOptions(
        model=ModelOptions(**parts.get("model", {})),
        parallel=ParallelOptions(**(layout or {}), **parts.get("parallel", {})),
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


@pytest.mark.parametrize(
    ("parts", "field"),
    [
        ({"model": {"mtp": -1}}, "--mtp"),
        ({"parallel": {"vpp": 2}}, "--vpp"),
        ({"parallel": {"comm_type": "nccl"}}, "--comm"),
        ({"layout": {"cp": 4}, "parallel": {"ranks_per_node": 3}}, "--ranks-per-node"),
        ({"layout": {"pp": 5}}, "--pp"),
        ({"layout": {"pp": 2}, "parallel": {"vpp": 3}}, "--pp"),
        ({"batch": {"schedule": "packed", "forced_sizes": (1,)}}, "--force-cp"),
        ({"batch": {"max_sequence_length": 1}}, "--max-length"),
        ({"batch": {"seed": -1}}, "--seed"),
        ({"batch": {"seed": 2**32}}, "--seed"),
        ({"optimiser": {"learning_rate": float("nan")}}, "--learning-rate"),
        ({"keeping": {"resume": True}}, "--resume"),
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
    assert str(caught.value).startswith(f"--cp-sizes: with size {refused}, ")


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["--force-cp", "1,x"], "--force-cp"),
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
    said = str(result.exception)
    assert said.startswith("ringproof train needs the package torch; without a GPU run first: pip")


BANK = ("--graphs", "bank")

REFUSED = [
    (("--graphs", "yes"), "--graphs: 'yes' is unknown; use one of off, static, bank"),
    (("--graph-scope", "mlp"), "--graph-scope: 'mlp' is unknown; use one of auto, layer"),
    (("--graph-scope", "router"), "--graph-scope: the model qwen3-tiny has no experts to route"),
    (
        ("--preset", "moonlight-tiny", "--graph-scope", "layer"),
        "--graph-scope: layer 1 has experts, whose dispatch reads b",
    ),
    (("--graph-scope", "attn", "--recompute"), "--graph-scope: attn would be replayed twice where"),
    (("--dp", "2", "--fsdp"), "--graphs: FSDP gathers parameters at new addresses"),
    (("--graph-rows", "17"), "--graph-rows: 17 is not a multiple of 2 up to 64"),
    (("--graph-rows", "128"), "--graph-rows: 128 is not a multiple of 2 up to 64"),
    (
        ("--cp", "2", "--force-cp", "4"),
        "--force-cp: 4 is not a group size; choose from 1, 2",
    ),
    (
        ("--cp", "2", "--cp-sizes", "2", "--force-cp", "2,1"),
        "--force-cp: 1 is not a group size; choose from 2",
    ),
    (("--cp-sizes", "3"), "--cp-sizes: 3 does not divide the domain of 1 ranks"),
    (
        ("--schedule", "padded", "--cp-sizes", "1"),
        "--cp-sizes has no effect with --schedule padded; use --cp, or --schedule dynamic",
    ),
    (
        ("--graphs", "static", "--graph-slots", "2"),
        "--graph-slots has no effect with --graphs static; use --graphs bank",
    ),
    (
        ("--graphs", "off", "--graph-warmup", "3", "--graphs-overflow", "eager"),
        "--graphs-overflow has no effect with --graphs off; use --graphs static or bank",
    ),
]
"""Options, and the beginning of what is said."""


@pytest.fixture
def train(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(capsys, monkeypatch)


@pytest.mark.parametrize(("options", "said"), REFUSED)
def test_what_cannot_be_is_refused_at_once(
    train: Command, options: tuple[str, ...], said: str
) -> None:
    assert train.refusal(*BANK, *options).startswith(said)


def test_what_can_be_gets_as_far_as_its_ranks(train: Command) -> None:
    """Negative control: nothing above is refused for another reason."""
    code, _, errors = train(*BANK)
    assert code == 3
    assert "1 ranks would start" in errors


DOCUMENTS = SyntheticLanguage(longest=64, documents=50)
OPTIONS = run(layout={"cp": 2}, keeping={"save": "here"})


def changed(part: str, **values: Any) -> Callable[[TrainOptions], TrainOptions]:
    def change(options: TrainOptions) -> TrainOptions:
        return replace(options, **{part: replace(getattr(options, part), **values)})

    return change


@pytest.mark.parametrize(
    "change",
    [
        changed("model", mtp=1),
        changed("model", dtype="float64"),
        changed("parallel", dp=2),
        changed("parallel", comm_type="all_gather"),
        changed("batch", seed=1),
        changed("batch", schedule="packed"),
        changed("batch", max_tokens_per_rank=2048),
        changed("batch", forced_sizes=(1, 2)),
        changed("optimiser", steps=51),
        changed("optimiser", clip=0.5),
    ],
)
def test_what_changes_a_run_ends_its_resumption(
    change: Callable[[TrainOptions], TrainOptions],
) -> None:
    assert identity_of(change(OPTIONS), DOCUMENTS) != identity_of(OPTIONS, DOCUMENTS)


def test_other_documents_are_another_run() -> None:
    """The same folder with a file more has the same arguments."""
    more = replace(DOCUMENTS, documents=51)
    differing = dict(identity_of(OPTIONS, more).items() - identity_of(OPTIONS, DOCUMENTS).items())
    assert differing.keys() == {"documents"}


def test_what_a_run_keeps_does_not_end_its_resumption() -> None:
    other = changed("keeping", save="there", evaluate_every=2, resume=True)(OPTIONS)
    assert identity_of(other, DOCUMENTS) == identity_of(OPTIONS, DOCUMENTS)


def test_a_document_that_fits_nowhere_is_refused_before_a_step_draws_it() -> None:
    schedule = Schedule(name="dynamic", ranks=2, max_tokens_per_rank=32, cp_sizes=(1, 2))
    check_longest(DOCUMENTS, schedule)
    longest = int(DOCUMENTS.lengths.argmax())
    with pytest.raises(InputError, match="longer than the 60 tokens") as caught:
        check_longest(DOCUMENTS, replace(schedule, max_tokens_per_rank=30))
    assert caught.value.field == DOCUMENTS.name(longest)


def test_a_bank_captures_the_widest_part_that_the_model_allows() -> None:
    chosen = {"qwen3-tiny": "layer", "moonlight-tiny": "attn"}
    for name, scope in chosen.items():
        options = options_of(name, ONE_RANK)
        asked = replace(options.graphs, graphs="bank")
        assert replace(options, graphs=asked).graph_scope == scope
        router = replace(options.graphs, graphs="bank", graph_scope="attn")
        assert replace(options, graphs=router).graph_scope == "attn"
