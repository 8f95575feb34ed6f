"""The text of the dynamic CP skill: in budget, consistent with its card, with working markers."""

from __future__ import annotations

import itertools
import json
import re
import sys
from types import ModuleType, SimpleNamespace

from checks.skills.shared import REPOSITORY, blocks, check_markers
from ringproof.logs.groups.expectation import Expectation
from ringproof.logs.groups.judge import read_groups
from ringproof.logs.groups.output import as_json
from ringproof.reference.topology.census_line import CensusLine, TrafficLine

SKILL = REPOSITORY / "skills" / "dynamic-context-parallel"


def test_description_leaves_the_neighbours_alone(text):
    description = re.search(r'^description: "([^\n]+)"$', text, re.MULTILINE)[1]
    assert len(description) <= 1024
    wanted, unwanted = description.split("Not for ")
    for name in ("Dynamic CP", "dynamic_context_parallel", "hybrid_context_parallel"):
        assert name in wanted
    for name in ("hierarchical CP", "Mamba", "CUDA graphs"):
        assert name in unwanted
        assert name not in wanted


def test_pitfalls_of_the_texts_are_those_of_the_card(text, card):
    """Those left out concern who reads upstream's scheduler; they are on the card's page."""
    known = {pitfall.id for pitfall in card.pitfalls}
    explained = (SKILL / "references" / "pitfalls.md").read_text(encoding="utf-8")
    shown = {
        line.split("`")[1]
        for line in (text + explained).splitlines()
        if line.startswith("| `") and line.split("`")[1] in known
    }
    assert len(known - shown) <= 10
    headed = itertools.chain(
        *(re.findall(r"`([a-z0-9-]+)`", line) for line in explained.splitlines() if line[:1] == "`")
    )
    assert set(headed) <= known


GROUP = "DYNAMIC_DP_CP_GROUP_4"
OLD_GROUP = "HYBRID_DP_CP_GROUP_2"
PRINTED = {
    "census-groups": CensusLine(0, 8, GROUP, "gloo", (0, 1, 2, 3), 0).format(),
    "nccl-groups": f"[PG ID 7 PG GUID 12({OLD_GROUP}) Rank 0] ProcessGroupNCCL initialized",
    "startup-warning": "UserWarning: Dynamic CP enabled: dp_size * context_parallel_size=8 will",
    "arguments-dynamic": "  dynamic_context_parallel ........................ True",
    "arguments-hybrid": "[default0]:  hybrid_context_parallel ......................... True",
    "histogram": "local_cp_size histogram: {1: 12, 2: 3, 4: 1}",
}
NEAR_MISSES = (
    CensusLine(0, 8, "DATA_PARALLEL_GROUP_WITH_CP", "gloo", tuple(range(8)), 0).format(),
    CensusLine(0, 8, "HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L0", "gloo", (0, 1), 0).format(),
    CensusLine(0, 8, f"{GROUP}_GLOO", "gloo", (0, 1, 2, 3), 0).format(),
    TrafficLine(0, 8, GROUP, (("send", 3),), 4096).format(),
    "[PG ID 7 PG GUID 12(CONTEXT_PARALLEL_GROUP) Rank 0] ProcessGroupNCCL initialized",
    "_DYNAMIC_DP_CP_GROUPS is not None",
    "Dynamic CP enabled: something else",
    "  dynamic_context_parallel ........................ False",
    "  min_dynamic_context_parallel_size ............... 1",
    "  model.dynamic_context_parallel ... True",
    "  hybrid_context_parallel ......................... False",
    "local_cp_size histogram: {}",
)


def test_each_marker_matches_its_line_and_nothing_near(card):
    check_markers(card, PRINTED, NEAR_MISSES)


def test_the_snippet_prints_its_marker(text, card, capsys, monkeypatch):
    """Upstream's function is a stand-in here; `test_dynamic_training.py` has the real one."""
    (snippet,) = blocks(text, "python")
    schedule = ModuleType("megatron.core.datasets.data_schedule")
    name = "get_batch_on_this_rank_for_sequence_packing"
    group = SimpleNamespace(group_desc=GROUP)

    def batch_of(size):
        return (*[None] * 5, SimpleNamespace(local_cp_size=size, cp_group=group), None)

    setattr(schedule, name, batch_of)
    datasets = ModuleType("megatron.core.datasets")
    datasets.data_schedule = schedule
    above = (ModuleType("megatron.core"), ModuleType("megatron"))
    for module in (schedule, datasets, *above):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(snippet, {})
    for size in (1, 4, 1, 2):
        assert len(getattr(schedule, name)(size)) == 7
    printed = capsys.readouterr().out.strip().splitlines()
    pattern = next(marker.pattern for marker in card.markers if marker.id == "histogram")
    assert all(re.match(pattern, line) for line in printed)
    assert printed[-1] == f"local_cp_size histogram: {{1: 2, 2: 1, 4: 1}} {GROUP}"


def report_of(folder, lines):
    log = folder / "log"
    log.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return as_json(read_groups([str(log)], Expectation()))


def test_the_log_report_lists_dynamic_groups(tmp_path):
    flat = CensusLine(0, 8, "CONTEXT_PARALLEL_GROUP", "nccl", (0, 1, 2, 3), 0).format()
    found = report_of(tmp_path, [flat, PRINTED["census-groups"]])
    sizes = {group["name"]: group["size"] for group in found["groups"]}
    assert sizes == {"CONTEXT_PARALLEL_GROUP": 4, GROUP: 4}
    assert found["verdict"] == "flat", "about static CP"
    assert [line for line in found["warnings"] if "dynamic CP groups are there" in line]
    without = report_of(tmp_path, [flat])
    assert not [line for line in without["warnings"] if "dynamic" in line]


SAME_CODE = (
    "mc-switch",
    "mc-create-groups",
    "mc-getter",
    "mc-scheduler",
    "mc-unpack",
    "mc-route",
    "mc-rope",
)


def fingerprints(anchor):
    lock = json.loads(
        (REPOSITORY / "cards" / SKILL.name / "anchors.lock").read_text(encoding="utf-8")
    )
    places = lock["anchors"][anchor]["places"]
    return [
        places[version]["fingerprint"]
        for version in ("megatron-core", "megatron-lm-r0.19", "megatron-lm-main")
    ]


def test_main_has_the_code_that_was_run():
    for anchor in SAME_CODE:
        assert len(set(fingerprints(anchor))) == 1, anchor
    assert len(set(fingerprints("mc-loop"))) == 2, "the loop was repaired"
