"""Defects planted in a release are located; nothing is where the run agrees."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from checks.faults import engine, kinds, megatron, programs
from ringproof.rehearsal.fixtures import ComparedOutcome, SessionServers
from ringproof.rehearsal.locate.locating import AGREES, locate
from ringproof.rehearsal.locate.result import WrongPlace
from ringproof.rehearsal.protocol.program import Program
from ringproof.rehearsal.runs.outcome import Outcome

pytestmark = pytest.mark.timeout(900)  # three runs each: up to 208 s on a busy machine
RELEASE = "pip:megatron-core==0.19.2"
SHORT = ("--train-iters", "1", "--global-batch-size", "2")
ATTENTION = "self_attention.core_attention.fused_attention"
EP = ("--expert-model-parallel-size", "2")
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
RING = "dot_product_attention/context_parallel.py"


def _place(fault: object) -> str:
    """``module:function`` of a defect, as a program takes it; empty for ``None``."""
    # Callables of mypy have no name.
    return "" if fault is None else f"{fault.__module__}:{fault.__name__}"  # type: ignore[attr-defined]


class Located:
    """Locates what is planted in a short training with CP 2."""

    def __init__(self, stage: SessionServers, folder: Path) -> None:
        self._stage, self._folder = stage, folder
        self._upstream = stage.upstream(RELEASE)

    def __call__(
        self, fault: object = None, *options: str, alone: tuple[str, ...] = ()
    ) -> WrongPlace:
        """Return the location of a defect, ``None`` for none, with more options for both runs.

        Args:
            alone: Options of the reference, which has one rank.
        """
        name = _place(fault)
        given, reference = self._program("cp2", (name,) if name else ()), self._program("one")
        environment = {CONNECTIONS: "8" if "fsdp" in str(options) else "1"}  # FSDP needs several
        both = [
            replace(p, arguments=(*p.arguments, *options), environment=environment)
            for p in (given, reference)
        ]
        both[1] = replace(both[1], arguments=(*both[1].arguments, *alone))
        folder = self._folder / (name.rpartition(":")[2] or "clean")
        return locate(self._run, *both, 1, folder)

    def between(self, fault: object, *options: str) -> WrongPlace:
        """Return the location of a defect against the same program, both with CP 2.

        Args:
            options: Options of the program that may be wrong alone.
        """
        name = _place(fault)
        given, other = self._program("cp2", (name,) if name else ()), self._program("cp2")
        given = replace(given, arguments=(*given.arguments, *options))
        return locate(self._run, given, other, 1, self._folder / "between")

    def compared(self, fault: object = None) -> ComparedOutcome:
        """Return what the fixture finds of a defect, ``None`` for none."""
        name = _place(fault)
        given = self._program("cp2", (name,) if name else ())
        return self._stage.compare(given, self._program("one"))

    def _program(self, name: str, faults: tuple[str, ...] = ()) -> Program:
        found = programs.program(self._upstream, name, faults)
        return replace(found, arguments=(*found.arguments, *SHORT))

    def _run(self, program: Program, folder: Path) -> Outcome:
        return self._stage.run(program, folder=folder)


@pytest.fixture(scope="module")
def located(stage: SessionServers, tmp_path_factory: pytest.TempPathFactory) -> Located:
    return Located(stage, tmp_path_factory.mktemp("locate"))


@pytest.mark.slow
@pytest.mark.parametrize("fault", [None, engine.lse_merge_skipped], ids=["agrees", "defect"])
def test_the_fixture_says_what_is_wrong_first(located: Located, fault: object) -> None:
    found = located.compared(fault).first_wrong
    assert (found is None) is (fault is None)
    assert found is None or f"layers.0.{ATTENTION} is wrong in the forward" in repr(found)


@pytest.mark.slow
def test_a_run_that_agrees_has_no_culprit(located: Located) -> None:
    found = located()
    assert found.culprit is None
    assert found.reason == "every tensor that was compared agrees"
    assert found.compared > 100 and found.left_out == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "phase", "module", "file"),
    [
        (engine.lse_merge_skipped, "forward", f"decoder.layers.0.{ATTENTION}", RING),
        (engine.key_gradient_lost, "backward", f"decoder.layers.1.{ATTENTION}", RING),
        (megatron.gradients_without_cp, "reduction", "output_layer", "finalize_model_grads.py"),
    ],
    ids=["forward", "backward", "reduction"],
)
def test_a_planted_defect_is_located(
    located: Located, fault: object, phase: str, module: str, file: str
) -> None:
    place = located(fault)
    found = place.culprit
    assert found is not None and not place.others
    assert (found.phase, found.module, found.step) == (phase, module, 1)
    assert file in found.computed_at and found.computed_at.rpartition(":")[2].isdigit()
    assert found.error > 1000 * found.tolerance
    good = [one for one in found.evidence if not one.wrong]
    assert bool(good) is (phase != "reduction")
    assert (RING in found.applied_at) is (phase == "backward")


@pytest.mark.slow
def test_a_defect_of_another_microbatch_is_listed(located: Located) -> None:
    place = located(kinds.layers_scaled_by_turns)
    both = filter(None, [place.culprit, *place.others])
    found = [(one.phase, one.module, one.microbatches) for one in both]
    module = "decoder.layers.{}.self_attention.core_attention"
    assert found == [("forward", module.format(0), (0,)), ("forward", module.format(1), (1,))]


@pytest.mark.slow
def test_the_ranks_that_the_norm_of_a_distributed_optimizer_lacks_are_named(
    located: Located,
) -> None:
    place = located(kinds.norm_of_one_shard, "--use-distributed-optimizer")
    assert place.culprit is not None and place.culprit.phase == "norm"
    assert place.culprit.factor.endswith("which lacks [1] with other parts")
    assert place.culprit.called_from.startswith("megatron/core/optimizer/optimizer.py:")
    assert not any("reduction" in what for what, _ in place.left_out)


FSDP = {
    "torch": "--use-torch-fsdp2 --ckpt-format torch_dist",
    "megatron": "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params"
    " --ckpt-format fsdp_dtensor --use-distributed-optimizer",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", FSDP)
def test_parameters_that_fsdp_deals_out_are_compared(located: Located, kind: str) -> None:
    """FSDP frees gathered parameters, calls a model without its hooks, and deals out gradients."""
    found = located(None, *FSDP[kind].split(), "--no-gradient-accumulation-fusion")
    assert (found.culprit, found.reason) == (None, AGREES) and found.compared > 100, found
    lost = ("distributed optimizer", "without a counterpart")
    assert not any(word in what for what, _ in found.left_out for word in lost)


@pytest.mark.slow
def test_a_factor_that_the_loss_has_is_not_that_of_the_reduction(located: Located) -> None:
    place = located(kinds.tokens_counted_over_cp)
    assert place.culprit is not None and place.culprit.phase == "loss"
    assert "1 times that of the reference where this layout needs 2" in place.culprit.tensor
    near = [place.culprit.factor.find(f"{name}.py:") for name in ("schedules", "grads")]
    assert -1 < near[0] < near[1]


@pytest.mark.slow
@pytest.mark.parametrize("fault", [None, engine.chunks_unsorted], ids=["agrees", "defect"])
def test_one_of_two_options_is_located_against_the_other(located: Located, fault: object) -> None:
    """Both have CP 2, so that the ranks of the one that is the reference are put together."""
    found = located.between(fault, "--cp-comm-type", "a2a")
    one = found.culprit
    place = fault and ("forward", f"decoder.layers.0.{ATTENTION}")
    assert (one and (one.phase, one.module)) == place, found
    assert fault or found.reason == AGREES


@pytest.mark.slow
def test_one_transformer_engine_is_located_against_another(
    stage: SessionServers, tmp_path: Path
) -> None:
    """2.16 computes attention of padding at the tail, which is not declared (TE #3331)."""
    old, new = (
        replace(
            programs.program(
                stage.upstream("NVIDIA/Megatron-LM@dev", f"pip:transformer-engine=={version}"),
                "packed", (_place(kinds.padding_undeclared),),
            ),
            ranks=2,
        )
        for version in ("2.16.0", "2.18.0")
    )  # fmt: skip
    old, new = (replace(p, arguments=(*p.arguments, *kinds.PACKS, *SHORT)) for p in (old, new))

    def run(program: Program, folder: Path) -> Outcome:
        return stage.run(program, folder=folder)

    found = locate(run, old, new, 1, tmp_path / "trace").culprit
    assert found is not None
    assert (found.phase, found.module) == ("forward", f"decoder.layers.0.{ATTENTION}")


LAYER = "decoder.layers.0.mlp"
EXPERTS = (*programs.MOE, *EP, "--no-gradient-accumulation-fusion")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "place"),
    [
        (None, None),
        (
            kinds.expert_gradient_doubled,
            ("reduction", f"{LAYER}.experts.linear_fc1", "gradient of weight3"),
        ),
        (
            kinds.dispatched_row_lost,
            (
                "forward",
                LAYER,
                "input permuted_local_hidden_states, which the forward of "
                f"{LAYER} computed after {LAYER}.router (rows of expert 0)",
            ),
        ),
    ],
    ids=["agrees", "gradient", "dispatch"],
)
def test_experts_of_two_ranks_are_those_of_one(
    located: Located, fault: object, place: tuple[str, str, str] | None
) -> None:
    """The reference has all four experts on one rank, the run two on each."""
    found = located(fault, *EXPERTS, alone=("--expert-model-parallel-size", "1"))
    one = found.culprit
    assert (one and (one.phase, one.module, one.tensor)) == place, found
    assert found.left_out == ()
