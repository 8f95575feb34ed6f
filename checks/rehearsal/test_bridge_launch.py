"""``ringproof rehearse`` runs launches of Megatron-Bridge with CP and without.

Needs the extra ``bridge`` and releases of Bridge, Megatron-Core and Transformer Engine from the
package index; the tests that train skip without them.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ringproof.cache import default_cache
from ringproof.cli.main import app
from ringproof.cli.rehearse import BRIDGE_PACKAGES
from ringproof.errors import InputError
from ringproof.launch.overrides import BRIDGE
from ringproof.launch.reading import read_command
from ringproof.launch.small.bridge import (
    EVERY,
    check_config,
    hide_made_up,
    put_tokens,
    shrink_settings,
)
from ringproof.launch.small.verl import OverrideDraft, put_reference, read_layout, shrink_ranks
from ringproof.rehearsal.bridge.rehearsing import BridgeRequest, rehearse_bridge
from ringproof.rehearsal.bridge.upstreams import calls_bridge, is_bridge
from ringproof.rehearsal.fixtures import ENGINE
from ringproof.rehearsal.locate.kept import read_trace
from ringproof.rehearsal.locate.locating import AGREES, located
from ringproof.rehearsal.rehearsing import Request
from ringproof.rehearsal.verdict.variant import Rehearsal
from ringproof.stack.pairs import PAIRS
from ringproof.upstream.tree import UpstreamUnavailable

RELEASE = "pip:megatron-bridge==0.5.1"
UNFIT = ("pip:megatron-core==0.16.1", "pip:megatron-bridge==0.6.2")
RECIPE = "llama3_8b_pretrain_config"
LAUNCH = ("torchrun", "--nproc-per-node", "2", "run_recipe.py", "--recipe", RECIPE)
TUNED = (
    "--recipe=llama32_1b_sft_config", "model.context_parallel_size=2",
    "model.calculate_per_token_loss=true", "ddp.average_in_collective=false",
    "checkpoint.pretrained_checkpoint=/models/llama32",
    "dataset.offline_packing_specs.pad_seq_to_mult=4",
)  # fmt: skip
SCRIPT = (Path(__file__).parents[2] / "examples" / "train_mine.py").read_text(encoding="utf-8")
PLANTED = f"""
import sys

sys.path.append({str(Path(__file__).parents[2])!r})
from checks.faults.engine import chunks_unsorted

chunks_unsorted()
"""
RAISING = """
from megatron.bridge.training import gpt_step
from megatron.core import parallel_state

own = gpt_step.masked_next_token_loss


def raising(*given, **named):
    if parallel_state.get_context_parallel_world_size() > 1:
        raise ValueError("a mask that does not fit")
    return own(*given, **named)


gpt_step.masked_next_token_loss = raising
"""
WRAPPED = """
import copy
from megatron.bridge.models.nemotron_vl.modeling_nemotron_vl import NemotronVLModel

config.model.cp_comm_type = "p2p"
config.model.calculate_per_token_loss = True
config.ddp.average_in_collective = False


def wrapped(chunks):
    for one in chunks:  # as the provider of these models makes the model inside
        one.config = copy.deepcopy(one.config)
    outer = [NemotronVLModel(GIVEN, llava_model=one) for one in chunks]
    for one, inner in zip(outer, chunks):
        one.model_type = inner.model_type
        one.pre_process, one.post_process = inner.pre_process, inner.post_process
    return outer


