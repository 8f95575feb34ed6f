"""The conformance matrix of verl: its data, its command, and a few cases that run.

What runs needs the extra ``verl`` and releases from the package index; it skips without them.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ringproof.cache import default_cache
from ringproof.cli.main import app
from ringproof.cli.rehearse import VERL_PACKAGES
from ringproof.errors import InputError
from ringproof.rehearsal.conform.cases import CASES, VERL, VERL_CASES, chosen
from ringproof.rehearsal.conform.record import Status
from ringproof.rehearsal.fixtures import ENGINE, MEGATRON
from ringproof.rehearsal.locate.locating import AGREES
from ringproof.rehearsal.runs.releases import BRIDGE, choose_releases
from ringproof.rehearsal.runs.server import Servers
from ringproof.rehearsal.runs.upstreams import open_upstream
from ringproof.rehearsal.verl.conforming import MODULES, VerlMatrix, words_of
from ringproof.rehearsal.verl.running import VerlRuns
from ringproof.rehearsal.verl.upstreams import open_stack, open_verl
from ringproof.stack.pairs import PAIRS

FAULTS = "checks.rehearsal.verl_faults"
NEWEST = next(iter(PAIRS))


def test_the_matrix_of_verl_is_sound() -> None:
    ids = [case.id for case in (*CASES, *VERL_CASES)]
    assert len(set(ids)) == len(ids) and len(VERL_CASES) > 40
    for case in VERL_CASES:
        assert case.model in VERL["models"] and case.data in MODULES, case.id
        assert case.path and case.ranks > 1, case.id
        asked = "context_parallel_size=" in case.arguments or "dynamic" in case.arguments
        assert asked, case.id


def test_places_of_settings_are_those_of_the_program() -> None:
    (case,) = chosen(["verl-critic-cp2"], among=VERL_CASES)
    program, own = words_of(case, case.arguments, case.ranks, vanilla=True)
    assert own == ["critic.megatron.context_parallel_size=2", "critic.ppo_max_token_len_per_gpu=64"]
    assert "critic.megatron.vanilla_mbridge=True" in program
    for case in VERL_CASES:
        words = (*words_of(case, case.arguments, case.ranks, vanilla=False)[0], case.id)
        assert not any("{" in word for word in words)


def test_unknown_cases_of_verl_are_refused() -> None:
    with pytest.raises(InputError, match="does not exist"):
        chosen(["static-p2p-cp2"], among=VERL_CASES)
    listed = CliRunner().invoke(app, ["conform", "--framework", "verl", "--list"]).output
    assert [line.split()[0] for line in listed.splitlines()] == [case.id for case in VERL_CASES]


@pytest.mark.parametrize("option", ["--verl", "--bridge"])
def test_options_of_verl_need_its_framework(option: str) -> None:
    done = CliRunner().invoke(app, ["conform", "--upstream", ".", option, "x"])
    assert isinstance(done.exception, InputError)
    assert "add --framework verl" in str(done.exception)


def test_a_launch_of_megatron_needs_an_upstream(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("torchrun pretrain_gpt.py --context-parallel-size 2\n")
    done = CliRunner().invoke(app, ["rehearse", str(script)])
    assert isinstance(done.exception, InputError)
    assert done.exception.field == "--upstream"


def test_what_the_user_names_is_taken_and_the_rest_fits_it(tmp_path: Path) -> None:
    def named(megatron: str, bridge: str = "", vanilla: bool = False) -> tuple[str, str, str]:
        found = choose_releases(megatron, bridge, vanilla=vanilla, cache=tmp_path, offline=True)
        return found.megatron, found.bridge, found.said

    old = "megatron-core==0.16.1"
    assert named(old) == (old, PAIRS[f"pip:{old}"], "")
    assert named("git:x@dev") == ("git:x@dev", BRIDGE, "")
    assert named(old, "here") == (old, "here", "")
    assert named(old, vanilla=True) == (old, "", "")
    megatron, bridge, said = named("", vanilla=True)
    assert (megatron, bridge) == (f"pip:{old}", "") and megatron in said


def test_offline_the_newest_pair_in_the_cache_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="cannot be had") as refused:
        choose_releases("", "", vanilla=False, cache=tmp_path, offline=True)
    assert refused.value.field == "--upstream"
    core, bridge = list(PAIRS.items())[1]
    here = {core, bridge, NEWEST}  # the newest Megatron-LM without its Megatron-Bridge

    def opened(spec: str, *, cache: Path, offline: bool) -> None:
        if spec not in here:
            raise InputError("pip", f"{spec} cannot be had; fill the cache")

    monkeypatch.setattr("ringproof.rehearsal.runs.releases.open_tree", opened)
    found = choose_releases("", "", vanilla=False, cache=tmp_path, offline=True)
    assert (found.megatron, found.bridge) == (core, bridge)
    assert core in found.said and bridge in found.said
    here.add(BRIDGE)
    found = choose_releases("", "", vanilla=False, cache=tmp_path, offline=True)
    assert (found.megatron, found.bridge) == (NEWEST, BRIDGE)
    older = choose_releases("", bridge.removeprefix("pip:"), cache=tmp_path, offline=True)
    assert older.megatron == core
    here.discard(BRIDGE)  # which a program on megatron-core alone does not use
    alone = choose_releases("", "", cache=tmp_path, offline=True, alone=True)
    assert (alone.megatron, alone.bridge) == (NEWEST, "") and alone.said.startswith(NEWEST)


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VerlMatrix]:
    missing = [n for n in (*VERL_PACKAGES, "mbridge") if importlib.util.find_spec(n) is None]
    if missing:
        pytest.skip(f"verl needs {', '.join(missing)}: pip install '.[verl]'")
    folder = tmp_path_factory.mktemp("verl-matrix")
    try:
        upstream = open_upstream(MEGATRON, ENGINE, cache=default_cache())
        verl = open_verl("", cache=default_cache(), offline=False)
    except InputError as error:
        pytest.skip(str(error))
    stack = open_stack(upstream, verl, "", vanilla=True, cache=default_cache(), offline=False)
    with Servers(folder, path=Path(__file__).parents[2]) as servers:
        runs = VerlRuns(servers, stack, folder, 2, "float32", 240.0, lambda *_: None)
        yield VerlMatrix(runs, folder, vanilla=True)


def status_of(matrix: VerlMatrix, name: str, *faults: str) -> tuple[Status, float | None]:
    """Return the verdict on a case with planted defects, and the difference of gradient norms."""
    (case,) = chosen([name], among=VERL_CASES)
    found = matrix.run(case, [f"{FAULTS}:{fault}" for fault in faults])
    return found.status, found.norm_difference


@pytest.mark.slow
def test_an_old_defect_that_is_planted_back_differs(matrix: VerlMatrix) -> None:
    """verl #4250: the loss was divided by CP twice, and labels were rolled on each rank alone."""
    assert status_of(matrix, "verl-sft-cp2")[0] is Status.AGREES
    status, norm = status_of(matrix, "verl-sft-cp2", "divide_by_cp")
    assert status is Status.DIFFERS and norm == pytest.approx(0.5, abs=1e-4)
    assert status_of(matrix, "verl-sft-cp2", "roll_on_each_rank")[0] is Status.DIFFERS


