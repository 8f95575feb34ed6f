"""The sample that a trace of a smoke run holds: how much it writes, and how it is compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from checks.rehearsal.test_locate import Change, add, one_rank, run
from ringproof.rehearsal.locate.locating import located
from ringproof.rehearsal.locate.reading import RankRecord, RunTrace, read_rank
from ringproof.rehearsal.locate.result import WrongPlace
from ringproof.rehearsal.protocol.trace import (
    SMOKE,
    Place,
    RankTrace,
    TraceRequest,
    Values,
)

torch = pytest.importorskip("torch")
LAYERS, WIDTH = 9, 64
ROOT = Path(__file__).parents[2]


def recorded(folder: Path, request: TraceRequest, rows: int) -> RankTrace:
    """Record a step of a model that has layers as Megatron's have them."""
    from ringproof.rehearsal.trace import recorder as recording

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mlp = torch.nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            return x + self.mlp(x).tanh()

    class Decoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.config = SimpleNamespace(num_layers=LAYERS)
            self.decoder = torch.nn.Module()
            self.decoder.layers = torch.nn.ModuleList(Layer() for _ in range(LAYERS))

        def forward(self, x: Any) -> Any:
            for layer in self.decoder.layers:
                x = layer(x)
            return x

    with pytest.MonkeyPatch.context() as patch:
        # The recorder replaces it for as long as the process lives: here it ends with the test.
        patch.setattr(torch.autograd.Function, "apply", vars(torch.autograd.Function)["apply"])
        place = Place(0, 0, 0, 0, (1, 1, 1, 1), sequence_parallel=False)
        patch.setattr(recording, "place_in", lambda model: place)
        patch.setattr(recording, "sharing", lambda packed: ((0,), (), (), ""))
        recorder = recording.TraceRecorder(request, folder, 0, lambda: 1, str)
        model = Decoder()
        recorder.watch(model)
        model(torch.ones(rows, 1, WIDTH)).sum().backward()
        recorder.write(ended=True)
    return read_rank(folder / "trace-0.json", folder / "trace-0.bin").trace


def test_a_trace_ends_at_its_limit_and_is_not_compared(tmp_path: Path) -> None:
    request = replace(SMOKE, layers=0, rows=0, most_bytes=300_000)
    trace = recorded(tmp_path, request, rows=64)
    written = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert trace.full and request.most_bytes / 2 < written <= request.most_bytes
    found = located(*[RunTrace((RankRecord(trace, np.zeros(0, np.uint8)),))] * 3, (1,))
    assert found.reason == "the trace is larger than its limit"


def test_the_page_has_the_limits_of_a_sample() -> None:
    page = " ".join((ROOT / "docs" / "cluster.md").read_text(encoding="utf-8").split())
    assert f" {SMOKE.rows} rows" in page
    assert f" {SMOKE.most_bytes / 1e6:.0f} MB" in page
    assert ("less than 1 GB" in page) <= (8 * 3 * SMOKE.most_bytes < 1e9)


def test_the_sample_fits_where_the_whole_does_not(tmp_path: Path) -> None:
    request = replace(SMOKE, rows=16, most_bytes=300_000)
    trace = recorded(tmp_path, request, rows=100)
    assert not trace.full and trace.closed == LAYERS - SMOKE.layers
    inner = [call.module for call in trace.calls if call.module.endswith(".mlp")]
    assert inner == [f"decoder.layers.{number}.mlp" for number in (0, 3, 5, 8)]
    assert sum(call.module.endswith("s.4") for call in trace.calls) == 1, "its borders are there"
    assert {(one.value.every, one.value.held[0]) for one in trace.tensors} == {(8, 13)}
    named = {one.name for one in trace.parameters if one.kind == "weight"}
    assert {name.split(".")[2] for name in named} == {"0", "3", "5", "8"}
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= request.most_bytes


# --- a sample is compared ---


class _Thinning:
    """Leaves out rows of a rank's tensors, as the recorder does."""

    def __init__(self, rank: RankRecord, every: int) -> None:
        self._rank, self._every, self._data = rank, every, b""

    def record(self) -> RankRecord:
        tensors = tuple(
            replace(
                one, value=self._kept(one.value),
                gradient=one.gradient and self._kept(one.gradient),
            )
            for one in self._rank.trace.tensors
        )  # fmt: skip
        parameters = tuple(
            replace(one, value=self._kept(one.value, whole=True))
            for one in self._rank.trace.parameters
        )
        trace = replace(self._rank.trace, tensors=tensors, parameters=parameters)
        return RankRecord(trace, np.frombuffer(self._data, np.uint8))

    def _kept(self, stored: Values, *, whole: bool = False) -> Values:
        value = self._rank.values(stored)
        every = 1 if whole or value.ndim < 3 else self._every
        kept = replace(stored, offset=len(self._data), every=every)
        self._data += np.ascontiguousarray(value[::every]).tobytes()
        return kept