config.model.register_pre_wrap_hook(wrapped)
"""


def needs_packages() -> None:
    missing = [name for name in BRIDGE_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"Megatron-Bridge needs {', '.join(missing)}: pip install '.[bridge]'")


def rehearsed(
    folder: Path, *words: str, pair: tuple[str, str] = (RELEASE, ""),
    launch: Sequence[str] = LAUNCH, kept: Path | None = None,
) -> Rehearsal:  # fmt: skip
    needs_packages()
    megatron, bridge = pair
    read = read_command([*launch, *words])
    request = Request(
        read, megatron, ENGINE, "", folder, default_cache(), None, iterations=2, locates=True,
        keeps=kept,
    )  # fmt: skip
    try:
        return rehearse_bridge(BridgeRequest(request, bridge), lambda *_: None)
    except InputError as error:
        if isinstance(error.__cause__, UpstreamUnavailable):
            pytest.skip(str(error))
        raise


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_recipe_with_cp_agrees_with_one_rank(tmp_path: Path) -> None:
    result = rehearsed(tmp_path / "out", kept=tmp_path / "kept")
    main = result.main
    assert result.passed, result.headline
    assert [(one.comm_type, one.sizes) for one in main.path.taken] == [("p2p", (2,))]
    assert main.reference is not None and main.reference.ranks == 1
    norm = main.agreement.largest_grad_norm
    assert norm is not None and norm.relative < 5e-6
    assert main.outcome is not None and main.reference_outcome is not None
    assert main.outcome.tokens == main.reference_outcome.tokens != {}
    assert len(main.losses) == 2 and not main.needs
    assert main.located is None and main.traces == tmp_path / "kept" / "launch"
    traces = [read_trace(main.traces / name, "A") for name in ("run", "reference", "disturbed")]
    compared = located(*(one.run for one in traces), (1, 2))
    assert compared.reason == AGREES and compared.compared > 50
    assert "model.seq_length" in {change.what for change in main.changes}


@pytest.mark.slow
def test_the_made_up_tokenizer_marks_the_answers_of_a_conversation(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    checkpoint = importlib.import_module("ringproof.rehearsal.verl.ranks.checkpoint")
    checkpoint.save_tokenizer(tmp_path, 128)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts = {"user": "t1 t2", "assistant": "t3 t4"}
    turns = [{"role": role, "content": text} for role, text in texts.items()]
    given = {"tokenize": True, "return_dict": True, "return_assistant_tokens_mask": True}
    found = tokenizer.apply_chat_template(turns, **given)
    assert found["input_ids"] == [1, 2, 3, 4, tokenizer.eos_token_id]
    assert found["assistant_masks"] == [0, 0, 1, 1, 1]


def test_scripts_of_bridge_are_told_by_what_they_import(tmp_path: Path) -> None:
    mine, other = tmp_path / "train_mine.py", tmp_path / "run_recipe.py"
    mine.write_text(SCRIPT)
    other.write_text("import megatron.core\n")  # a program of the user's with Bridge's name
    assert calls_bridge(str(mine)) and calls_bridge("scripts/training/run_recipe.py")
    assert not calls_bridge(str(other)) and not calls_bridge("pretrain_gpt.py")


@pytest.mark.parametrize("bridge", ["megatron-bridge==0.5.1", ""])
def test_without_a_network_and_a_cache_the_command_says_what_to_name(
    tmp_path: Path, bridge: str
) -> None:
    needs_packages()
    words = ["--bridge", bridge] if bridge else []
    command = ["rehearse", *words, "--offline", "--cache", str(tmp_path), "--force"]
    done = CliRunner().invoke(app, [*command, "--", *LAUNCH])
    assert isinstance(done.exception, InputError), done.output
    assert "name a checkout" in str(done.exception) or "cache" in str(done.exception)


@pytest.mark.slow
def test_packed_fine_tuning_agrees_and_needs_no_checkpoint(tmp_path: Path) -> None:
    result = rehearsed(tmp_path, *TUNED, pair=("", ""))  # the newest releases
    assert result.passed, result.headline
    main = result.main
    assert all(one in main.megatron for one in next(iter(PAIRS.items())))
    assert main.outcome is not None and main.reference_outcome is not None
    assert main.outcome.tokens == main.reference_outcome.tokens != {}
    changes = {change.what: change.before for change in main.changes}
    assert changes["model.num_layers"] == "of the model"
    assert changes["checkpoint.pretrained_checkpoint"] == "/models/llama32"


def rehearsed_with(lines: str, folder: Path) -> Rehearsal:
    """Rehearse the user's own script on two ranks, with lines in front of its last block."""
    head, tail = SCRIPT.split("if __name__")
    script = folder / "train_mine.py"
    script.write_text(f"{head}{lines}\nif __name__{tail}")
    launch = ("torchrun", "--nproc-per-node=2", str(script))
    return rehearsed(folder / "out", launch=launch, pair=("", ""))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_defect_in_a_launch_of_bridge_is_located(tmp_path: Path) -> None:
    main = rehearsed_with(PLANTED, tmp_path).main
    culprit = main.located and main.located.culprit
    assert culprit is not None, main.located
    assert (culprit.phase, culprit.step, culprit.ranks) == ("forward", 1, (0, 1))
    assert culprit.module.startswith("decoder.layers.0.self_attention.core_attention")
    assert "context_parallel.py" in culprit.computed_at


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_launch_of_bridge_that_raises_is_traced_up_to_there(tmp_path: Path) -> None:
    main = rehearsed_with(RAISING, tmp_path).main
    assert main.refusal is not None and "does not fit" in main.refusal.message, main.headline
    assert main.located is not None and main.located.culprit is None
    assert "ValueError: a mask that does not fit; the last tensor that" in main.located.reason
    assert "output_layer in step 1, microbatch 0" in main.located.reason
    assert main.located.compared > 20 and main.reference is not None


