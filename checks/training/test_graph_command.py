"""``ringproof train --graphs bank``: what is refused in one line before a rank starts."""

from __future__ import annotations

import pytest

from smoke.training_command import Command

BANK = ("--graphs", "bank")

REFUSED = [
    (("--graphs", "yes"), "--graphs: unknown (got yes); use one of off, static, bank"),
    (("--graphs-overflow", "drop"), "--graphs-overflow: unknown (got drop); use one of error, ea"),
    (("--graph-warmup", "-1"), "--graph-warmup: is negative (got -1); give 0 or more"),
    (("--graph-backend", "nonsense"), "--graph-backend: unknown (got nonsense); use one of auto,"),
    (("--graph-scope", "mlp"), "--graph-scope: unknown (got mlp); use one of layer, attn, router"),
    (("--graph-scope", "router"), "--graph-scope: qwen3-tiny has no experts (got router); use la"),
    (("--preset", "moonlight-tiny"), "--graph-scope: layer 1 has experts, whose dispatch reads b"),
    (("--graph-scope", "attn", "--recompute"), "--graph-scope: whole layers are computed again ("),
    (("--dp", "2", "--fsdp"), "--graphs: FSDP gathers parameters at new addresses (got bank); us"),
    (
        ("--graph-rows", "17"),
        "--graph-rows: is not a multiple of 2 up to max_tokens_per_rank (got 1",
    ),
    (
        ("--graph-rows", "128"),
        "--graph-rows: is not a multiple of 2 up to max_tokens_per_rank (got ",
    ),
    (("--graph-slots", "-1"), "--graph-slots: is negative (got -1); give 0 or more"),
    (
        ("--cp", "2", "--force-cp", "4"),
        "--force-cp: is not a group size (got 4); choose from (1, 2)",
    ),
    (
        ("--cp", "2", "--cp-sizes", "2", "--force-cp", "2,1"),
        "--force-cp: is not a group size (got 1); choose from (2,)",
    ),
    (("--cp-sizes", "3"), "--cp-sizes: 3 does not divide the domain of 1 ranks (got 3); choose"),
    (
        ("--schedule", "padded", "--cp-sizes", "1"),
        "--cp-sizes: has no effect with the padded schedule (got 1); use --cp, or --schedule",
    ),
    (
        ("--graphs", "static", "--graph-slots", "2"),
        "--graph-slots: has no effect with --graphs static (got 2); use bank",
    ),
    (
        ("--graphs", "off", "--graph-warmup", "3", "--graphs-overflow", "eager"),
        "--graphs-overflow: has no effect with --graphs off (got eager); use static or bank",
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
