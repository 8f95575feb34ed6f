"""``ringproof smoke megatron`` with upstream's own program, from torchrun to the verdict."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

from ringproof.cards import Card, load_card
from ringproof.cli.main import app
from ringproof.rehearsal.fixtures import SessionServers

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


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("feature", UPSTREAMS)
def test_a_feature_passes_without_gpus(stage: SessionServers, tmp_path: Path, feature: str) -> None:
    """And does not with the logs of the two programs exchanged."""
    skill, megatron, engine = UPSTREAMS[feature]
    card = load_card(CARDS / skill / "card.yaml")
    specs = [named(card, name) for name in (megatron, engine) if name]
    upstream = stage.upstream(*specs)
    out = tmp_path / "logs"
    given = ("--upstream", str(upstream.megatron), "--te", str(upstream.engine), "--out", str(out))
    words = (*given, "--feature", feature, "--device", "cpu", "--steps", "4")
    done = smoke(*words, "--json", str(tmp_path / "found.json"))
    assert done.exit_code == 0, done.output[-3000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert [one["as_expected"] for one in found["programs"]] == [True, True]
    assert {len(one["on"]) for one in found["losses"]} == {4}
    (out / "on").rename(out / "other")
    (out / "off").rename(out / "on")
    (out / "other").rename(out / "off")
    done = smoke(*words, "--judge")
    assert done.exit_code == 1 and "problem: feature on: " in done.output


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
