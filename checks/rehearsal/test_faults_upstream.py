"""Upstream's own defects, as docs/upstream-defects.md describes them; a mended one fails here."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from checks.faults.defects import look, patched
from checks.faults.programs import DEFECTS
from checks.skills.shared import REPOSITORY
from ringproof.errors import InputError
from ringproof.rehearsal.conform.cases import CASES as CONFORMED
from ringproof.rehearsal.conform.matrix import training
from ringproof.rehearsal.fixtures import SessionServers
from ringproof.rehearsal.locate.locating import locate
from ringproof.rehearsal.protocol.program import Program, Upstream
from ringproof.rehearsal.runs.outcome import Outcome

CASES = "checks.rehearsal.fault_cases"
PLANS = "checks.skills.dynamic_cases:plans"
STILL = "StillPlanning"
DEV = "NVIDIA/Megatron-LM@dev"
PATCHES = REPOSITORY / "docs" / "patches"
OTHERS = ("fill-loop", "levels-outlive-their-world", "dynamic-mla-rotary")
"""Defects that no loss and no error of a training shows."""


LEVELS = pytest.mark.parametrize("name", ["levels-outlive-their-world"])
ROTARY = pytest.mark.parametrize("name", ["dynamic-mla-rotary"])
LOOP = pytest.mark.parametrize("name", ["fill-loop"])


@pytest.mark.slow
@LEVELS
def test_levels_stay(stage: SessionServers, name: str) -> None:
    found = stage.call(f"{CASES}:destroyed_groups", 4)
    assert {entry["after"] for entry in found} == {True}
    assert {entry["plain_group_kept"] for entry in found} == {False}  # negative control


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_defect(stage: SessionServers, defect: Any) -> None:
    found = look(stage.run, stage.upstream(DEV), defect)
    assert found.shown, found.said


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_patch_cures(stage: SessionServers, defect: Any, tmp_path: Path) -> None:
    """The same program on the changed checkout trains or agrees, or ends with one clear line."""
    change = PATCHES / f"{defect.patch or defect.name}.patch"
    found = look(stage.run, patched(stage.upstream(DEV), change, tmp_path / "dev"), defect)
    assert not found.shown
    assert defect.cured in found.said
    if not defect.cured:
        assert found.said.startswith(("trains for 5 steps", "gradient norms", "a2a")), found.said


@pytest.mark.slow
@LEVELS
def test_a_patch_takes_the_levels_away(stage: SessionServers, tmp_path: Path, name: str) -> None:
    change = PATCHES / f"{name}.patch"
    upstream = patched(stage.upstream(DEV), change, tmp_path / "dev")
    found = stage.call(f"{CASES}:destroyed_groups", 4, upstream=upstream)
    assert {entry["after"] for entry in found} == {False}


@pytest.mark.slow
@pytest.mark.timeout(300)
@ROTARY
@pytest.mark.parametrize("changed", [False, True])
def test_angles_of_latent_attention_are_those_of_positions(
    stage: SessionServers, tmp_path: Path, name: str, changed: bool
) -> None:
    """Losses agree, and the query of the first layer does not, nor with the patch anything."""
    upstream = stage.upstream(DEV)
    if changed:
        upstream = patched(upstream, PATCHES / f"{name}.patch", tmp_path / "dev")
    case = next(one for one in CONFORMED if one.id == "dynamic-cp-mla")
    pair = [
        training(upstream, case, "pretrain_gpt.py", 1, tmp_path, reference=reference)
        for reference in (False, True)
    ]

    def run(program: Program, folder: Path) -> Outcome:
        return stage.run(program, folder=folder)

    found = locate(run, pair[0], pair[1], 1, tmp_path / "trace")
    assert (found.culprit is None) is changed, found.reason
    if found.culprit is not None:
        assert found.culprit.module == "decoder.layers.0.self_attention"
        assert found.culprit.tensor.startswith("input query, ") and found.culprit.error > 0.5


@pytest.mark.slow
@LOOP
def test_planning_does_not_end_and_does_with_a_patch(
    stage: SessionServers, tmp_path: Path, name: str
) -> None:
    """Batches on 6, 12 and 24 ranks end with a message; the others end as before."""
    dev = stage.upstream(DEV)
    upstream = patched(dev, PATCHES / f"{name}.patch", tmp_path / "dev")
    before, after = (stage.call(PLANS, 1, upstream=one)[0]["errors"] for one in (dev, upstream))
    said = [error for errors in after.values() for error in errors]
    assert not any(error.startswith(STILL) for error in said)
    changed = {
        domain: {new for old, new in zip(errors, after[domain], strict=True) if old != new}
        for domain, errors in before.items()
    }
    assert [changed[domain] for domain in ("4", "8", "16")] == [set(), set(), set()]
    message = "ranks cannot be filled by doubling CP sizes; use a power of two"
    for domain in ("6", "12", "24"):
        assert changed[domain] == {f"ValueError: the {domain} DPxCP {message}"}


@pytest.mark.parametrize("patch", sorted(PATCHES.glob("*.patch")), ids=lambda patch: patch.stem)
def test_a_patch_is_refused_where_its_file_differs(tmp_path: Path, patch: Path) -> None:
    """Without context lines git would put it anywhere."""
    (path,) = re.findall(r"^diff --git a/(\S+)", patch.read_text(), re.MULTILINE)
    file = tmp_path / "there" / path
    file.parent.mkdir(parents=True)
    file.write_text("\n" * 9999)
    upstream = Upstream(tmp_path / "there", "another", tmp_path, "none", None)
    with pytest.raises(InputError, match=f"was made for another {path}"):
        patched(upstream, patch, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_the_table_of_the_page_is_the_record() -> None:
    page = (REPOSITORY / "docs" / "upstream-defects.md").read_text(encoding="utf-8")
    record = REPOSITORY / "benchmarks" / "rehearsal" / "results" / "defects.json"
    commits = json.loads(record.read_text(encoding="utf-8"))
    seen = {
        defect.name: [
            one["seen"] for row in commits for one in row["defects"] if one["name"] == defect.name
        ]
        for defect in DEFECTS
    }
    for name, shown in seen.items():
        (row,) = (line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
        cells = [cell.strip() for cell in row.split("|")[3:7]]
        assert [cell == "yes" for cell in cells] == shown, name


def test_each_name_of_the_table_selects_tests() -> None:
    page = (REPOSITORY / "docs" / "upstream-defects.md").read_text(encoding="utf-8")
    names = re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE)
    known = {defect.name for defect in DEFECTS} | set(OTHERS)
    assert set(names) == known


def test_every_patch_belongs_to_a_defect() -> None:
    named = {defect.patch or defect.name for defect in DEFECTS}
    named |= {*OTHERS, "provider-sizes"}
    assert {path.stem for path in PATCHES.glob("*.patch")} == named
