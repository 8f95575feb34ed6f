"""Defects inside the experts of Megatron-LM's dev branch are located, as is that all agree."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from checks.faults import kinds, programs
from ringproof.rehearsal.fixtures import SessionServers
from ringproof.rehearsal.locate.locating import AGREES, located
from ringproof.rehearsal.locate.reading import RunTrace, read_run
from ringproof.rehearsal.locate.result import WrongPlace
from ringproof.rehearsal.protocol.program import Program
from ringproof.rehearsal.protocol.trace import TraceRequest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
DEV = "NVIDIA/Megatron-LM@dev"
SHORT = ("--train-iters", "1", "--global-batch-size", "2", "--no-gradient-accumulation-fusion")
ALONE = tuple(option for option in programs.MOE if option != "--moe-grouped-gemm")
"""Each expert is a module of its own."""
GATHERED = ("--moe-token-dispatcher-type", "allgather")
EP, NO_EP = (("--expert-model-parallel-size", number) for number in "21")
PARTS, NO_PARTS = (("--expert-tensor-parallel-size", number) for number in "21")
LAYER = "decoder.layers.0.mlp"


@dataclass(frozen=True)
class Layout:
    """A launch with CP 2, and the same without CP.

    Attributes:
        options: Options that both launches have.
        alone: Options of the launch without CP alone.
        width: Ranks of the one without CP.
        fault: A defect that is planted in the launch.
        module: Where it is.
        said: End of what is said of the tensor.
    """

    options: tuple[str, ...]
    fault: Callable[[], None]
    module: str
    said: str
    alone: tuple[str, ...] = NO_EP
    width: int = 1


LAYOUTS = {
    "EP 2": Layout(
        (*programs.MOE, *EP), kinds.last_expert_activated_wrongly, ".experts", "(rows of expert 3)"
    ),
    "EP 2, one by one, gathered": Layout(
        (*ALONE, *GATHERED, *EP), kinds.rows_of_an_expert_shifted, ".experts", "(rows of expert 0)"
    ),
    "EP 1, one by one": Layout(
        ALONE, kinds.last_expert_activated_wrongly, ".experts.local_experts.3", "(rows of expert 3)"
    ),
    "TP 2, EP 2, one by one": Layout(
        (*ALONE, *programs.TP, *EP, *NO_PARTS), kinds.probabilities_applied_twice, ".experts",
        "(rows of expert 2)", EP, 2,
    ),
    "TP 2, EP 1, parts, gathered": Layout(
        (*programs.MOE, *GATHERED, *programs.TP, *PARTS), kinds.rows_of_an_expert_shifted,
        ".experts", "(rows of expert 0)", (), 2,
    ),
    "TP 2, EP 2, parts": Layout(
        (*programs.MOE, *programs.TP, *EP, *PARTS), kinds.probabilities_applied_twice,
        ".experts", "(rows of experts 2-3)", NO_EP, 2,
    ),
    "TP 2, EP 2, parts, gathered": Layout(
        (*ALONE, *GATHERED, *programs.TP, *EP, *PARTS), kinds.last_expert_activated_wrongly,
        ".experts.local_experts.3", "(rows of expert 3)", NO_EP, 2,
    ),
}  # fmt: skip


class Inside:
    """Traces of launches, of which those without a defect are made once."""

    def __init__(self, stage: SessionServers, folder: Path) -> None:
        self._stage, self._folder = stage, folder
        self._upstream = stage.upstream(DEV)
        self._references = functools.cache(self._both)

    def __call__(self, name: str, fault: Callable[[], None] | None = None) -> WrongPlace:
        """Return what is wrong in a launch with a defect, ``None`` for none."""
        layout = LAYOUTS[name]
        planted = () if fault is None else (f"{fault.__module__}:{fault.__name__}",)
        given = programs.program(self._upstream, "cp2", planted)
        given = replace(
            given, ranks=2 * layout.width, arguments=(*given.arguments, *layout.options)
        )
        return located(self._traced(given), *self._references(name), (1,))

    def _both(self, name: str) -> tuple[RunTrace, RunTrace]:
        layout, one = LAYOUTS[name], programs.program(self._upstream, "one")
        options = (*one.arguments, *layout.options, *layout.alone)
        one = replace(one, ranks=layout.width, arguments=options)
        return self._traced(one), self._traced(one, disturbed=True)

    def _traced(self, program: Program, *, disturbed: bool = False) -> RunTrace:
        folder = self._folder / str(len(list(self._folder.iterdir())))
        request = TraceRequest((1,), disturbed)
        traced = replace(program, trace=request, arguments=(*program.arguments, *SHORT))
        outcome = self._stage.run(traced, folder=folder)
        assert outcome.failure is None, outcome.failure
        found = read_run(folder, program.ranks)
        assert found is not None
        return found


@pytest.fixture(scope="module")
def inside(stage: SessionServers, tmp_path_factory: pytest.TempPathFactory) -> Inside:
    return Inside(stage, tmp_path_factory.mktemp("inside"))


@pytest.mark.parametrize("name", LAYOUTS)
def test_all_rows_inside_of_experts_agree(inside: Inside, name: str) -> None:
    found = inside(name)
    assert (found.culprit, found.reason) == (None, AGREES), found
    assert found.left_out == () and found.compared > 100


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_defect_inside_of_experts_is_located(inside: Inside, name: str) -> None:
    layout = LAYOUTS[name]
    one = inside(name, layout.fault).culprit
    assert one is not None
    assert (one.phase, one.module) == ("forward", f"{LAYER}{layout.module}"), one
    assert one.tensor.endswith(layout.said) and one.positions, one
