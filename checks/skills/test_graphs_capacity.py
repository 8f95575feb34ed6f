"""The capacity help of the graph bank skill, on plans of this planner."""

from __future__ import annotations

import json
import re

import pytest

from checks.planning.plan_run import BASIC, plan
from checks.skills.test_graphs_arithmetic import REFERENCE
from ringproof.errors import InputError
from ringproof.reference.packing.capacity import to_capacity
from ringproof.reference.packing.sequences import Capacity, pack

BUDGET = 2048


def snippet():
    fences = re.findall(r"```python\n(.*?)```", REFERENCE.read_text(encoding="utf-8"), re.DOTALL)
    return next(fence for fence in fences if "thd_max_packed_sequences" in fence)


def needs(tmp_path, monkeypatch, *options):
    """The plan, and what the snippet reads from it."""
    monkeypatch.chdir(tmp_path)
    assert plan(*BASIC, *options, "--json", "plan.json").code == 0
    names = {}
    exec(compile(snippet(), "capacity.md", "exec"), names)
    return json.loads((tmp_path / "plan.json").read_text()), names["need"]


def packs_of(document):
    for microbatch in document["microbatches"]:
        for group in microbatch["groups"]:
            size = len(group["ranks"])
            lengths = [document["lengths"][index] for index in group["sequences"]]
            yield size, pack(lengths, multiple=2 * size if size > 1 else 1)


def test_every_pack_of_a_plan_fits_the_capacity_that_it_gives(tmp_path, monkeypatch):
    document, need = needs(tmp_path, monkeypatch)
    entries = need["thd_max_packed_sequences"]
    packs = list(packs_of(document))
    for size, packed in packs:
        full = to_capacity(packed, Capacity(rows=BUDGET * size, entries=entries))
        assert full.rows == BUDGET * size
    size, most = max(packs, key=lambda one: one[1].sequences)
    assert most.sequences == entries - 1
    assert most.rows < BUDGET * size, "it has a tail, so the dummy takes an entry"
    with pytest.raises(InputError, match=r"capacity.entries: .* and a dummy"):
        to_capacity(most, Capacity(rows=BUDGET * size, entries=entries - 1))
    assert need["microbatches"] == len(document["microbatches"]) > 1
    assert need["CP sizes in use"] == sorted({size for size, _ in packs})


def test_a_cap_gives_the_flag_and_costs_microbatches(tmp_path, monkeypatch):
    _, free = needs(tmp_path, monkeypatch)
    _, capped = needs(tmp_path, monkeypatch, "--max-sequences", "3")
    assert capped["thd_max_packed_sequences"] == 3 + 1 < free["thd_max_packed_sequences"]
    assert capped["microbatches"] > free["microbatches"]
    said = plan(*BASIC, "--max-sequences", "3", "--megatron-flags").out
    assert "--thd-max-packed-sequences 4" in said
