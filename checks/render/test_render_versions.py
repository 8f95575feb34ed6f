"""The version matrix and the permalinks: filled from the lock, and from nothing else."""

from __future__ import annotations

import pytest

from checks.render.miniature_skill import CARD, MAIN, RELEASED, block, changed, lock_of
from checks.render.test_render_documents import FILE, rendered
from ringproof.anchors.lock import Lock
from ringproof.cards.card import Card, PackageUpstream, RepositoryUpstream
from ringproof.render.kinds import short_symbol
from ringproof.render.render import render_document
from ringproof.render.versions import label


def lines(text: str) -> list[str]:
    return rendered(text).content.decode().split("\n")


def test_matrix_has_a_table_per_repository_and_a_column_per_version() -> None:
    assert lines(block("version-matrix"))[2:-3] == [
        "| NVIDIA/Megatron-LM | 0.16.1 | main bbbbbbbb |",
        "|---|---|---|",
        "| the switch | `hybrid_switch` | `hybrid_switch` †, `dynamic_switch` |",
        "",
        "| te | 2.20.2 |",
        "|---|---|",
        "| attention | `Attention.forward` |",
        "",
        "† The name is there, but not all that its anchor expects in it: that version does it "
        "differently.",
    ]


def without_switch(line: str, status: str, *upstreams: str) -> list[str]:
    """The lines of a block by a lock in which some upstreams lack the switch."""
    data = lock_of(CARD).model_dump(mode="json")
    absent = {"status": status, "path": "x.py", "missing": 0}
    data["anchors"]["switch"]["places"] |= dict.fromkeys(upstreams, absent)
    card, lock = Card.model_validate(dict(CARD)), Lock.model_validate(data)
    return render_document(FILE, block(line).encode(), card, lock).content.decode().split("\n")


def test_matrix_follows_the_lock_alone() -> None:
    every = ("core", "release", "main")
    made = without_switch("version-matrix only=switch", "missing symbol", *every)
    assert "| the switch | - | - |" in made
    assert not any("| te |" in line or "†" in line for line in made)


def test_a_name_in_the_wheel_or_in_its_commit_is_in_the_version() -> None:
    made = without_switch("version-matrix at=core", "missing file", "core")
    assert "| the switch | `hybrid_switch` |" in made


def test_permalinks_come_from_commits() -> None:
    row = next(line for line in lines(block("anchors style=links")) if "`switch`" in line)
    base = "https://github.com/NVIDIA/Megatron-LM/blob"
    assert f"[0.16.1]({base}/{RELEASED}/megatron/config.py#L3-L5)" in row
    assert f"[main bbbbbbbb]({base}/{MAIN}/megatron/config.py#L3-L5)" in row
    wheel = next(line for line in lines(block("anchors style=links")) if "`attention`" in line)
    assert wheel.endswith("| 2.20.2 |"), "a wheel has no page"
    at_main = next(line for line in lines(block("anchors style=links at=main")) if "switch" in line)
    assert RELEASED not in at_main
    assert MAIN in at_main
    short = next(line for line in lines(block("anchors style=lines")) if "`switch`" in line)
    assert short.endswith("| 0.16.1 L3-L5, main bbbbbbbb L3-L5 |")


def test_files_are_rows_and_what_stands_above_is_not_repeated() -> None:
    data = changed((("anchors", 1, "upstream"), "core"))
    data["anchors"].append({**data["anchors"][1], "id": "far", "path": "megatron/other.py"})
    text = rendered(block("anchors style=files"), data).content.decode()
    assert text.split("\n")[2:7] == [
        "| where | path | symbol |",
        "|---|---|---|",
        "| megatron-core 0.16.1 | `megatron/config.py` "
        "| `Config.hybrid_switch`, `Config.dynamic_switch` |",
        "|  | `megatron/other.py` | `Config.dynamic_switch` |",
        "| transformer-engine 2.20.2 | `te/attention.py` | `Attention.forward` |",
    ]


@pytest.mark.parametrize(
    ("ref", "shown"),
    [
        ("main", "main bbbbbbbb"),
        ("dev", "dev bbbbbbbb"),
        ("pull-request/5618", "PR 5618"),
        ("pull/12/head", "PR 12"),
        ("core_v0.16.1", "0.16.1"),
        ("core_r0.19.0", "r0.19.0"),
        ("v0.3.1", "0.3.1"),
        ("release_v2.20", "2.20"),
        ("feature/cp-2", "feature/cp-2 bbbbbbbb"),
    ],
)
def test_headings_are_readable(ref: str, shown: str) -> None:
    assert label(RepositoryUpstream(repo="NVIDIA/x", ref=ref, commit=MAIN)) == shown
    named = RepositoryUpstream(repo="NVIDIA/x", ref=ref, commit=MAIN, label="r0.19")
    assert label(named) == "r0.19"
    assert label(PackageUpstream(package="x", version="1.2")) == "1.2"


@pytest.mark.parametrize(
    ("symbol", "shown"),
    [
        ("Config.cp_comm_type", "cp_comm_type"),
        ("Config._validate_cp_type", "_validate_cp_type"),
        ("Config.__post_init__", "Config.__post_init__"),
        ("Attention.forward", "Attention.forward"),
        ("Groups.hcp", "Groups.hcp"),
        ("outer.inner_name#2", "inner_name#2"),
        ("create_groups", "create_groups"),
        ("--cp-comm-type", "--cp-comm-type"),
        ("space::partition_kernel", "partition_kernel"),
    ],
)
def test_names_are_short_where_they_say_enough(symbol: str, shown: str) -> None:
    assert short_symbol(symbol) == shown
