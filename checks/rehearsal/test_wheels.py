"""Releases that have a training loop and no program are rehearsed from their wheels alone."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from ringproof.rehearsal.conform.cases import chosen
from ringproof.rehearsal.conform.matrix import Matrix
from ringproof.rehearsal.conform.record import Status
from ringproof.rehearsal.fixtures import ENGINE, SessionServers
from ringproof.rehearsal.protocol.program import Upstream
from ringproof.rehearsal.standins import dataset_helpers

RELEASES = ("0.17.1", "0.18.2", "0.19.2")
NEWEST = RELEASES[-1]
ARGUMENTS = """--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 128
 --max-position-embeddings 128 --micro-batch-size 1 --global-batch-size 2 --train-iters 3
 --lr 1e-3 --eval-interval 100 --mock-data --tokenizer-type NullTokenizer --vocab-size 255
 --transformer-impl transformer_engine --context-parallel-size 2"""


def _upstream(stage: SessionServers, release: str) -> Upstream:
    return stage.upstream(f"pip:megatron-core=={release}")


def _statuses(
    stage: SessionServers, folder: Path, release: str, cases: list[str]
) -> dict[str, Status]:
    matrix = Matrix(
        _upstream(stage, release),
        folder,
        lambda program, preload, _: stage.run(program, preload=preload),
        iterations=2,
    )
    return {case.id: matrix.run(case).status for case in chosen(cases)}


@pytest.mark.slow
def test_a_release_trains_with_context_parallelism(stage: SessionServers, tmp_path: Path) -> None:
    cases = ["static-p2p-cp2"]
    assert _statuses(stage, tmp_path, NEWEST, cases) == {"static-p2p-cp2": Status.AGREES}


@pytest.mark.slow
@pytest.mark.parametrize("release", RELEASES)
def test_each_release_trains_in_each_layout(
    stage: SessionServers, tmp_path: Path, release: str
) -> None:
    agree = ["static-p2p-pp2", "static-p2p-moe-ep2"]
    refused = ["static-a2a-one-group"]
    # Static CP with packing fails in 0.17, in its program, too (docs/conformance.md).
    (refused if release == "0.17.1" else agree).append("sft-p2p-cp2")
    found = _statuses(stage, tmp_path, release, [*agree, *refused])
    wanted = dict.fromkeys(agree, Status.AGREES) | dict.fromkeys(refused, Status.REFUSED)
    assert found == wanted


@pytest.mark.slow
@pytest.mark.parametrize(("release", "defects"), [("0.18.2", 2), (NEWEST, 1)])
def test_what_a_wheel_lacks_is_named(stage: SessionServers, release: str, defects: int) -> None:
    lacks = _upstream(stage, release).lacks
    assert "in the place of pretrain_gpt.py" in lacks[0]
    assert "no Makefile" in lacks[1]
    assert sum("defect of the package" in text for text in lacks) == defects
    assert any("nvidia-modelopt" in text for text in lacks) == (release == "0.18.2")


def test_a_library_without_training_lacks_nothing(stage: SessionServers) -> None:
    upstream = stage.upstream()
    assert upstream.lacks == () and upstream.program("pretrain_gpt.py") is None


def test_helpers_of_another_python_are_compiled_for_this_one(tmp_path: Path) -> None:
    source = tmp_path / dataset_helpers.SOURCE
    source.parent.mkdir(parents=True)
    (tmp_path / dataset_helpers.TRAINING).mkdir()
    source.write_text("int x;\n")
    other = source.with_name("helpers_cpp.cpython-39-x86_64-linux-gnu.so")
    other.write_bytes(b"")
    cache = tmp_path / "cache"
    found = dataset_helpers.find(tmp_path, cache)
    assert found is not None and found.parent == cache
    own = source.with_name(f"helpers_cpp{sysconfig.get_config_var('EXT_SUFFIX')}")
    other.rename(own)
    assert dataset_helpers.find(tmp_path, cache) == own


@pytest.mark.slow
def test_the_command_takes_a_release_by_its_name(stage: SessionServers, tmp_path: Path) -> None:
    _upstream(stage, NEWEST)
    launch = ("env", "CUDA_DEVICE_MAX_CONNECTIONS=1", "torchrun", "--nproc-per-node", "2")
    there = ("--upstream", f"megatron-core=={NEWEST}", "--te", ENGINE, "--json", "a.json")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "ringproof", "rehearse", *there, "--steps", "3", "--"),
            *(*launch, "pretrain_gpt.py", *ARGUMENTS.split()),
        ],
        capture_output=True, text=True, cwd=tmp_path, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    data = json.loads((tmp_path / "a.json").read_text())
    assert data["agrees"] and data["largest_relative_difference"] < 2e-6
    assert len(data["mended"]) == 2
    assert "apex" in data["needs"]
