"""Megatron-Bridge's own configuration, ``pretrain`` and library functions run in a rehearsal.

Needs Bridge's own requirements installed (transformers, hydra-core, nvidia-modelopt, datasets and
tensorboard) and, for its newest commit, checkouts of it and of the Megatron-LM that it pins.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from checks.faults.defects import patched
from checks.skills.shared import REPOSITORY
from ringproof.cards import load_card
from ringproof.rehearsal.fixtures import SessionServers
from ringproof.rehearsal.protocol.program import Program, Upstream
from ringproof.rehearsal.runs.outcome import Outcome

pytestmark = pytest.mark.slow

HEAD = "NVIDIA-NeMo/Megatron-Bridge@067f987df03b8355b03192d88d70f1709fedf51a"
RELEASE = "pip:megatron-bridge==0.3.1"
REQUIRED = ("transformers", "hydra", "modelopt", "datasets", "tensorboard")
SCRIPT = str(Path(__file__).parent / "bridge_program.py")
CALLS = "checks.rehearsal.bridge_program"
CARD = REPOSITORY / "cards" / "hierarchical-context-parallel" / "card.yaml"
PATCH = REPOSITORY / "docs" / "patches" / "provider-sizes.patch"
# Float32 over three steps; the runs differ in the order of sums.
TOLERANCE = 1e-6
EMPTY: Mapping[str, Any] = MappingProxyType({})
SIZES = MappingProxyType(
    {"context_parallel_size": 4, "hierarchical_context_parallel_sizes": [2, 2]}
)
LEVELS = MappingProxyType({"cp_comm_type": "a2a+p2p", **SIZES})
GRID = MappingProxyType({"use_decentralized_pg": True, "use_gloo_process_groups": False})
PER_TOKEN = MappingProxyType({"calculate_per_token_loss": True, "max_seqlen_per_dp_cp_rank": 128})


@pytest.fixture(scope="module", autouse=True)
def requirements() -> None:
    missing = [name for name in REQUIRED if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"Megatron-Bridge needs {', '.join(missing)}")


@pytest.fixture(scope="module")
def head(stage: SessionServers) -> Upstream:
    """Bridge's newest commit at hand, on the Megatron-LM that it pins."""
    folder = stage.checkout(HEAD, "src/")
    pin = (folder / ".main.commit").read_text().strip()
    return dataclasses.replace(stage.upstream(f"NVIDIA/Megatron-LM@{pin}"), extra=(folder / "src",))


@pytest.fixture(scope="module")
def release(stage: SessionServers) -> Upstream:
    """Bridge 0.3.1 on Megatron-Core 0.16.1."""
    return dataclasses.replace(stage.upstream(), extra=(stage.checkout(RELEASE, "megatron/"),))


def train(
    stage: SessionServers,
    bridge: Upstream,
    ranks: int,
    dist: Mapping[str, Any] = EMPTY,
    *,
    planted: tuple[str, ...] = (),
    **model: Any,
) -> Outcome:
    """Train three steps."""
    case = {"iterations": 3, "global_batch": 4, "model": model, "dist": dict(dist)}
    return stage.run(Program(bridge, SCRIPT, (json.dumps(case),), ranks, faults=planted))


def paths(outcome: Outcome) -> set[tuple[str, tuple[int, ...]]]:
    return {(call.comm_type, call.sizes) for rank in outcome.ranks for call in rank.attention}


def difference(outcome: Outcome, other: Outcome) -> float:
    """Largest relative difference of the losses of three steps."""
    assert outcome.failure is None and other.failure is None
    assert len(outcome.losses) == len(other.losses) == 3
    return max(
        abs(losses["lm loss"] / other.losses[step]["lm loss"] - 1)
        for step, losses in outcome.losses.items()
    )


@pytest.mark.parametrize("version", ["head", "release"])
def test_hierarchical_cp_trains_as_one_rank(
    stage: SessionServers, version: str, request: pytest.FixtureRequest
) -> None:
    bridge = request.getfixturevalue(version)
    one, four = train(stage, bridge, 1), train(stage, bridge, 4, **LEVELS)
    assert difference(four, one) < TOLERANCE
    assert paths(four) == {("a2a+p2p", (2, 2))}
    (summary,) = (mark for mark in load_card(CARD).markers if mark.id == "bridge-summary")
    logs = [(run.folder / "rank-0.log").read_text(encoding="utf-8") for run in (one, four)]
    assert [bool(re.search(summary.pattern, log)) for log in logs] == [False, True]


def test_the_newest_commit_refuses_a_type_without_levels(
    stage: SessionServers, head: Upstream
) -> None:
    refused = train(stage, head, 4, context_parallel_size=4, cp_comm_type="a2a+p2p")
    assert refused.failure is not None
    assert "hierarchical_context_parallel_sizes must be set" in refused.failure.message
    assert "megatron/bridge/training/config.py" in refused.failure.place


