"""What types of CP communication and budgets of Dynamic CP cost, by upstream's own program."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from checks.rehearsal.test_full_size import DEV, DYNAMIC, request_of
from ringproof.cli.main import app
from ringproof.cli.plan_memory import memory_of
from ringproof.cli.plan_options import PlanOptions
from ringproof.rehearsal.fit.fitting import Fitting
from ringproof.rehearsal.fit.gpus import CONTEXT_BYTES
from ringproof.rehearsal.fit.vary import choices_as_json, combinations, vary, with_settings
from ringproof.rehearsal.fixtures import SessionServers

ROOT = Path(__file__).parents[2]

TOKENS, HIDDEN, RANKS, BYTES = 256, 128, 4, 2
QUERIES = TOKENS // RANKS * HIDDEN * BYTES
LEVELS = ("--hierarchical-context-parallel-sizes", "2 2")
OPTIONS = f"--context-parallel-size {RANKS} --num-query-groups 4 --cp-comm-type"


@pytest.mark.slow
def test_an_all_to_all_keeps_one_more_copy_of_the_queries(
    stage: SessionServers, tmp_path: Path
) -> None:
    """From two and four layers, so that what is there once does not count."""
    request = request_of(stage, tmp_path, f"{OPTIONS} p2p")

    def kept(fitting: Fitting, kind: str, *more: tuple[str, str]) -> int:
        """Bytes of the peak that each layer adds on the first rank."""
        low, high = (
            fitting.fit(
                fitting.prepare(
                    with_settings(
                        request.launch, (("--cp-comm-type", kind), ("--num-layers", depth), *more)
                    )
                )
            ).ranks[0].memory.peak
            for depth in ("2", "4")
        )  # fmt: skip
        return (high - low) // 2

    with Fitting(request, lambda *_: None) as fitting:
        ring = kept(fitting, "p2p")
        # One small tensor more, and torch's allocator hands out blocks of 512 bytes.
        assert kept(fitting, "all_gather") - ring in (0, 512)
        assert kept(fitting, "a2a") - ring == QUERIES
        assert kept(fitting, "a2a+p2p", LEVELS) - ring == QUERIES


BUDGETS = "max-seqlen-per-dp-cp-rank=128,192,256"


@pytest.mark.slow
def test_a_plan_says_of_each_budget_what_fit_measures(
    stage: SessionServers, tmp_path: Path
) -> None:
    """From the other two, of a small launch.

    Its batch is so large that every step has a microbatch that fills the budget. The measured
    differences are up to 28,160 bytes, by as much as the buffers of a batch are off the line.
    """
    request = request_of(stage, tmp_path, f"{DYNAMIC} --global-batch-size 32", DEV)
    choices = choices_as_json(vary(request, combinations([BUDGETS]), lambda *_: None))["choices"]
    assert len(choices) == 3
    for at, choice in enumerate(choices):
        others = {"choices": choices[:at] + choices[at + 1 :]}
        memory = memory_of(others, PlanOptions(memory_from="fit.json", ranks=4))
        (rank,) = choice["fit"]["ranks"]
        planned = memory.needed(rank["tokens"]) - CONTEXT_BYTES
        assert planned == pytest.approx(rank["peak_with_cublas"], abs=64 << 10)


@pytest.mark.slow
def test_the_commands_of_the_planner_run(
    stage: SessionServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the page has them, in a folder with nothing but the files of examples."""
    text = (ROOT / "docs/planner.md").read_text().partition("## Memory")[2]
    commands = text.split("```")[1].removeprefix("bash").replace("\\\n", " ").split("\n")
    measure, plan = (line.split()[1:] for line in commands if line)
    for name in ("train.sh", "lengths.txt"):
        shutil.copy(ROOT / "examples" / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    upstream = stage.upstream(DEV)
    measure[measure.index("--upstream") + 1] = str(upstream.megatron)
    found = CliRunner().invoke(app, [*measure, "--te", str(upstream.engine)])
    assert found.exit_code == 0, found.output
    assert "2 of 2 choices fit" in found.stdout
    planned = CliRunner().invoke(app, plan)
    assert planned.exit_code == 0, planned.output
    (line,) = (line for line in planned.stdout.split("\n") if line.startswith("memory "))
    assert "it fits on H100" in line
