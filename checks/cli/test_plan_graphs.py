"""``ringproof plan --graphs``: what graphs have to hold, and where it is said."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import pytest

from checks.planning.plan_run import BASIC, LENGTHS, plan, plan_json, refused
from ringproof.cli.plan_result import next_draws


def test_slots_of_a_pipeline() -> None:
    """This bank keeps what is in flight, pull request 5618 one for each sequence of the batch."""
    for options, slots in (
        ((), 1),
        (("--pp", "2"), 2),
        (("--pp", "4", "--vpp", "2"), 8),
        (("--pp", "64"), None),
    ):
        data = plan_json("--graphs", *options)["graphs"]
        assert data["slots"] == (slots or data["microbatches"])
        assert data["pairs_per_layer"] == 4 * data["slots"]
        assert data["pr5618_slots"] == (64 if options else 1)


def test_batches_are_draws_and_none_needs_more() -> None:
    first = f"{LENGTHS},seed=2"
    drawn = [first, *next_draws(first, 6)]
    assert drawn[5] == f"{LENGTHS},seed=7"
    each = [
        plan("--lengths", source, *BASIC[2:], "--graphs", "--json", "-").json()["graphs"]
        for source in drawn
    ]
    several = ("--graphs", "--batches", "6", "--json", "-")
    together = plan("--lengths", first, *BASIC[2:], *several).json()["graphs"]
    for name in ("thd_max_packed_sequences", "microbatches", "slots"):
        assert together[name] == max(one[name] for one in each)
    assert together["groups"] == {
        size: sum(one["groups"][size] for one in each) for size in together["groups"]
    }
    needed = {one["thd_max_packed_sequences"] for one in each}
    assert each[0]["thd_max_packed_sequences"] < max(needed), "one batch would not have been enough"


@pytest.mark.parametrize(
    ("source", "second"),
    [
        ("lognormal:mean=9,n=4", "lognormal:mean=9,n=4,seed=1"),
        ("lognormal:seed=7,mean=9,n=4", "lognormal:mean=9,n=4,seed=8"),
        ("lognormal:mean=9,seed=1e2,n=4", "lognormal:mean=9,n=4,seed=101"),
    ],
)
def test_the_seed_goes_on(source: str, second: str) -> None:
    assert list(next_draws(source, 2)) == [second]
    assert list(next_draws(source, 1)) == []


def test_a_size_that_no_sequence_takes_is_named() -> None:
    """It is captured, and a run that equals eager says nothing of it."""
    short = ("--lengths", "64,64,64,64,128,128", *BASIC[2:], "--graphs")
    groups = plan(*short, "--min-cp", "2", "--json", "-").json()["graphs"]["groups"]
    never = [size for size, count in groups.items() if not count]
    assert never
    assert f"never used, and captured: CP {', '.join(never)}" in plan(*short, "--min-cp", "2").out
    forced = plan(*short, "--cp-sizes", "2").out
    assert "graph sizes     1 captured; groups with sequences, CP 2: " in forced
    assert "never used" not in forced


def test_models_without_a_table_or_without_attention_in_each_layer() -> None:
    mla = plan_json("--graphs", "--model", "deepseek-v3")["graphs"]["static_input_bytes"]
    assert mla["rope_of_all_sizes"] == 0
    assert "RoPE" not in plan(*BASIC, "--graphs", "--model", "deepseek-v3").out
    assert "for 4 layers with attention" in plan(*BASIC, "--graphs", "--model", "nemotron-h-8b").out
    bare = plan_json("--graphs", "--cost", "attention-only")["graphs"]
    assert "static_input_bytes" not in bare


def test_the_text_says_it() -> None:
    data, out = plan_json("--graphs")["graphs"], plan(*BASIC, "--graphs").out
    entries, rows = data["thd_max_packed_sequences"], 2048
    for said in (
        f"graph capacity  --thd-max-packed-sequences {entries}: {entries - 1} sequences and a ",
        f" the fullest pack has {data['fullest_pack']}\n",
        f"graph rows      {rows:,} on each rank; tokens of CP 8: {8 * rows:,}, 4: {4 * rows:,}",
        "graph sizes     4 captured; groups with sequences, CP ",
        f"graph slots     1 for {data['microbatches']} microbatches, so 4 pairs",
        f"graph padding   {data['padding_fraction']:.1%} of the rows hold no token, ",
        "graph inputs    16.0 MiB per layer, slot and size, RoPE 15.0 MiB: 2.0 GiB for 32 layers",
    ):
        assert said in out
    several = plan(*BASIC, "--graphs", "--batches", "3", "--max-sequences", "31").out
    assert (
        "--thd-max-packed-sequences 32: 31 sequences and a dummy; the fullest pack of 3" in several
    )
    assert "graph" not in plan(*BASIC).out
    wide = plan(*BASIC, "--graphs", "--ranks", "1024").out
    assert "8: 16,384, …\n" in wide
    assert "never used, and captured: CP 1024, 512" in wide


def test_json_has_a_key_more_and_is_still_a_plan(tmp_path: Path) -> None:
    data = plan_json("--graphs", "--batches", "2")
    without = plan_json()
    assert set(data) - set(without) == {"graphs"}
    assert data["microbatches"] == without["microbatches"]
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    assert plan("validate", str(path)).code == 0


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("thd_max_packed_sequences", 2, "sequences and a dummy in 2 entries"),
        ("rows_per_rank", 64, "rows on a rank, graphs have 64"),
        ("rows_per_rank", 4096, "graphs.rows_per_rank: 4096, more than the budget 2048"),
        ("microbatches", 1, "graphs.microbatches: 1, but the plan has"),
        ("slots", 99, "graphs.slots: 99 for"),
        ("groups", {"1": 1}, "graphs.groups: CP sizes [1], but the plan has [1, 2, 4, 8]"),
    ],
)
def test_validate_finds_a_capacity_that_does_not_hold(
    name: str, value: Any, said: str, tmp_path: Path
) -> None:
    data = plan_json("--graphs")
    data["graphs"][name] = value
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    done = plan("validate", str(path))
    assert done.code == 1
    assert said in done.out


@pytest.mark.parametrize(
    "graphs", [[], {}, {"groups": {"x": 1}}, {"groups": {}, "rows_per_rank": True}, None]
)
def test_validate_refuses_what_is_no_capacity(graphs: Any, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({**plan_json(), "graphs": graphs}))
    assert refused("validate", str(path)).startswith("error: graphs")


def test_the_page_says_it() -> None:
    page = plan(*BASIC, "--graphs", "--html", "-").out
    assert "<h2>CUDA graphs</h2>" in page
    text = plan(*BASIC, "--graphs").out
    lines = [line[16:] for line in text.splitlines() if line.startswith("graph ")]
    assert len(lines) == 6
    assert all(f"<dd>{html.escape(line)}</dd>" in page for line in lines)
    assert "<summary>Flags of Megatron-LM pull request 5618</summary>" in page
    assert "--cuda-graph-dynamic-microbatches" in page
    without = plan(*BASIC, "--html", "-").out
    assert "CUDA graphs</h2>" not in without
    assert "<summary>Flags of Megatron-LM dev</summary>" in without


def flags(*options: str) -> tuple[list[str], str]:
    """Flags, and remarks."""
    done = plan(*BASIC, "--json", "-", "--megatron-flags", *options)
    assert done.code == 0, done.err
    lines = done.err.splitlines()
    given = [line.removesuffix(" \\") for line in lines if not line.startswith("#")]
    return given, "\n".join(line for line in lines if line.startswith("#"))


GRAPHS = ("--cuda-graph-impl transformer_engine", "--cuda-graph-dynamic-microbatches")
PADDED = "--pad-packed-seq-alignment max"


def test_flags_of_the_pull_request() -> None:
    given, remarks = flags("--graphs", "--target", "pr5618")
    entries = plan_json("--graphs")["graphs"]["thd_max_packed_sequences"]
    expected = (*GRAPHS, PADDED, f"--thd-max-packed-sequences {entries}", "--use-varlen-dataset")
    assert set(expected) <= set(given)
    assert "--sft" not in given
    assert "292388f6" in remarks
    assert "slots" not in remarks
    assert "64 slots at each of 4 sizes" in flags("--graphs", "--target", "pr5618", "--pp", "2")[1]
    capped, _ = flags("--graphs", "--target", "pr5618", "--max-sequences", "31")
    assert "--thd-max-packed-sequences 32" in capped
    eager, _ = flags("--target", "pr5618")
    assert "--cuda-graph-impl none" in eager
    assert PADDED not in eager


def test_a_budget_of_whole_chunks() -> None:
    odd = ("--lengths", LENGTHS, "--ranks", "8", "--max-tokens-per-rank", "2051")
    done = plan(*odd, "--graphs", "--target", "pr5618")
    assert "--max-seqlen-per-dp-cp-rank 2050 \\" in done.out
    assert "--max-seqlen-per-dp-cp-rank 2051 \\" in plan(*odd, "--megatron-flags").out


def test_lines_without_a_bank_get_no_graphs() -> None:
    dev, said = flags("--graphs")
    assert "--cuda-graph-impl none" in dev
    assert not set(GRAPHS) & set(dev)
    assert PADDED in dev
    assert "wrong there: CUDA graphs (see --target pr5618)" in said
    main, said = flags("--graphs", "--target", "main")
    assert "--cuda-graph-impl none" in main
    assert PADDED not in main
    assert "not there: CUDA graphs with packed sequences" in said
    assert "graphs" not in flags()[1]


def test_a_sweep_compares_capacities() -> None:
    batch = ("--lengths", LENGTHS, "--ranks", "8", "--max-tokens-per-rank", "1024,2048")
    swept = plan("sweep", *batch, "--cp-sizes", "pow2", "--comm", "p2p", "--graphs", "--json", "-")
    settings = swept.json()["settings"]
    assert [item["graphs"]["rows_per_rank"] for item in settings] == [1024, 2048]
    alone = plan_json("--graphs")["graphs"]
    assert settings[1]["graphs"]["padding_fraction"] == alone["padding_fraction"]
    out = plan("sweep", *batch, "--cp-sizes", "pow2", "--comm", "p2p", "--graphs").out
    assert "graph sequences  graph rows" in out
    assert "without the rows that a capacity adds" in out
    bare = plan("sweep", *batch, "--cp-sizes", "pow2", "--comm", "p2p")
    assert "graph rows" not in bare.out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--batches", "2"), "--batches needs --graphs"),
        (("--graphs", "--batches", "0"), "--batches: 0 is not between 1 and 1,000"),
        (("--graphs", "--batches", "1001"), "--batches: 1001 is not between 1 and 1,000"),
        (("--graphs", "--batches", "2", "--lengths", "8,9"), "--batches: '8,9' is one batch"),
        (
            ("--graphs", "--batches", "5", "--lengths", "lognormal:mean=4096,sigma=1,n=64,seed=5"),
            "tokens is longer than the 16,384",
        ),
    ],
)
def test_slips_are_one_line(options: tuple[str, ...], said: str) -> None:
    assert said in refused(*BASIC, *options)
