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


def rehearsed(folder: Path, *overrides: str) -> Rehearsal:
    launch = read_command([*LAUNCH.split(), *overrides])
    request = Request(launch, MEGATRON, ENGINE, "", folder, default_cache(), None, iterations=2)
    try:
        return rehearse_verl(VerlRequest(request), lambda *_: None)
    except InputError as error:
        if isinstance(error.__cause__, UpstreamUnavailable):
            pytest.skip(str(error))
        raise


def test_sft_with_cp_agrees_with_one_rank(tmp_path: Path) -> None:
    result = rehearsed(tmp_path)
    main = result.main
    assert result.passed, result.headline
    assert [(one.comm_type, one.sizes) for one in main.path.taken] == [("p2p", (2,))]
    assert main.reference is not None and main.reference.ranks == 1
    assert len(main.losses) == 2 and "ray" in main.doubles
    norm = main.agreement.largest_grad_norm
    assert norm is not None and norm.relative < 5e-6


def test_an_override_that_does_not_exist_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"engine\.no_such"):
        rehearsed(tmp_path, "engine.no_such=1")
