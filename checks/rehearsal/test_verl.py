"""verl's own trainer of SFT runs in a rehearsal, with CP and without, and the losses agree.

Needs the extra ``verl`` and releases of verl, Megatron-Core and Transformer Engine from the package
index; the tests skip without them.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from ringproof.cache import default_cache
from ringproof.cli.rehearse import VERL_PACKAGES
from ringproof.errors import InputError
from ringproof.launch.reading import read_command
from ringproof.rehearsal.fixtures import ENGINE, MEGATRON
from ringproof.rehearsal.rehearsing import Request
from ringproof.rehearsal.runs.releases import BRIDGE
from ringproof.rehearsal.verdict.variant import Rehearsal
from ringproof.rehearsal.verl.rehearsing import VerlRequest, rehearse_verl
from ringproof.upstream.tree import UpstreamUnavailable

pytestmark = pytest.mark.slow

LAUNCH = (
    "torchrun --nproc_per_node=2 -m verl.trainer.sft_trainer engine=megatron optim=megatron "
    "model.path=Qwen/Qwen3-8B engine.vanilla_mbridge=True engine.context_parallel_size=2"
)


@pytest.fixture(scope="module", autouse=True)
def requirements() -> None:
    missing = [n for n in (*VERL_PACKAGES, "mbridge") if importlib.util.find_spec(n) is None]
    if missing:
        pytest.skip(f"verl needs {', '.join(missing)}: pip install '.[verl]'")


def rehearsed(
    folder: Path, *overrides: str, ranks: int = 2, verl: str = "", bridge: str = ""
) -> Rehearsal:
    words = LAUNCH.replace("node=2", f"node={ranks}").split()
    launch = read_command([*words, *overrides])
    request = Request(launch, MEGATRON, ENGINE, "", folder, default_cache(), None, iterations=2)
    try:
        return rehearse_verl(VerlRequest(request, verl, bridge), lambda *_: None)
    except InputError as error:
        if isinstance(error.__cause__, UpstreamUnavailable):
            pytest.skip(str(error))
        raise


def test_sft_with_cp_agrees_with_one_rank(tmp_path: Path) -> None:
    result = rehearsed(tmp_path / "it's (v2), a=b")  # a name that hydra reads only in quotes
    main = result.main
    assert result.passed, result.headline
    assert [(one.comm_type, one.sizes) for one in main.path.taken] == [("p2p", (2,))]
    assert main.reference is not None and main.reference.ranks == 1
    assert len(main.losses) == 2 and "ray" in main.doubles
    norm = main.agreement.largest_grad_norm
    assert norm is not None and norm.relative < 5e-6
    assert main.outcome is not None and not main.outcome.tokens  # verl gives Megatron no labels
    assert "same tokens was not checked" in main.agreement.reason


def test_an_override_that_does_not_exist_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"engine\.no_such"):
        rehearsed(tmp_path, "engine.no_such=1")


def test_versions_that_do_not_fit_are_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="do not fit together: ImportError"):
        rehearsed(tmp_path, "engine.vanilla_mbridge=False", bridge=BRIDGE)


def first_norm(result: Rehearsal) -> tuple[float, float]:
    """Return the relative differences of the first loss and of the first gradient norm."""
    compared = [item for item in result.main.agreement.differences if item.iteration == 1]
    loss, norm = (next(i.relative for i in compared if i.kind == kind) for kind in ("loss", "norm"))
    return loss, norm


def test_the_router_s_loss_of_0_8_is_scaled_by_cp(tmp_path: Path) -> None:
    """verl #6609: with losses per token, CP 2 halved the gradient of the router's losses."""
    launch = (
        "model.path=Qwen/Qwen3-30B-A3B",
        "++engine.override_transformer_config.calculate_per_token_loss=True",
        "++engine.override_transformer_config.moe_z_loss_coeff=0.01",
    )
    defective = rehearsed(tmp_path / "defective", *launch, verl="pip:verl==0.8.0")
    loss, norm = first_norm(defective)
    assert not defective.passed and loss < 2e-6 and 0.4 < norm < 0.6
    assert first_norm(rehearsed(tmp_path / "mended", *launch))[1] < 0.02


def test_levels_whose_groups_verl_does_not_build_are_named(tmp_path: Path) -> None:
    levels = "++engine.override_transformer_config.cp_comm_type=a2a+p2p"
    main = rehearsed(tmp_path, levels, "engine.context_parallel_size=4", ranks=4).main
    assert not main.starts and not main.path.as_requested
    assert "hierarchical_context_parallel_sizes" in main.path.departures[0]
