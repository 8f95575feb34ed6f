"""A replay of a CUDA graph that reads a stale input, or is of a wrong size, is named."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from checks.faults import graphs
from checks.rehearsal.test_graphs_training import CASES, NO_POSITION, ROPE, Case
from checks.rehearsal.test_locate import add, found, run
from ringproof.cards import load_card
from ringproof.rehearsal.fixtures import SessionServers
from ringproof.rehearsal.locate import saying
from ringproof.rehearsal.locate.locating import AGREES, locate
from ringproof.rehearsal.locate.reading import RankRecord, RunTrace
from ringproof.rehearsal.locate.result import WrongPlace
from ringproof.rehearsal.protocol.program import Program, Upstream
from ringproof.rehearsal.protocol.trace import TraceRequest
from ringproof.rehearsal.runs.outcome import Outcome
from ringproof.rehearsal.trace.recorder import TraceRecorder

CARD = Path(__file__).parents[2] / "cards" / "dynamic-cp-cuda-graphs" / "card.yaml"
FIRST = 3
"""The first step with replays."""


def misreading(said: str, record: RunTrace) -> RunTrace:
    """Let the block of the second rank be a replay that takes something from elsewhere."""
    first, second = record.ranks
    calls = list(second.trace.calls)
    calls[2] = replace(calls[2], misread=said)
    trace = replace(second.trace, calls=tuple(calls))
    return RunTrace((first, RankRecord(trace, second.data)))


def test_the_first_replay_that_misreads_is_named() -> None:
    said = "input angles, where replay 7 of graph 4 does not read what the caller gives"
    record = misreading(said, run((1, add("attended", 0.5))))
    one = found(record).culprit
    assert one is not None and (one.phase, one.module, one.tensor) == ("forward", "block", said)
    assert (one.ranks, one.microbatches, one.called_from) == ((1,), (0,), "site:block")
    before = found(misreading(said, run((0, add("embedded", 0.5))))).culprit
    assert before is not None and before.module == "embedding"


class Device:
    """A capture and replays of a graph, without a device."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        class CUDAGraph:
            def capture_begin(self, pool: object = None) -> None:
                """Begin a capture."""

            def replay(self) -> None:
                """Replay it."""

        self.captures = True
        patch.setattr(torch.cuda, "CUDAGraph", CUDAGraph)
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.captures)
        patch.setattr(torch.distributed, "get_rank", lambda: 1)
        from ringproof.rehearsal.trace.replays import ReplayWatch

        self.watch, self.graph = ReplayWatch(), torch.cuda.CUDAGraph()
        self.static = {"hidden_states": torch.zeros(3), "lengths": torch.zeros(2, dtype=torch.int)}
        self.graph.capture_begin(None)
        self.watch.called(self.static)
        self.watch.attends({"query": 1, "cp_group": None})
        self.watch.attends({"query": 1})  # not the attention that is given a group
        self.captures = False

    def replay(self, moment: str, ranks: tuple[int, ...] = (1,), **given: Any) -> list[str]:
        """Return what is noted of a replay to whose module the tensors are given."""
        noted: list[str] = []
        self.watch.expect("block", moment, ranks, given, noted.append)
        self.graph.replay()
        return noted


def test_a_replay_is_held_against_what_its_caller_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch)
    lengths = torch.tensor([4, 5])  # of another dtype, in which a copy loses nothing
    device.static["lengths"].copy_(lengths)
    assert device.replay("step 3, microbatch 0", lengths=lengths, other=torch.ones(1)) == []
    other = torch.tensor([6, 7])
    (said,) = device.replay("step 3, microbatch 1", lengths=other)
    assert said == (
        "input lengths (as in step 3, microbatch 0), where replay 2 of graph 1 does not read what "
        "the caller gives"
    )
    device.graph.replay()  # one that no module expects
    (said,) = device.replay("step 3, microbatch 2", (0, 1))
    assert said == (
        "output, which replay 4 of graph 1 computes with the CP group of its capture (ranks 1) and "
        "not of the microbatch"
    )
    rounded = torch.full((3,), 1 + 2**-20)
    device.static["hidden_states"] = device.static["hidden_states"].bfloat16()
    assert device.replay("", hidden_states=rounded) == [], "upstream has let the tensor go"
    device.captures = True
    device.watch.called(device.static)
    device.static["hidden_states"].copy_(rounded)
    assert "input hidden_states, where" in device.replay("", hidden_states=rounded)[0]


