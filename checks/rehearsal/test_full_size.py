"""Runs at full size: the same bytes as a run that computes, and upstream's own program."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import psutil
import pytest
import torch.distributed as dist

from ringproof.errors import InputError
from ringproof.launch.full.size import FullProgram
from ringproof.launch.reading import read_command
from ringproof.rehearsal.conform.matrix import LIBRARY
from ringproof.rehearsal.fit.fitting import FitRequest, Fitting, fit
from ringproof.rehearsal.fit.gpus import gpu
from ringproof.rehearsal.fit.rendering import lines
from ringproof.rehearsal.fit.vary import combinations, vary, with_settings
from ringproof.rehearsal.fixtures import SessionServers
from ringproof.rehearsal.protocol import board
from ringproof.rehearsal.protocol.memory import MemoryReport
from ringproof.rehearsal.protocol.program import FullSize, Program, Upstream
from ringproof.rehearsal.protocol.reports import RankReport
from ringproof.rehearsal.rank.server import _Server

T = TypeVar("T")
DEV = "NVIDIA/Megatron-LM@dev"
RELEASE = "pip:megatron-core==0.19.2"
GROUPED = "--ffn-hidden-size 256 --group-query-attention --num-query-groups 2"
# Wide enough that the embedding and the logits have no content at full size.
SMALL = (
    "--num-layers 2 --hidden-size 128 --num-attention-heads 4 "
    "--seq-length 256 --max-position-embeddings 256 --micro-batch-size 1 --global-batch-size 2 "
    "--train-iters 2 --lr 1e-3 --vocab-size 16384 --tokenizer-type NullTokenizer --eval-iters 1 "
    "--eval-interval 9"
)
MODEL = (
    "--transformer-impl transformer_engine --bf16 --position-embedding-type rope "
    "--normalization RMSNorm --swiglu --disable-bias-linear --no-rope-fusion "
    "--untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0 "
    "--use-distributed-optimizer --mock-data --split 99,1,0 --num-workers 0 --log-interval 1 "
    "--make-vocab-size-divisible-by 32"
)
SPLIT = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"  # blocks are as large as asked for
P2P = "--context-parallel-size 2 --cp-comm-type p2p"
TENSOR = "--tensor-model-parallel-size 2 --sequence-parallel"


def measured(stage: SessionServers, options: str, *, computes: bool, **given: Any) -> MemoryReport:
    """The memory of rank 0."""
    started = None if computes else (0,)
    memory = ranks_of(stage, options, started=started, **given)[0].memory
    assert memory is not None
    return memory


def ranks_of(
    stage: SessionServers, options: str, *, started: tuple[int, ...] | None, script: str = LIBRARY,
    ranks: int = 2, upstream: Upstream | None = None, environment: tuple[str, ...] = (),
) -> tuple[RankReport, ...]:  # fmt: skip
    """The ranks that were started without content; all of them, which compute, if none."""
    program = Program(
        upstream or stage.upstream(),
        script,
        tuple(f"{SMALL} {MODEL} {options}".split()),
        ranks,
        {"CUDA_DEVICE_MAX_CONNECTIONS": "1"} | dict(one.split("=", 1) for one in environment),
        "float16",
        same_weights=False,
        full_size=FullSize(started or (0,), ranks, together=True, computes=not started),
    )
    outcome = stage.run(program, preload="")
    assert outcome.failure is None, outcome.failure
    assert len(outcome.ranks) == len(started or range(ranks))
    return outcome.ranks


@pytest.mark.slow
@pytest.mark.parametrize("options", [P2P, TENSOR])
def test_a_run_without_content_takes_the_bytes_of_one_that_computes(
    stage: SessionServers, options: str
) -> None:
    computed = measured(stage, options, computes=True)
    hollow = measured(stage, options, computes=False)
    assert hollow.peak == computed.peak > 20 << 20
    assert hollow.steady == computed.steady > 10 << 20


# Every expert gets as many tokens whatever a router chooses, as without content.
PADDED = (
    "--num-experts 4 --expert-model-parallel-size 2 --moe-router-topk 2 "
    "--moe-expert-capacity-factor 1 --moe-pad-expert-input-to-capacity "
    "--moe-token-dispatcher-type alltoall --ffn-hidden-size 256"
)
LEVELS = (
    "--context-parallel-size 4 --cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 2"
)
CHUNKS = (
    "--num-layers 4 --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1 "
    "--global-batch-size 4"
)


# The ranks of one replica have the same lengths, so that one process knows those of all.
LENGTHS = (
    f"{P2P} --calculate-per-token-loss --null-tokenizer-pad-id 0 --max-seqlen-per-dp-cp-rank 128 "
    '--use-varlen-dataset --varlen-mock-dataset-config-json {"mode":"distribution","type":'
    '"lognormal","min_seq_len":8,"max_seq_len":256,"mean_seq_len":96,"lognormal_sigma":0.9} '
    "--global-batch-size 4 --sequence-packing-scheduler"
)
OFFLOADS = "--fine-grained-activation-offloading"
DYNAMIC = f"{LENGTHS} default_dynamic_cp --dynamic-context-parallel"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "ranks"),
    [
        pytest.param(PADDED, 2, id="MoE"),
        pytest.param(LEVELS, 4, id="a2a+p2p"),
        pytest.param(CHUNKS, 2, id="VPP"),
        pytest.param(f"{LENGTHS} dp_balanced", 2, id="THD"),
        pytest.param(DYNAMIC, 2, id="Dynamic CP"),
    ],
)
def test_upstreams_program_takes_the_bytes_of_one_that_computes(
    stage: SessionServers, options: str, ranks: int
) -> None:
    script, upstream = "pretrain_gpt.py", stage.upstream(DEV)
    computed, hollow = (
        measured(stage, options, computes=one, script=script, ranks=ranks, upstream=upstream)
        for one in (True, False)
    )
    assert hollow.peak == computed.peak > 20 << 20
    assert hollow.steady == computed.steady > 10 << 20


@pytest.mark.slow
def test_ranks_that_run_together_have_the_lengths_of_their_batch(stage: SessionServers) -> None:
    """With two replicas, whose lengths a rank that runs alone does not know."""
    computed, beside, alone = (
        ranks_of(
            stage, f"{DYNAMIC} --num-layers 1", started=started, script="pretrain_gpt.py", ranks=4,
            upstream=stage.upstream(DEV), environment=(SPLIT,),
        )
        for started in (None, (0, 1, 2, 3), (0,))
    )  # fmt: skip
    tokens = [[call.tokens for call in one.attention] for one in computed]
    assert [[call.tokens for call in one.attention] for one in beside] == tokens
    assert len(set(map(tuple, tokens))) > 1, "the batch is uneven"
    assert [call.tokens for call in alone[0].attention] != tokens[0]
    for a, b in zip(beside, computed, strict=True):
        assert a.memory is not None and b.memory is not None
        assert a.memory.steady == b.memory.steady > 70 << 20
        assert a.memory.peak == b.memory.peak > 80 << 20


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("sent", "said"),
    [(signal.SIGKILL, "ended by signal SIGKILL"), (signal.SIGSTOP, "stopped by a signal")],
)
def test_a_rank_of_a_batch_that_ends_or_stops_is_named(
    stage: SessionServers, tmp_path: Path, sent: signal.Signals, said: str
) -> None:
    """While the others wait for its lengths."""
    upstream = stage.upstream(DEV)
    out, said_here = tmp_path / "out", tmp_path / "said"
    command = [sys.executable, "-m", "ringproof", "fit", "--whole-batch", "--out", str(out)]
    command += ["--upstream", str(upstream.megatron), "--te", str(upstream.engine), "--", SPLIT]
    command += ["CUDA_DEVICE_MAX_CONNECTIONS=1", "torchrun", "--nproc-per-node", "4"]
    command += ["pretrain_gpt.py", *f"{SMALL} {MODEL} {DYNAMIC}".split()]
    folder = out / "run-1"
    with said_here.open("w") as stream, subprocess.Popen(command, stderr=stream) as process:
        try:
            rank = until(lambda: process_of(process.pid, folder / "rank-2.log"))
            rank.send_signal(signal.SIGSTOP)
            until(lambda: "gather" in board.read(folder / "rank-3.board")[1])
            tree = psutil.Process(process.pid).children(recursive=True)
            began = time.monotonic()
            rank.send_signal(sent)
            assert process.wait(300) == 2
        finally:
            process.kill()
        assert time.monotonic() - began < 60, "a rank that waits is not asked for more"
        assert f"the launch: cannot be said here: rank 2: {said}" in said_here.read_text()
    assert not psutil.wait_procs(tree, 10)[1], "of it nothing is left"


def test_the_port_of_a_batch_is_one_that_nobody_has_taken(tmp_path: Path) -> None:
    """Ranks learn it from the server that serves it: no other program comes before."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        size = FullSize((0, 1), 2, together=True)
        program = Program(
            Upstream(tmp_path, "m", tmp_path, "e", None), "x.py", (), 2, full_size=size
        )
        assert program.exchanges
        server = _Server()
        with mock.patch("os.fork", return_value=1), mock.patch("os.setpgid"):
            server.start(program, port, tmp_path)
    assert isinstance(server.store, dist.TCPStore) and server.store.port != port