@pytest.mark.slow
def test_a_script_of_a_user_is_rehearsed(tmp_path: Path) -> None:
    script = tmp_path / "train_mine.py"
    script.write_text(SCRIPT)
    result = rehearsed(tmp_path / "out", launch=("torchrun", "--nproc-per-node=2", str(script)))
    assert result.passed, result.headline
    assert [(one.comm_type, one.sizes) for one in result.main.path.taken] == [("a2a", (2,))]


@pytest.mark.slow
@pytest.mark.parametrize("given", ["None", "config.model"])
def test_gradients_that_are_not_finalized_differ(tmp_path: Path, given: str) -> None:
    """Bridge #4974: wrappers of models with pictures kept another configuration than training.

    Up to 0.5.1 they got none, so that gradients were neither summed over ranks nor divided by
    tokens. Around a language model the same wrapper shows it.
    """
    head, tail = SCRIPT.split("if __name__")
    script = tmp_path / "train_mine.py"
    script.write_text(f"{head}{WRAPPED.replace('GIVEN', given)}\nif __name__{tail}")
    launch = ("torchrun", "--nproc-per-node=2", str(script))
    main = rehearsed(tmp_path / "out", launch=launch).main
    assert main.starts, main.headline
    if given == "None":
        first = main.agreement.first
        assert main.agreement.agrees is False and first is not None, main.headline
        assert first.name == "grad norm" and first.iteration == 1
    else:
        assert main.passed, main.headline


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "pair", "message"),
    [
        (["model.no_such=1"], (RELEASE, ""), "OverridesError.*Could not override 'model.no_such'"),
        (
            ["--recipe", "llama3_8b_pretrain"],
            (RELEASE, ""),
            "no recipe .*near it are llama3_8b_pretrain_conf",
        ),
        ([], UNFIT, "do not fit together: ImportError"),
    ],
    ids=["override", "recipe", "versions"],
)
def test_what_bridge_does_not_have_is_bad_input(
    tmp_path: Path, words: list[str], pair: tuple[str, str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        rehearsed(tmp_path, *words, pair=pair)


def test_an_upstream_is_bridge_by_its_name_or_its_files(tmp_path: Path) -> None:
    (tmp_path / "b" / "src" / "megatron" / "bridge").mkdir(parents=True)
    names = ("pip:megatron-bridge==0.5.1", "fetched:NVIDIA-NeMo/Megatron-Bridge@main",
             "x/megatron_bridge-0.4.2-py3-none-any.whl", str(tmp_path / "b"))  # fmt: skip
    assert all(map(is_bridge, names))
    others = ("megatron-core==0.18.2", "git:../Megatron-LM@megatron-bridge", str(tmp_path))
    assert not any(map(is_bridge, others))


def small(world: int, **model: object) -> dict[str, object]:
    """Shrink a configuration, and return its model."""
    sizes = {"num_layers": EVERY, "num_attention_heads": 2 * EVERY, "num_query_groups": EVERY}
    config = {
        "model": {"seq_length": 8192, "kv_channels": 128, "hidden_size": 4096, **sizes, **model},
        "train": {"micro_batch_size": 1, "global_batch_size": 512, "train_iters": 1000},
        "dataset": {"sequence_length": 8192},
    }
    draft = OverrideDraft(config)
    before = read_layout(draft, BRIDGE, world)
    after = shrink_ranks(draft, BRIDGE, before, 32)
    shrink_settings(draft, after, 2, "float32")
    put_tokens(draft, "made-up")
    assert draft.config["train"]["global_batch_size"] % after.data == 0
    lengths = draft.config["dataset"]["sequence_length"], draft.config["model"]["seq_length"]
    assert (lengths[0] == lengths[1]) is (model.get("seq_length", 8192) == 8192)
    return draft.config["model"]


def test_heads_layers_and_length_fit_the_groups() -> None:
    parallel = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2,
                "context_parallel_size": 2, "sequence_parallel": True}  # fmt: skip
    model = small(8, **parallel)
    assert model["num_query_groups"] == 4 and model["num_attention_heads"] == 8
    assert model["num_layers"] == 2 and model["seq_length"] == 128
    wide = small(16, context_parallel_size=8, tensor_model_parallel_size=2, sequence_parallel=True)
    assert wide["seq_length"] % (2 * 8) == 0 and wide["num_query_groups"] % 8 == 0


def test_a_loss_whose_gradient_is_bfloat16_is_not_fused_in_float32() -> None:
    """A flip of such a rounding is no unit of float32, and looks like a wrong gradient."""
    assert small(2, cross_entropy_loss_fusion=True)["cross_entropy_loss_fusion"] is False
    assert "cross_entropy_loss_fusion" not in small(2)


def test_a_pattern_of_layers_is_shortened_with_their_number() -> None:
    """Bridge refuses a number that is not the pattern's, so one that is not stays as it is."""
    pattern = "MEMEM*EMEMEM*E"
    for name in ("hybrid_layer_pattern", "hybrid_override_pattern"):
        model = small(2, pipeline_model_parallel_size=2, num_layers=14, **{name: pattern})
        assert (model[name], model["num_layers"]) == ("ME*ME*", 6)
        assert small(1, num_layers=13, **{name: pattern})["num_layers"] == 13


PACKS = {"packed_sequence_specs": {"packed_sequence_size": 4096}}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model": {"transformer": {"context_parallel_size": 2}}}, r"model\.transformer"),
        ({"model": {"context_parallel_size": 2}, "peft": {"dim": 8}}, "peft: .*; give peft=null"),
        ({"model": {"context_parallel_size": 2}, "dataset": PACKS}, r"packed_sequence_specs=null"),
    ],
    ids=["builder", "adapters", "packing"],
)
def test_what_only_the_rehearsal_lets_fail_is_no_verdict(
    config: dict[str, Any], message: str
) -> None:
    """A model of a builder would be taken for one without CP; the others stop in Bridge's code."""
    with pytest.raises(InputError, match=message):
        check_config(config)


