"""``ringproof smoke megatron`` with upstream's own program, from torchrun to the verdict."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

from ringproof.cards import Card, load_card
from ringproof.cli.main import app
from ringproof.rehearsal.fixtures import SessionServers
from ringproof.rehearsal.smoke.launcher import failure

CARDS = Path(__file__).resolve().parents[1] / "cards"
RANKS = 4
#: Upstream of each feature: Megatron-LM and Transformer Engine by their names in the skill's card.
UPSTREAMS = {
    "hcp": ("hierarchical-context-parallel", "megatron-lm-main", ""),
    "dynamic-cp": ("dynamic-context-parallel", "megatron-lm-dev", ""),
    "graphs": ("dynamic-cp-cuda-graphs", "megatron-lm-pr6479", "transformer-engine-pr3353"),
}


def named(card: Card, name: str) -> str:
    upstream = card.upstreams[name]
    return f"{upstream.repo}@{upstream.commit}"


def smoke(*words: str) -> Result:
    return CliRunner().invoke(app, ["smoke", "megatron", "--ranks-per-node", str(RANKS), *words])


def compared(*traces: Path) -> dict[str, Any]:
    """What ``ringproof trace compare`` says of two traces."""
    done = CliRunner().invoke(app, ["trace", "compare", *map(str, traces), "--json", "-"])
    found: dict[str, Any] = json.loads(done.output[: done.output.rindex("}") + 1])
    assert done.exit_code == (found["culprit"] is not None), done.output
    return found


def passed(stage: SessionServers, folder: Path, feature: str, *more: str) -> tuple[str, ...]:
    """Run a feature, which passes, but not with exchanged logs; return the words of the command."""
    skill, megatron, engine = UPSTREAMS[feature]
    card = load_card(CARDS / skill / "card.yaml")
    specs = [named(card, name) for name in (megatron, engine) if name]
    upstream = stage.upstream(*specs)
    out = folder / "logs"
    given = ("--upstream", str(upstream.megatron), "--te", str(upstream.engine), "--out", str(out))
    words = (*given, "--feature", feature, "--device", "cpu", "--steps", "4")
    done = smoke(*words, *more, "--json", str(folder / "found.json"))
    assert done.exit_code == 0, done.output[-3000:]
    found = json.loads((folder / "found.json").read_text())
    assert [one["as_expected"] for one in found["programs"]] == [True, True]
    assert {len(one["on"]) for one in found["losses"]} == {4}
    (out / "on").rename(out / "other")
    (out / "off").rename(out / "on")
    (out / "other").rename(out / "off")
    done = smoke(*words, "--judge")
    assert done.exit_code == 1 and "problem: feature on: " in done.output
    return words


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_feature_passes_without_gpus(stage: SessionServers, tmp_path: Path) -> None:
    passed(stage, tmp_path, "dynamic-cp")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_graphs_pass_and_their_traces_agree(stage: SessionServers, tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    passed(stage, tmp_path, "graphs", "--trace", str(traces))
    alike = compared(traces / "on", traces / "off")
    assert alike["culprit"] is None and alike["compared"] > 500 and not alike["others"]
    assert alike["a"]["steps"] == [3, 4]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_feature_passes_and_its_traces_name_a_defect(
    stage: SessionServers, tmp_path: Path
) -> None:
    """The defect is in a program with the code for GPUs, around which are stand-ins."""
    traces = tmp_path / "traces"
    words = passed(stage, tmp_path, "hcp", "--trace", str(traces))
    alike = compared(traces / "on", traces / "off")
    assert alike["culprit"] is None and alike["compared"] > 1000 and not alike["others"]
    assert alike["a"]["steps"] == [1, 2]

    printed = smoke(*words, "--trace", str(tmp_path / "planted"), "--dry-run")
    line = shlex.split(printed.output.splitlines()[0])  # of the program with the feature
    engine = line.index("--engine")
    place = line.pop(engine + 1)
    del line[engine]
    at = line.index("ringproof.rehearsal.rank.member")
    line[at : at + 1] = ["smoke.gpu_rank", place, "last_layer_scaled"]
    found = {**os.environ, "PYTHONPATH": str(CARDS.parent), "TMPDIR": str(tmp_path)}
    ran = subprocess.run(["env", *line], env=found, cwd=tmp_path, check=False, timeout=600)
    assert ran.returncode == 0, failure(tmp_path / "logs" / "on")
    wrong = compared(tmp_path / "planted" / "on", traces / "off")
    one = wrong["culprit"]
    assert (one["phase"], one["step"], one["ranks"]) == ("forward", 1, list(range(RANKS)))
    assert one["module"] == "decoder.layers.1.self_attention.core_attention"
    assert "1.001" in one["factor"] and wrong["others"] == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("feature", ["hcp", "dynamic-cp"])
def test_a_feature_passes_on_gpus(stage: SessionServers, tmp_path: Path, feature: str) -> None:
    if torch.cuda.device_count() < RANKS or importlib.util.find_spec("transformer_engine") is None:
        pytest.skip(f"needs {RANKS} GPUs and Transformer Engine")
    skill, megatron, _ = UPSTREAMS[feature]
    upstream = stage.upstream(named(load_card(CARDS / skill / "card.yaml"), megatron))
    given = ("--upstream", str(upstream.megatron), "--feature", feature)
    done = smoke(*given, "--out", str(tmp_path / "logs"), "--record", "evidence")
    assert done.exit_code == 0, done.output[-3000:]