def until(found: Callable[[], T | None]) -> T:
    """Wait for something."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if one := found():
            return one
        time.sleep(0.02)
    raise TimeoutError


def process_of(parent: int, log: Path) -> psutil.Process | None:
    """The rank that writes a log."""
    for child in psutil.Process(parent).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if any(one.path == str(log) for one in child.open_files()):
                return child
    return None


# With few layers, the first of the two stages has its peak in another place than with 24.
STAGES = "--pipeline-model-parallel-size 2 --num-layers 24 --global-batch-size 8"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "depths"),
    [
        pytest.param(f"{P2P} {TENSOR} --num-layers 12", (2, 4), id="CP"),
        pytest.param(STAGES, (4, 8), id="PP"),
    ],
)
def test_all_layers_follow_from_few_to_the_byte(
    stage: SessionServers, tmp_path: Path, options: str, depths: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    request = request_of(stage, tmp_path, options)
    with Fitting(request, lambda *_: None) as fitting:
        prepared = fitting.prepare(request.launch)
        whole, follows = fitting.fit(prepared), fitting.extended(prepared)
        assert prepared.program.first_microbatches
        monkeypatch.setattr(FullProgram, "first_microbatches", 0)
        longer = fitting.fit(prepared)
    # What is only in the first step differs, as what lives when the optimizer's states are made.
    first: dict[str, Any] = {"steps": (), "logged": (), "highest": {}, "invented": {}}
    for one, other in zip(whole.ranks, longer.ranks, strict=True):
        assert replace(one.memory, **first) == replace(other.memory, **first)
        assert one.memory.steps[-1].peak == one.memory.peak
    assert follows.extended_from == depths and not whole.extended_from
    for full, short in zip(whole.ranks, follows.ranks, strict=True):
        a, b = full.memory, short.memory
        assert (b.peak, b.steady, b.flops) == (a.peak, a.steady, a.flops)
        assert (b.phase, b.place, b.at_rest) == (a.phase, a.place, a.at_rest)
        assert b.at_peak in (a.at_peak, {})
        assert set(b.sent) == set(a.sent)


def request_of(
    stage: SessionServers, folder: Path, options: str, megatron: str = RELEASE
) -> FitRequest:
    """A launch of Megatron-LM's own program on four ranks."""
    upstream = stage.upstream(megatron)
    words = f"{SPLIT} CUDA_DEVICE_MAX_CONNECTIONS=1 NVTE_CPU_OFFLOAD_V1=1"
    words = f"{words} torchrun --nproc-per-node 4 pretrain_gpt.py {SMALL}"
    launch = read_command(f"{words} {MODEL} {GROUPED} {options}".split())
    spec = megatron if megatron.startswith("pip:") else str(upstream.megatron)
    return FitRequest(launch, spec, str(upstream.engine), folder, stage.cache, gpu("h100"))


