"""What megatron-core 0.16.1 really does around dynamic ("hybrid") CP: pitfalls, executed.

The release never skips: a missing megatron-core is a failure. Main runs where a checkout is given;
`test_reruns` runs what starts no ranks on later commits.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
from types import SimpleNamespace

import pytest
import torch
from megatron.core.models.common.embeddings import rotary_pos_embedding
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.pipeline_parallel import hybrid_cp_schedule
from megatron.core.pipeline_parallel.schedules import (
    backward_step,
    forward_step,
    forward_step_calc_loss,
)
from megatron.core.ssm.mamba_context_parallel import MambaContextParallel
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.multi_latent_attention import MLASelfAttention
from megatron.core.transformer.multi_token_prediction import roll_tensor

from checks.skills.shared import REPOSITORY, SMALL, Group, check_release, output_calls, parse_core

CARD = REPOSITORY / "cards" / "dynamic-context-parallel" / "card.yaml"
SCHEDULING_FILES = ("data_schedule.py", "hybrid_cp_schedule.py", "packed_seq_params.py")


@pytest.fixture(scope="module", params=["megatron-core", "megatron-lm-r0.19", "megatron-lm-main"])
def hand_over(stage, request):
    """Passes on four ranks: static, dynamic on two, static, on one, static, a size alone."""
    upstream = request.getfixturevalue("upstream_of")(request.param)
    call = ("checks.skills.core_cases:dynamic", 4, "hybrid_context_parallel")
    return stage.call(*call, upstream=upstream)[1]


def test_installed_release_is_the_one_on_the_card(record_property):
    check_release(CARD, record_property)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="no token budget and no per-token loss"),
        pytest.param(
            {"pipeline_model_parallel_size": 2, "pipeline_dtype": torch.float32}, id="pipeline"
        ),
        pytest.param({"cuda_graph_impl": "local"}, id="local graphs"),
        pytest.param({"cuda_graph_impl": "transformer_engine"}, id="TE graphs"),
        pytest.param(
            {
                "context_parallel_size": 4,
                "cp_comm_type": "a2a+p2p",
                "hierarchical_context_parallel_sizes": [2, 2],
            },
            id="a2a+p2p",
        ),
    ],
)
def test_config_accepts_what_cannot_work(options):
    config = TransformerConfig(**SMALL, hybrid_context_parallel=True, **options)
    assert config.hybrid_context_parallel
    assert config.max_seqlen_per_dp_cp_rank is None
    assert config.calculate_per_token_loss is False


def test_config_does_refuse_something():
    with pytest.raises(TypeError, match="dynamic_context_parallel"):
        TransformerConfig(**SMALL, dynamic_context_parallel=True)
    with pytest.raises(ValueError, match="pipeline_dtype"):
        TransformerConfig(**SMALL, hybrid_context_parallel=True, pipeline_model_parallel_size=2)


def test_packing_carries_a_size_and_a_group():
    fields = {field.name: field.default for field in dataclasses.fields(PackedSeqParams)}
    assert fields["local_cp_size"] is None
    assert fields["cp_group"] is None
    assert not {"pad_between_seqs", "cp_partition_mode"} & set(fields), "these came later"


def groups_used(passes):
    return [step["group"] for step in passes]


def wrong(passes):
    return [step["error"] > 0.1 for step in passes]


def test_the_group_of_a_microbatch_stays_attached(hand_over):
    """The static pass after a dynamic one runs on the group of two, and is silently wrong."""
    static, dynamic, after = hand_over["static 4"][:3]
    assert groups_used([static, dynamic, after]) == ["static", "dynamic", "dynamic"]
    assert wrong([static, dynamic, after]) == [False, False, True]
    assert after["raised"] == ""


def test_size_one_switches_attention_off_for_good(hand_over):
    alone, after = hand_over["static 4"][3:5]
    assert groups_used([alone, after]) == ["none", "none"]
    assert wrong([alone, after]) == [False, True]
    refused = hand_over["static 4"][5]["raised"]
    assert "local_cp_size must be == 1" in refused, "no other size goes without a group"


def test_static_size_one_hands_over_no_stream(hand_over):
    static, dynamic = hand_over["static 1"][:2]
    assert static["error"] < 1e-12
    said = "AttributeError: 'NoneType' object has no attribute 'wait_event'"
    assert dynamic["raised"] == said
    assert hand_over["static 4"][1]["error"] < 1e-12, "with a static size of four there is one"


def test_two_levels_get_one_group(hand_over):
    static, dynamic = hand_over["levels"]
    assert static["error"] < 1e-12
    assert "a2a+p2p requires cp_group = [a2a_cp_group, p2p_cp_group]" in dynamic["raised"]


@pytest.fixture
def rope(monkeypatch):
    """Upstream's embedding under a static CP group of four; gives the rows or the group size."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: torch.device("cpu"))
    cut = "get_pos_emb_on_this_cp_rank"
    monkeypatch.setattr(rotary_pos_embedding, cut, lambda emb, _, group: group.size())
    embedding = rotary_pos_embedding.RotaryEmbedding(
        16, 1.0, use_cpu_initialization=True, cp_group=Group(4)
    )

    def ask(**options):
        found = embedding(64, **options)
        return f"cut by {found}" if isinstance(found, int) else f"{found.shape[0]} rows"

    return ask


