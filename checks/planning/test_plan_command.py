"""``ringproof plan`` and ``validate``: schema, text, flags, refusals."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from checks.planning.plan_run import BASIC, LENGTHS, plan, plan_json, refused
from ringproof.cli.lengths import read_lengths
from ringproof.reference.planning.hardware import A100
from ringproof.reference.planning.shapes import QWEN3_30B_A3B
from ringproof.reference.planning.validate import violations

METRICS = {
    *("unit", "makespan", "lower_bound", "ratio", "padding_fraction", "cp_histogram"),
    "planning_seconds",
}


def test_the_plan_has_the_documented_schema() -> None:
    data = plan_json()
    assert set(data) == {
        *("version", "ranks", "max_tokens_per_rank", "cp_sizes", "lengths", "microbatches"),
        "metrics",
    }
    assert data["version"] == 1
    assert data["ranks"] == 8
    assert data["max_tokens_per_rank"] == 2048
    assert data["cp_sizes"] == [1, 2, 4, 8]
    assert data["lengths"] == list(read_lengths(LENGTHS).values)
    for microbatch in data["microbatches"]:
        assert set(microbatch) == {"groups"}
        for group in microbatch["groups"]:
            assert set(group) - {"dummy"} == {"ranks", "sequences"}
    metrics = data["metrics"]
    assert set(metrics) == METRICS
    assert metrics["unit"] == "seconds"
    assert metrics["ratio"] == pytest.approx(metrics["makespan"] / metrics["lower_bound"])
    assert sum(metrics["cp_histogram"].values()) == 64
    assert set(metrics["cp_histogram"]) <= {"1", "2", "4", "8"}
    assert 0 <= metrics["padding_fraction"] < 1
    assert metrics["planning_seconds"] > 0
    assert violations(data) == []


def test_standard_output_has_only_json_even_with_flags(tmp_path: Path) -> None:
    done = plan(*BASIC, "--json", "-", "--html", str(tmp_path / "p.html"), "--megatron-flags")
    assert done.code == 0
    assert done.json()["version"] == 1
    assert "--dynamic-context-parallel" in done.err
    assert (tmp_path / "p.html").read_text().startswith("<!doctype html>")


def test_options_reach_the_planner() -> None:
    assert plan_json("--cp-sizes", "2,4")["cp_sizes"] == [2, 4]
    assert plan_json("--min-cp", "4")["cp_sizes"] == [4, 8]
    assert plan_json("--ranks", "12", "--cp-sizes", "divisors")["cp_sizes"] == [1, 2, 3, 4, 6, 12]
    assert len(plan_json("--microbatch-multiple", "7")["microbatches"]) % 7 == 0
    assert len(plan_json("--pp", "4", "--vpp", "2")["microbatches"]) % 4 == 0
    capacity = plan_json("--max-sequences", "3")
    groups = [group for item in capacity["microbatches"] for group in item["groups"]]
    assert max(len(group["sequences"]) for group in groups) == 3
    attention = plan_json("--cost", "attention-only")["metrics"]
    assert attention["unit"] == "squared tokens per rank"
    assert (
        plan_json("--hardware", "a100")["metrics"]["makespan"] > plan_json()["metrics"]["makespan"]
    )
    assert plan_json("--objective", "async")["metrics"]["makespan"] > 0
    packed = plan_json("--tp", "4")
    assert violations(packed, rank_multiple=8) == []


def test_lengths_may_come_from_standard_input() -> None:
    done = plan("--lengths", "-", *BASIC[2:], "--json", "-", data="1000\n2000\n")
    assert done.json()["lengths"] == [1000, 2000]


def test_the_text_says_what_an_engineer_asks() -> None:
    out = plan(*BASIC).out
    data = plan_json()
    makespan = f"{1e3 * data['metrics']['makespan']:.4g} ms"
    for said in (
        f"microbatches    {len(data['microbatches'])}",
        f"makespan        {makespan} (sync)",
        f"the plan is within {data['metrics']['ratio']:.4f} of it",
        "CP sizes        1: ",
        f"padding         {data['metrics']['padding_fraction']:.2%} of",
        "planned in",
    ):
        assert said in out
    for baseline, dealt in (
        ("static", "packed in the order given, as Megatron-LM does"),
        ("sorted", "packed longest first, first fit"),
        ("padded", "each padded to the longest"),
    ):
        gain = re.search(rf"against {baseline}\s+([\d.]+) times as fast \(CP 4, {dealt}: ", out)
        assert gain is not None
        assert float(gain[1]) >= 1
    best = re.search(r"against best\s+([\d.]+) times as fast \(CP \d+, packed", out)
    assert best is not None
    assert 1 <= float(best[1]) <= float(gain[1])
    assert "warning" not in out
    assert sum(line.endswith("% busy") for line in out.splitlines()) == min(
        6, len(data["microbatches"])
    )
    assert "CP 8" in plan(*BASIC, "--static-cp", "8").out


def test_a_batch_that_is_too_small_for_its_ranks_is_named(tmp_path: Path) -> None:
    lengths = tmp_path / "lengths.txt"
    lengths.write_text("\n".join(map(str, range(1, 65))))
    small = ("--lengths", str(lengths), "--max-tokens-per-rank", "64")
    found = plan(*small, "--ranks", "16384")
    assert "64 sequences are few for 16,384 ranks" in " ".join(found.out.split())
    assert "few for" not in plan(*small, "--ranks", "2").out


def test_a_plan_is_never_slower_than_its_baselines() -> None:
    out = plan("--lengths", "4096,4096,4096,4096", *BASIC[2:]).out
    gains = [float(found) for found in re.findall(r"([\d.]+) times as fast", out)]
    assert len(gains) == 4
    assert min(gains) >= 0.995


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--objective", "async", "--pp", "2"), "--objective: ranks cannot run ahead"),
        (("--objective", "fast"), "--objective: 'fast' is unknown"),
        (("--min-cp", "16"), "--min-cp: 16 leaves no group size; choose at most 8"),
        (("--cp-sizes", "3"), "--cp-sizes: 3 does not divide the domain of 8 ranks"),
        (("--cp-sizes", "some"), "--cp-sizes: 'some' is not a list of group sizes"),
        (("--cost", "attention-only", "--hardware", "h200"), "--hardware has no effect with"),
        (("--cost", "attention-only", "--model", "llama3-70b"), "--model has no effect with"),
        (("--cost", "attention-only", "--comm", "a2a"), "--comm has no effect with"),
        (("--cost", "flops"), "--cost: 'flops' is unknown"),
        (("--vpp", "2"), "--vpp: virtual stages need a pipeline"),
        (("--pp", "4", "--vpp", "2", "--microbatch-multiple", "6"), "--microbatch-multiple: 6 is "),
        (("--pp", "0"), "--pp: 0 is not between 1 and"),
        (("--pp", "1000000000"), "--pp: 1000000000 is not between 1 and"),
        (("--tp", "3"), "--tp: 3 does not divide the 32 heads"),
        (("--tp", "0"), "--tp: 0 is not between 1"),
        (("--static-cp", "3"), "--static-cp: 3 is not a group size of the domain"),
        (("--static-cp", "1"), "--static-cp: groups of 1 ranks cannot hold the longest"),
        (("--ranks", "0"), "--ranks: 0 is not between 1"),
        (("--ranks", "1000000000000000000"), "is not between 1 and 1,048,576"),
        (("--max-tokens-per-rank", "1"), "--max-tokens-per-rank: 1 is less than 2, to"),
        (("--max-tokens-per-rank", "1" + 30 * "0"), "0 is not between 1 and"),
        (("--max-sequences", "1" + 30 * "0"), "0 is not between 1 and"),
        (("--pp", "1024", "--vpp", "128"), "--pp, --vpp, --microbatch-multiple: 1024 x 128 x 1024"),
        (("--pp", "64", "--microbatch-multiple", "65536"), "are too many to simulate"),
        (("--comm", "a2a+p2p", "--inner-size", "0"), "--inner-size: 0 is less than 1"),
        (("--comm", "a2a+p2p", "--inner-size", "3"), "--inner-size: 3 does not divide the 8 ranks"),
        (("--max-sequences", "0"), "--max-sequences: 0 is not between 1 and 20,000,000"),
        (("--comm", "udp"), "--comm: 'udp' is unknown; use one of p2p, "),
        (("--comm", "p2p", "--inner-size", "2"), "--inner-size: 2 has no meaning for p2p"),
        (("--comm", "a2a", "--ranks", "16"), "--comm: 16 ranks cannot share 8 key/value heads"),
        (("--model", "gpt-9"), "--model: 'gpt-9' is unknown"),
        (("--hardware", "tpu"), "--hardware: 'tpu' is unknown"),
        (("--hardware", "missing.json"), "--hardware: 'missing.json' cannot be read: No such file"),
        (("--lengths", "100,0"), "--lengths[1]: the length 0 is less than 1"),
        (("--lengths", "100,16385"), "--lengths[1]: the sequence of 16,385 tokens is longer"),
        (("--lengths", "lognormal:mean=9,n=1000000000"), "1,000,000,000 lengths are more than"),
        (("--json", "-", "--html", "-"), "is where --json writes"),
        (("--json", "/missing/plan.json"), "/plan.json' cannot be written"),
        (("validate", "plan.json"), "put --lengths after the subcommand validate"),
    ],
)
def test_contradictions_and_slips_are_one_line(options: tuple[str, ...], said: str) -> None:
    assert said in refused(*BASIC, *options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (BASIC[2:], "--lengths is missing"),
        ((*BASIC[:2], *BASIC[4:]), "--ranks is missing"),
        (BASIC[:4], "--max-tokens-per-rank is missing"),
    ],
)
def test_what_is_needed_is_asked_for(options: tuple[str, ...], said: str) -> None:
    assert said in refused(*options)


def test_a_long_sequence_is_refused_with_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text("# two\n512\n16385\n")
    said = refused("--lengths", str(path), *BASIC[2:])
    assert f"{path}:3: the sequence of 16,385 tokens is longer" in said


def test_help_has_an_example() -> None:
    for arguments in ((), ("--help",)):
        assert "Example: ringproof plan" in plan(*arguments).out
    for name in ("validate", "sweep"):
        assert f"Example: ringproof plan {name}" in " ".join(plan(name, "--help").out.split())
    text = " ".join(plan("--help").out.split())
    assert "Make the number of microbatches a multiple of N." in text


@pytest.mark.parametrize(("option", "preset"), [("--hardware", A100), ("--model", QWEN3_30B_A3B)])
def test_a_preset_of_ones_own_is_a_file(tmp_path: Path, option: str, preset: Any) -> None:
    path = tmp_path / "own.json"
    path.write_text(json.dumps(vars(preset)))
    same = plan_json(option, preset.name)["metrics"]
    found = plan_json(option, str(path))["metrics"]
    assert found["makespan"] == same["makespan"] != plan_json()["metrics"]["makespan"]
    path.write_text("[]")
    assert f"{option}: is not a JSON object" in refused(*BASIC, option, str(path))


WITHOUT_NUMPY = """
import sys
sys.modules["numpy"] = None
from ringproof.cli.main import main
sys.argv = ["ringproof", *ARGUMENTS]
main()
"""


def test_planning_needs_no_numpy() -> None:
    """It takes longer, and the plan is the same."""
    program = WITHOUT_NUMPY.replace("ARGUMENTS", repr(["plan", *BASIC, "--json", "-"]))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    plain, fast = json.loads(done.stdout), plan_json()
    for one in (plain, fast):
        one["metrics"].pop("planning_seconds")
    assert plain == fast


def test_a_measure_without_a_price_for_communication_is_warned_of() -> None:
    out = plan(*BASIC, "--cost", "attention-only").out
    assert "no plan is faster than one group of all 8 ranks" in out
    best = re.search(r"against best\s+([\d.]+) times as fast \(CP 8, ", out)
    assert best is not None
    assert float(best[1]) == 1.0, "and the plan is that fast"
    page = plan(*BASIC, "--cost", "attention-only", "--html", "-").out
    assert "no price for communication" in page


def test_the_reduction_of_gradients_is_said() -> None:
    """It is the same for every plan, so it makes every gain smaller."""
    out = plan(*BASIC).out
    gain = re.search(r"against static +([\d.]+) times", out)
    reduced = re.search(r"gradients .* then ([\d.]+) against static", out)
    assert gain and reduced
    assert 1 < float(reduced[1]) < float(gain[1])
    assert "gradients" not in plan(*BASIC, "--cost", "attention-only").out


def test_json_and_html_are_one_file_however_it_is_spelled(tmp_path: Path) -> None:
    one, other = str(tmp_path / "x"), f"{tmp_path}/./x"
    assert "is where --json writes" in refused(*BASIC, "--json", one, "--html", other)


def test_an_unknown_target_is_refused_before_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringproof.cli.plan_result.plan_result", None)
    assert "--target: 'r0.1' is unknown" in refused(*BASIC, "--target", "r0.1")
