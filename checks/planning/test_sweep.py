"""``ringproof plan sweep``: every setting planned, one recommended, for Megatron-LM too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checks.planning.plan_run import LENGTHS, plan, refused
from ringproof.cli.plan_options import PlanOptions
from ringproof.cli.plan_sweep import (
    MAX_SETTINGS,
    InfeasiblePoint,
    SweepOutcome,
    SweepPoint,
    recommend,
    sweep,
)
from ringproof.errors import InputError
from ringproof.reference.planning import Domain

VALUES = np.array([100, 900, 300, 4000, 50, 700])
SWEEP = ("sweep", "--lengths", LENGTHS, "--ranks", "8", "--max-tokens-per-rank")


OPTIONS = PlanOptions(ranks=8, cost="attention-only")


def settings(*budgets: int) -> list[SweepPoint]:
    return [SweepPoint(budget, "pow2", "") for budget in budgets]


def with_makespan(outcome: SweepOutcome | InfeasiblePoint, makespan: float) -> SweepOutcome:
    assert isinstance(outcome, SweepOutcome)
    metrics = replace(outcome.plan.metrics, makespan=makespan)
    return replace(outcome, plan=replace(outcome.plan, metrics=metrics))


def test_an_impossible_setting_is_kept_with_its_reason() -> None:
    small, large = sweep(VALUES, settings(256, 1024), OPTIONS)
    assert isinstance(small, InfeasiblePoint) and isinstance(large, SweepOutcome)
    assert "longer than the 2,048 tokens" in small.problem
    assert recommend((small, large)) is large
    with pytest.raises(InputError, match="no setting is possible"):
        sweep(VALUES, settings(256), OPTIONS)
    with pytest.raises(InputError, match="0 settings"):
        sweep(VALUES, [], OPTIONS)
    with pytest.raises(InputError, match="1001 settings"):
        sweep(VALUES, settings(*range(MAX_SETTINGS + 1)), OPTIONS)


def test_of_settings_as_good_the_smallest_budget_is_recommended() -> None:
    found = sweep(VALUES, settings(4096, 1024, 2048), OPTIONS)
    makespans = (100.0, 100.9, 100.5)
    alike = [with_makespan(*pair) for pair in zip(found, makespans, strict=True)]
    assert recommend(alike) is alike[1]
    clearly = [with_makespan(*pair) for pair in zip(found, (100.0, 102.0, 100.5), strict=True)]
    assert recommend(clearly) is clearly[2]
    assert recommend([]) is None


def test_upstream_is_recommended_only_what_it_can_do() -> None:
    pow2, odd, from_two = sweep(
        VALUES, [SweepPoint(1024, sizes, "") for sizes in ("pow2", "1,8", "2,4,8")], OPTIONS
    )
    assert pow2.upstream and from_two.upstream
    assert not odd.upstream, "upstream would use sizes 2 and 4, too"
    nested = replace(pow2, setting=replace(pow2.setting, comm="a2a+p2p"))
    assert not nested.upstream
    domain = Domain(ranks=12, max_tokens_per_rank=1024, cp_sizes=(1, 2, 4, 12))
    assert not replace(pow2, domain=domain).upstream
    assert recommend([nested], upstream=True) is None
    assert recommend([nested]) is nested


def swept(*arguments: str) -> Any:
    done = plan(*SWEEP, *arguments, "--json", "-")
    assert done.code == 0, done.err
    return done.json()


def test_the_sweep_as_json() -> None:
    data = swept("2048,4096", "--comm", "p2p, a2a+p2p")
    found = {
        (item["max_tokens_per_rank"], item["cp_sizes"], item["comm"]) for item in data["settings"]
    }
    # On a power of two all divisors are powers of two: one set, not two.
    assert found == {
        (budget, "pow2", comm) for budget in (2048, 4096) for comm in ("p2p", "a2a+p2p")
    }
    best = data["settings"][data["recommended"]]
    assert best["metrics"]["makespan"] <= 1.01 * min(
        item["metrics"]["makespan"] for item in data["settings"]
    )
    usable = data["settings"][data["recommended_for_megatron"]]
    assert usable["megatron"] is True
    assert usable["comm"] == "p2p"
    flags = "\n".join(data["megatron_flags"])
    assert f"--max-seqlen-per-dp-cp-rank {usable['max_tokens_per_rank']} " in flags
    assert "--cp-comm-type p2p" in flags


def test_a2a_is_tried_at_the_sizes_its_heads_allow() -> None:
    data = swept("4096", "--ranks", "24", "--comm", "a2a")
    assert [item["cp_sizes"] for item in data["settings"]] == ["1,2,4,8"]
    assert data["recommended"] == 0
    assert data["recommended_for_megatron"] is None
    assert data["megatron_flags"][0].startswith("# no setting")


def test_a_sweep_without_communication() -> None:
    data = swept("2048", "--ranks", "12", "--cost", "attention-only")
    assert [(item["cp_sizes"], item["comm"]) for item in data["settings"]] == [
        ("pow2", None),
        ("divisors", None),
    ]


def test_the_sweep_as_text(tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    done = plan(*SWEEP, "512,2048,4096", "--comm", "p2p", "--json", str(path))
    assert done.code == 0
    assert path.exists()
    lines = done.out.splitlines()
    assert lines[0].split() == [
        *("tokens/rank", "CP", "sizes", "comm", "makespan", "ratio", "microbatches", "Megatron")
    ]
    assert sum(line.startswith("*") for line in lines) == 1
    assert any(line.startswith("impossible: 512 tokens per rank") for line in lines)
    assert any(line.startswith("recommended: ") for line in lines)
    assert "--dynamic-context-parallel \\" in lines


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("0",), "--max-tokens-per-rank: 0 is not between 1 and"),
        (("2048,x",), "--max-tokens-per-rank: '2048,x' is not a list of integers"),
        (("2048", "--comm", "udp"), "--comm: 'udp' is unknown"),
        (("2048", "--cp-sizes", "3"), "--cp-sizes: 3 does not divide"),
        (("2048", "--cost", "attention-only", "--comm", "p2p"), "--comm has no effect with"),
        (("128",), "sweep: no setting is possible"),
    ],
)
def test_a_sweep_that_is_refused(arguments: tuple[str, ...], said: str) -> None:
    assert said in refused(*SWEEP, *arguments)


def test_the_exchanging_ranks_concern_one_type_only() -> None:
    options = ("--cp-sizes", "pow2", "--inner-size", "2")
    found = plan(*SWEEP, "2048", *options, "--json", "-").json()
    assert all("metrics" in setting for setting in found["settings"])
    assert len(found["settings"]) == 4
    said = refused(*SWEEP, "2048", *options, "--comm", "p2p,a2a")
    assert "--inner-size needs --comm a2a+p2p" in said