def thinned(record: RunTrace, every: int) -> RunTrace:
    return RunTrace(tuple(_Thinning(rank, every).record() for rank in record.ranks))


def compared(every: Mapping[str, int], *changes: tuple[int, Change]) -> WrongPlace:
    runs = (run(*changes), one_rank(), one_rank(1e-15))
    names = ("run", "reference", "reference")
    return located(
        *(thinned(one, every.get(name, 1)) for one, name in zip(runs, names, strict=True)), (1,)
    )


@pytest.mark.parametrize("every", [{"run": 2}, {"reference": 2}, {"run": 2, "reference": 4}])
def test_rows_that_both_runs_hold_are_compared(every: dict[str, int]) -> None:
    location = compared(every)
    assert location.culprit is None and location.compared == 2 * 9
    # Row 4 of rank 1 is row 8 of the sequence, which all samples hold; row 3 none but the whole.
    assert compared(every, (1, add("attended", 0.5, 3))).culprit is None
    found = compared(every, (1, add("attended", 0.5, 4))).culprit
    assert found is not None and found.module == "block.attention"
    assert (found.ranks, found.positions) == ((1,), ((8, 8),))
    if "run" in every:
        assert ("rows that the sample of the trace leaves out", 6) in compared(every).left_out


def test_traces_without_a_row_in_common_are_listed_and_not_compared() -> None:
    location = compared({"run": 8, "reference": 16})  # of rank 1 only row 4 of the sequence
    assert any("has no rows that both traces hold" in name for name, _ in location.left_out)


def test_a_thinned_reference_with_cp_is_put_together() -> None:
    def positions(record: RunTrace) -> RunTrace:
        ranks = []
        for one in record.ranks:
            index = np.asarray([[0, 1, 2, 3, 12, 13, 14, 15], list(range(4, 12))][one.trace.rank])
            tensor = Values(one.data.nbytes, (1, 8), "<i8")
            calls = tuple(
                replace(call, inputs={**call.inputs, "position_ids": len(one.trace.tensors)})
                if not call.module else call
                for call in one.trace.calls
            )  # fmt: skip
            tensors = (*one.trace.tensors, replace(one.trace.tensors[0], value=tensor))
            trace = replace(one.trace, calls=calls, tensors=tensors)
            data = np.concatenate([one.data, np.frombuffer(index.tobytes(), np.uint8)])
            ranks.append(RankRecord(trace, data))
        return RunTrace(tuple(ranks))

    reference = positions(thinned(run(), 2))
    for layout, position in (("zigzag", 6), ("contiguous", 10)):  # rank 1 has 4 and 8 first
        wrong = run((1, add("attended", 0.5)), layout=layout)
        for one in (wrong, thinned(wrong, 2)):
            culprit = located(one, reference, reference, (1,)).culprit
            assert culprit is not None
            assert (culprit.module, culprit.positions) == (
                "block.attention",
                ((position, position),),
            )
        assert located(run(layout=layout), reference, reference, (1,)).culprit is None


@pytest.mark.parametrize("engine", [(), ("--engine", "engine")])
def test_a_rank_that_raises_leaves_its_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: tuple[str, ...]
) -> None:
    from ringproof.rehearsal.rank import bootstrap, member

    def fail(program: object, rank: int, folder: Path, *more: object) -> bool:
        (folder / "trace-0.bin").write_bytes(b"values")
        raise ValueError("a defect of upstream")

    monkeypatch.setattr(bootstrap, "prepare", lambda *_: set())
    for name in ("execute", "record"):
        monkeypatch.setattr(bootstrap, name, fail)
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("RANK", "0")
    words = ("--megatron", "M", "--engine-version", "2", "--dtype", "float32", *engine)
    with pytest.raises(ValueError, match="a defect"):
        member.main([*words, "--trace", str(tmp_path / "on"), "pretrain_gpt.py"])
    assert (tmp_path / "on" / "trace-0.bin").read_bytes() == b"values"