@pytest.mark.slow
def test_what_is_offloaded_to_the_host_leaves_the_device(
    stage: SessionServers, tmp_path: Path
) -> None:
    options = f"--num-layers 8 {P2P} --offload-modules core_attn --min-offloaded-tensor-size 1"
    request = request_of(stage, tmp_path, options, DEV)
    with Fitting(request, lambda *_: None) as fitting:
        launches = (request.launch, with_settings(request.launch, ((OFFLOADS, "true"),)))
        stays, goes = (fitting.fit(fitting.prepare(one)).largest.memory for one in launches)
    assert goes.steady == stays.steady
    # Queries and outputs of 128 tokens in bfloat16; keys and values are half as wide. Upstream
    # keeps those of the last layer, and brings some back before they are needed.
    layer = 3 * 128 * 128 * 2
    assert 4 * layer <= stays.peak - goes.peak <= 8 * layer


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("computes", [True, False])
@pytest.mark.parametrize("layers", [1, 2])
def test_upstream_cannot_offload_several_modules_of_one_layer(
    stage: SessionServers, layers: int, computes: bool
) -> None:
    """Its defect, with content and without; MTP alone in the last chunk is such a layer, too."""
    modules = f"{OFFLOADS} --offload-modules qkv_linear core_attn --min-offloaded-tensor-size 1"
    words = f"{SMALL} {MODEL} --num-layers {layers} {modules}".split()
    variables = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "NVTE_CPU_OFFLOAD_V1": "1"}
    program = Program(
        stage.upstream(DEV), "pretrain_gpt.py", tuple(words), 1, variables, "float16",
        same_weights=False, full_size=FullSize(computes=computes),
    )  # fmt: skip
    failure = stage.run(program).failure
    if layers == 2:
        assert failure is None
        return
    assert failure is not None and failure.message.startswith("AssertionError: Chunk mismatch")
    assert "fine_grained_activation_offload.py" in failure.place