def test_the_newest_commit_refuses_levels_of_decentralized_groups(
    stage: SessionServers, head: Upstream
) -> None:
    refused = train(stage, head, 4, GRID, **LEVELS)
    assert refused.failure is not None
    assert "NotImplementedError" in refused.failure.message
    assert "Decentralized process groups" in refused.failure.message
    assert "megatron/bridge/training/initialize.py" in refused.failure.place
    flat = train(stage, head, 4, GRID, context_parallel_size=4, cp_comm_type="p2p")
    assert flat.failure is None, "the control: the same groups without levels"


@pytest.mark.parametrize(
    ("dist", "sizes"), [(EMPTY, EMPTY), (GRID, SIZES)], ids=["no-sizes", "decentralized"]
)
def test_the_release_trains_silently_wrong(
    stage: SessionServers, release: Upstream, dist: Mapping[str, Any], sizes: Mapping[str, Any]
) -> None:
    """Every rank attends to its own part of a sequence only, and nothing is said."""
    model = {"cp_comm_type": "a2a+p2p", "context_parallel_size": 4, **sizes}
    wrong = train(stage, release, 4, dist, **model)
    assert paths(wrong) == {("none", (1,))}
    assert difference(wrong, train(stage, release, 1)) > 100 * TOLERANCE


def test_the_flag_reaches_the_groups_and_no_scheduler(
    stage: SessionServers, head: Upstream
) -> None:
    """The old hybrid loop gets batches that nobody scheduled, and fails in the first step."""
    asked = train(
        stage, head, 4, context_parallel_size=2, hybrid_context_parallel=True, **PER_TOKEN
    )
    assert asked.failure is not None and not asked.losses
    assert "megatron/core/pipeline_parallel/hybrid_cp_schedule.py" in asked.failure.place
    static = train(stage, head, 4, context_parallel_size=2, **PER_TOKEN)
    assert static.failure is None, "the control: the same without the flag"


@pytest.mark.parametrize(("version", "passed"), [("head", True), ("release", False)])
def test_the_release_hands_no_flag_to_the_groups(
    stage: SessionServers, version: str, passed: bool, request: pytest.FixtureRequest
) -> None:
    bridge = request.getfixturevalue(version)
    planted = (f"{CALLS}:watch_flags",)
    flags = {"hybrid_context_parallel": True, **PER_TOKEN}
    outcome = train(stage, bridge, 4, planted=planted, context_parallel_size=2, **flags)
    names = outcome.ranks[0].results
    assert "context_parallel_size" in names
    assert ("hybrid_context_parallel" in names) is passed
    assert not outcome.losses, "in the first step the old loop gets batches that nobody scheduled"


@pytest.mark.parametrize("version", ["head", "release"])
def test_a_provider_makes_levels_only_where_sizes_are_passed(
    stage: SessionServers, version: str, request: pytest.FixtureRequest
) -> None:
    bridge, call = request.getfixturevalue(version), f"{CALLS}:provider_levels"
    named = {"hierarchical_context_parallel_sizes": [2, 2]}
    assert stage.call(call, 4, {}, upstream=bridge) == [[]] * 4
    assert stage.call(call, 4, named, upstream=bridge) == [[2, 2]] * 4


def test_a_patch_lets_the_provider_pass_its_sizes(
    stage: SessionServers, head: Upstream, tmp_path: Path
) -> None:
    checkout = dataclasses.replace(head, megatron=head.extra[0].parent)
    changed = patched(checkout, PATCH, tmp_path / "bridge").megatron / "src"
    bridge = dataclasses.replace(head, extra=(changed,))
    assert stage.call(f"{CALLS}:provider_levels", 4, {}, upstream=bridge) == [[2, 2]] * 4


@pytest.mark.parametrize("version", ["head", "release"])
def test_loading_for_one_device_forgets_the_levels(
    stage: SessionServers, version: str, request: pytest.FixtureRequest
) -> None:
    bridge, call = request.getfixturevalue(version), f"{CALLS}:loaded_sizes"
    (cleared,) = stage.call(call, 1, {}, upstream=bridge)
    assert cleared == {"context_parallel_size": 1, "hierarchical_context_parallel_sizes": None}
    assert stage.call(call, 1, dict(SIZES), upstream=bridge) == [dict(SIZES)]


def test_a_builder_backed_model_takes_nested_overrides(
    stage: SessionServers, head: Upstream
) -> None:
    call = f"{CALLS}:overridden"
    (flat,) = stage.call(call, 1, ["model.context_parallel_size=4"], upstream=head)
    assert "Could not override 'model.context_parallel_size'" in flat["refused"]
    nested = ["model.transformer.context_parallel_size=4"]
    assert stage.call(call, 1, nested, upstream=head) == [{"size": 4}]