@pytest.mark.slow
def test_tokens_that_cp_does_not_divide_are_lost(matrix: VerlMatrix) -> None:
    """0.9.1 divides the tokens of each microbatch by CP without remainder."""
    status, norm = status_of(matrix, "verl-sft-cp4-per-token")
    assert status is Status.DIFFERS and norm is not None and 1e-3 < norm < 3e-2
    assert status_of(matrix, "verl-sft-cp4-per-token", "count_every_token")[0] is Status.AGREES


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_first_wrong_tensor_of_a_case_is_located(matrix: VerlMatrix) -> None:
    (static,) = chosen(["verl-sft-cp2"], among=VERL_CASES)
    agreeing = matrix.located(static, (), 2)
    assert agreeing.reason == AGREES and agreeing.compared > 200
    wrong = matrix.located(static, ["checks.faults.engine:lse_merge_skipped"], 1).culprit
    assert wrong is not None and wrong.phase == "forward"
    assert wrong.module.startswith("decoder.layers.0.self_attention.core_attention")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_factor_of_verl_is_located(matrix: VerlMatrix) -> None:
    static, counted = chosen(["verl-sft-cp2", "verl-sft-cp4-per-token"], among=VERL_CASES)
    lost = matrix.located(static, [f"{FAULTS}:divide_by_cp"], 1).culprit
    assert lost is not None and lost.phase == "loss" and "(1/CP)" in lost.factor
    # The tokens of each microbatch that CP does not divide.
    scaled = matrix.located(counted, (), 1).culprit
    assert scaled is not None and scaled.phase == "scale"
    assert "tokens, and those of the reference by" in scaled.factor
    assert re.search(r"megatron/transformer_impl\.py:\d+ \(the loss function\)", scaled.factor)


@pytest.mark.slow
def test_the_models_of_ppo_agree_and_a_wrong_path_is_named(matrix: VerlMatrix) -> None:
    for name in ("verl-ppo-cp2-kl", "verl-critic-cp2", "verl-reference-cp2"):
        assert status_of(matrix, name)[0] is Status.AGREES, name
    assert status_of(matrix, "verl-sft-hcp-2x2")[0] is Status.OTHER_PATH
    (case,) = chosen(["verl-sft-cp2"], among=VERL_CASES)
    unknown = replace(case, arguments="engine.no_such_setting=1")
    found = matrix.run(unknown)
    assert found.status is Status.NOT_OFFERED and "no_such_setting" in found.message