@pytest.mark.slow
def test_every_kind_of_stage_is_measured(stage: SessionServers, tmp_path: Path) -> None:
    options = "--pipeline-model-parallel-size 2 --context-parallel-size 2 --cp-comm-type p2p"
    found = fit(request_of(stage, tmp_path, options), lambda *_: None)
    assert [rank.rank for rank in found.ranks] == [0, 2]
    first, last = (rank.memory for rank in found.ranks)
    assert len(first.steps) == len(last.steps) == 2
    # A stage holds a vocabulary of its own, and half of the layers, twice in bfloat16.
    parameters = 2 * 128 * 16384
    assert parameters < first.at_rest["parameters"] < 2 * parameters
    # Gradients are float32, and Adam keeps three more of those for half of the parameters.
    assert first.at_rest["gradients"] == pytest.approx(2 * first.at_rest["parameters"], rel=1e-3)
    assert first.at_rest["optimizer"] == pytest.approx(3 * first.at_rest["parameters"], rel=1e-2)
    for memory in (first, last):
        assert sum(memory.at_peak.values()) == memory.peak
        assert sum(memory.at_rest.values()) == memory.steady
        assert max(sum(moment.values()) for moment in memory.timeline) == memory.steps[-1].peak
        assert memory.flops > 0
    # Only the last stage has logits, which are float32 and there twice at once.
    assert last.at_peak["activations"] > first.at_peak["activations"] + 128 * 16384 * 4
    ring = [one for one in first.sent if one.operation == "isend" and len(one.ranks) == 2]
    assert {one.ranks for one in ring} >= {(0, 1)}
    assert found.fits and found.margin is not None and found.margin > 70 << 30
    assert any(line.startswith("It fits") for line in lines(found))


@pytest.mark.slow
def test_a_stage_without_data_trains_and_a_rank_without_data_is_refused(
    stage: SessionServers, tmp_path: Path
) -> None:
    options = "--pipeline-model-parallel-size 4 --num-layers 4"
    request = replace(request_of(stage, tmp_path, options), ranks=(1,))
    (middle,) = fit(request, lambda *_: None).ranks
    assert len(middle.memory.steps) == 2 and middle.memory.flops > 0
    with pytest.raises(InputError, match=r"^--ranks: rank 1 gets its data from rank 0"):
        fit(replace(request_of(stage, tmp_path, TENSOR), ranks=(1,)), lambda *_: None)


@pytest.mark.slow
def test_what_upstream_refuses_is_said_in_its_words(stage: SessionServers, tmp_path: Path) -> None:
    request = request_of(stage, tmp_path, "--context-parallel-size 4")
    ring, exchange = vary(request, combinations(["cp-comm-type=p2p,a2a"]), lambda *_: None)
    assert ring.fit is not None and ring.fit.fits
    assert exchange.fit is None
    assert re.match(r"upstream refuses it: .*cp_size = 4", exchange.refused)
    assert "context_parallel.py:" in exchange.refused
    folder = tmp_path / "nothing-ran"
    with pytest.raises(InputError, match=r"^--context-parallel-size"):
        vary(
            replace(request, folder=folder),
            combinations(["context-parallel-size=2,x"]),
            lambda *_: None,
        )
    assert not (folder / "run-1").exists()