def test_what_can_be_rehearsed_is_not_refused() -> None:
    unpacked = {"packed_sequence_specs": {"packed_sequence_size": -1}}
    offline = {"offline_packing_specs": {"packed_sequence_size": 4096}}
    for dataset in (unpacked, offline, {"packed_sequence_specs": None}, None, "..."):
        check_config({"model": {"context_parallel_size": 2}, "dataset": dataset, "peft": None})
    check_config({"model": {"context_parallel_size": 1}, "dataset": PACKS})
    check_config({"model": {}, "dataset": PACKS})


def test_sizes_of_a_model_of_a_hub_are_not_stated() -> None:
    draft = OverrideDraft({"model": {"num_layers": EVERY, "seq_length": 8192}})
    shrink_settings(draft, read_layout(draft, BRIDGE, 1), 2, "float32")
    changes = {one.what: one.before for one in hide_made_up(draft.changes)}
    assert changes["model.num_layers"] == "of the model"
    assert changes["model.seq_length"] == "8192"


def test_what_is_not_traced_keeps_no_trace(tmp_path: Path) -> None:
    script = tmp_path / "loop.py"
    script.write_text("import megatron.core.parallel_state\n", "utf-8")
    words = ["--upstream", "megatron-core==0.19.2", "--keep-trace", str(tmp_path / "kept"), "--"]
    launch = ["torchrun", "--nproc-per-node", "2", str(script)]
    done = CliRunner().invoke(app, ["rehearse", *words, *launch])
    assert isinstance(done.exception, InputError)
    said = "--keep-trace: a program of your own is not traced; leave the option out"
    assert str(done.exception) == said


def test_the_reference_has_no_levels() -> None:
    """Megatron refuses sizes of levels whose product is not the size of CP."""
    levels = {"context_parallel_size": 3, "hierarchical_context_parallel_sizes": [3]}
    draft = OverrideDraft({"model": {"cp_comm_type": "p2p", **levels}})
    after = put_reference(draft, BRIDGE, read_layout(draft, BRIDGE, 3))
    assert after.world == 1 and draft.config["model"]["context_parallel_size"] == 1
    assert draft.config["model"]["hierarchical_context_parallel_sizes"] is None


def test_what_upstream_refuses_in_full_stays_refused_in_small() -> None:
    """A length that 2 * CP does not divide, and heads that all-to-all does not divide."""
    model = small(8, context_parallel_size=4, seq_length=8196, num_query_groups=2)
    assert model["seq_length"] % 8 == 4 and model["num_query_groups"] == 2