class Layer(torch.nn.Module):
    """A layer of which a graph is captured."""

    config = SimpleNamespace(cuda_graph_impl="transformer_engine")

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return the input."""
        return hidden_states

    def _te_cuda_graph_capture(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return hidden_states

    def _te_cuda_graph_replay(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return hidden_states


def test_a_replay_inside_of_a_backward_is_not_taken_for_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Device(monkeypatch)
    graphs_of_engine = SimpleNamespace(is_graph_capturing=lambda: False)
    monkeypatch.setitem(sys.modules, "transformer_engine.pytorch.graph", graphs_of_engine)
    model = torch.nn.Sequential(Layer())
    request = TraceRequest((1,), rows=8)  # with rows, functions of autograd are left alone
    recorder = TraceRecorder(request, tmp_path, 0, lambda: 1, str)
    recorder.watch(model)
    replayed: list[torch.Tensor] = []
    weight = torch.ones(2, requires_grad=True)
    weight.register_hook(lambda one: replayed.append(model[0]._te_cuda_graph_replay(one)))
    (2 * weight).sum().backward()
    assert [one.tolist() for one in replayed] == [[2, 2]]


class Graphed:
    """Locates defects in a short training with graphs, against the same without graphs."""

    def __init__(self, stage: SessionServers, upstream: Upstream, case: Case, folder: Path) -> None:
        self._stage, self._upstream, self._folder = stage, upstream, folder
        self._case = replace(case, steps=FIRST)

    def __call__(self, fault: Callable[[], None] | None = None) -> WrongPlace:
        """Return the location of a defect, ``None`` for none."""
        programs = [self._case.program(self._upstream, graphs=one) for one in (True, False)]
        faults = (f"{graphs.__name__}:{fault.__name__}",) if fault else ()
        folder = self._folder / (fault.__name__ if fault else "clean")
        return locate(self._run, replace(programs[0], faults=faults), programs[1], FIRST, folder)

    def _run(self, program: Program, folder: Path) -> Outcome:
        return self._stage.run(program, folder=folder)


@pytest.fixture(scope="module")
def static(stage: SessionServers, tmp_path_factory: pytest.TempPathFactory) -> Graphed:
    """A release with static CP."""
    case = next(one for one in CASES if one.name == "main-cp2-bf16")
    upstream = stage.upstream("pip:megatron-core==0.19.2")
    return Graphed(stage, upstream, case, tmp_path_factory.mktemp("static"))


@pytest.fixture(scope="module")
def dynamic(stage: SessionServers, tmp_path_factory: pytest.TempPathFactory) -> Graphed:
    """The bank of graphs of Dynamic CP; a table of angles is too short for the wrong graph."""
    case = next(one for one in CASES if one.name == "pr6479-dynamic-2")
    once = " --rerun-mode disabled --no-check-for-nan-in-loss-and-grad"  # or it runs steps again
    case = replace(case, arguments=case.arguments.replace(ROPE, NO_POSITION) + once)
    card = load_card(CARD).upstreams
    names = (card["megatron-lm-pr6479"], card["transformer-engine-pr3353"])
    upstream = stage.upstream(*(f"{one.repo}@{one.commit}" for one in names))
    return Graphed(stage, upstream, case, tmp_path_factory.mktemp("dynamic"))


@pytest.mark.slow
@pytest.mark.parametrize("program", ["static", "dynamic"])
def test_a_healthy_run_with_graphs_names_nothing(
    program: str, request: pytest.FixtureRequest
) -> None:
    place = request.getfixturevalue(program)()
    assert (place.culprit, place.reason) == (None, AGREES), saying.sentence(place)
    assert place.compared > 100


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "fault", "said"),
    [
        ("static", graphs.angles_moved, "input rotary_pos_emb, where replay 1 of graph"),
        ("dynamic", graphs.output_of_the_replay_before, "input"),  # of what runs behind the graph
        ("dynamic", graphs.lengths_of_the_replay_before, "input cu_seqlens_q (as in step 3, "),
        ("dynamic", graphs.graph_of_the_largest_size, "output, which replay"),
    ],
    ids=["stale angles", "output not copied", "stale lengths", "wrong size"],
)
def test_a_wrong_replay_is_located(
    program: str, fault: Callable[[], None], said: str, request: pytest.FixtureRequest
) -> None:
    place = request.getfixturevalue(program)(fault)
    one = place.culprit
    assert one is not None, place.reason
    assert (one.phase, one.module, one.step) == ("forward", "decoder.layers.0", FIRST)
    assert one.tensor.startswith(said), saying.sentence(place)