def test_rope_without_a_group_is_cut_by_the_static_one(rope):
    """Size 1 comes with no group: a whole sequence gets a quarter of its positions."""
    assert rope(cp_group=None) == "cut by 4"
    assert rope(cp_group=Group(1)) == "64 rows"
    assert rope(cp_group=Group(2)) == "cut by 2"
    assert rope(packed_seq=True) == "64 rows", "packed input is cut later"


@pytest.mark.parametrize("size", [1, 2])
def test_mla_refuses_a_dynamic_size(size):
    hidden = torch.zeros(4, 1, 8)
    packed = PackedSeqParams(local_cp_size=size)
    ask = MLASelfAttention.get_query_key_value_tensors
    with pytest.raises(AssertionError, match="not supported with MLA yet"):
        ask(SimpleNamespace(), hidden, packed_seq_params=packed)
    with pytest.raises(AttributeError):
        ask(SimpleNamespace(), hidden, packed_seq_params=PackedSeqParams())


def calls_of(name):
    source = inspect.getsource(hybrid_cp_schedule.hybrid_context_parallel_forward_backward)
    return [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == name
    ]


def bound(function, call):
    positional = [ast.unparse(argument) for argument in call.args]
    named = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    return inspect.signature(function).bind(*positional, **named).arguments


def test_a_flag_is_passed_as_the_group_size():
    for call in calls_of("forward_step"):
        assert bound(forward_step, call)["cp_group_size"] == "collect_non_loss_data"
    assert len(calls_of("forward_step")) == 3


def test_backward_calls_fit_this_release():
    for call in calls_of("backward_step"):
        assert bound(backward_step, call)["model_type"] == "model_type"
    assert len(calls_of("backward_step")) == 3


def loss_of(loss_func, cp_group_size):
    config = SimpleNamespace(
        calculate_per_token_loss=True, timers=None, num_moe_experts=None, mtp_num_layers=None
    )
    value, _ = forward_step_calc_loss(
        SimpleNamespace(),
        torch.tensor(6.0),
        loss_func,
        config,
        None,
        False,
        1,
        [],
        cp_group_size,
        True,
    )
    return float(value)


def test_a_loss_of_two_values_becomes_zero():
    assert loss_of(lambda loss: (loss * 1, {}), False) == 0.0
    assert loss_of(lambda loss: (loss * 1, {}), 4) == 24.0, "with the size that was meant"


def test_a_loss_of_three_values_survives():
    assert loss_of(lambda loss: (loss * 1, torch.tensor(5), {}), False) == 6.0


def test_the_token_shift_uses_the_default_group():
    source = inspect.getsource(inspect.getmodule(roll_tensor))
    names = ("isend", "irecv")
    transfers = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in names
    ]
    assert len(transfers) >= 4
    assert [call for call in transfers if any(k.arg == "group" for k in call.keywords)] == []


def mamba(heads, groups, size):
    return MambaContextParallel(
        d_inner_local_tp=heads * 4,
        nheads_local_tp=heads,
        ngroups_local_tp=groups,
        d_state=4,
        cp_group=Group(size),
        conv1d_cp1=torch.nn.Conv1d(4, 4, 1),
        dt_bias_cp1=torch.zeros(heads),
        A_log_cp1=torch.zeros(heads),
        D_cp1=torch.zeros(heads),
        D_has_hdim=False,
    )


@pytest.mark.parametrize(
    ("heads", "groups", "size", "message"),
    [
        (4, 4, 8, "nheads must be evenly divisible"),
        (8, 3, 4, "cp_size must be evenly divisible by ngroups"),
        (8, 6, 4, "ngroups must be evenly divisible"),
    ],
)
def test_mamba_heads_and_groups_must_divide(heads, groups, size, message):
    with pytest.raises(AssertionError, match=message):
        mamba(heads, groups, size)
    assert mamba(8, 4, 4).cp_size == 4


def test_scheduling_prints_nothing(capsys, caplog):
    scheduler = hybrid_cp_schedule.BalancedCPScheduler(1024, Group(8))
    with caplog.at_level("DEBUG"):
        scheduled = scheduler.get_groups_and_subsamples([(0, 4096), (1, 300), (2, 1025)], None)
    assert {len(ids) for ids in scheduled[1][0]} == {1}
    assert (*capsys.readouterr(), caplog.text) == ("", "", "")
    trees = dict(parse_core())
    chosen = {path.name: tree for path, tree in trees.items() if path.name in SCHEDULING_FILES}
    assert set(chosen) == set(SCHEDULING_FILES)
    assert [name for name, tree in chosen.items() if any(output_calls(tree))] == []
    assert any(any(output_calls(tree)) for tree in trees.values()), "the scan finds others"
