"""What Megatron-core does with hierarchical CP on Transformer Engine 2.20.2, executed.

Megatron-core 0.16.1 never skips: a missing one is a failure. Main and dev run where a checkout is
given.
"""

from __future__ import annotations

import ast
import itertools

import pytest
import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules
from megatron.core.utils import get_batch_on_this_cp_rank

from checks.skills.shared import (
    REPOSITORY,
    SMALL,
    Group,
    check_release,
    literals,
    mentions,
    output_calls,
    parse_core,
    spec_of,
)
from ringproof.cards import load_card
from ringproof.rehearsal.protocol.program import calling

CARD = REPOSITORY / "cards" / "hierarchical-context-parallel" / "card.yaml"
MARKER = "HIERARCHICAL_CONTEXT_PARALLEL_GROUPS"
LEVELS = [
    ["HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L0", [0, 1]],
    ["HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L1", [1, 3]],
]


VERSIONS = ("megatron-core", "megatron-lm-r0.19", "megatron-lm-main", "megatron-lm-dev")


@pytest.fixture(scope="module", params=VERSIONS)
def ranks(stage, request):
    """Four ranks on which Megatron-core built and handed over level groups, by version."""
    upstream = stage.upstream(spec_of(load_card(CARD), request.param))
    call = calling(upstream, "checks.skills.core_cases:hierarchical", None, 4, dtype="float64")
    outcome = stage.run(call, preload="")
    assert outcome.failure is None, outcome.failure
    return outcome.ranks


@pytest.fixture(scope="module")
def found(ranks):
    """What rank 1 reports."""
    return ranks[1].results


@pytest.fixture(scope="module")
def package():
    return tuple(parse_core())


def test_installed_release_is_the_one_on_the_card(record_property):
    check_release(CARD, record_property)


@pytest.mark.parametrize(
    ("comm_type", "sizes"),
    [
        pytest.param("a2a+p2p", None, id="no sizes"),
        pytest.param("a2a+p2p", [2, 3], id="product 6 for CP 4"),
        pytest.param("a2a+p2p", [2, 2, 2], id="three levels"),
        pytest.param("banana", [2, 2], id="unknown type"),
    ],
)
def test_config_accepts_what_cannot_work(comm_type, sizes):
    config = TransformerConfig(
        **SMALL,
        context_parallel_size=4,
        cp_comm_type=comm_type,
        hierarchical_context_parallel_sizes=sizes,
    )
    assert config.cp_comm_type == comm_type
    assert config.hierarchical_context_parallel_sizes == sizes


@pytest.mark.parametrize(
    ("comm_type", "message"),
    [(["p2p"], "Length of cp_comm_type"), (("a2a+p2p",), "Unsupported communication type")],
)
def test_config_checks_only_list_length_and_value_type(comm_type, message):
    with pytest.raises(AssertionError, match=message):
        TransformerConfig(**SMALL, context_parallel_size=4, cp_comm_type=comm_type)


class RecordingAttention(torch.nn.Module):
    def __init__(self, **received):
        super().__init__()
        self.received = received


def comm_type_of_layer(comm_type, layer_number):
    config = TransformerConfig(**SMALL, context_parallel_size=4, cp_comm_type=comm_type)
    groups = ProcessGroupCollection(tp=None, cp=None, pp=None)
    parts = TransformerLayerSubmodules(self_attention=RecordingAttention)
    layer = TransformerLayer(config, parts, layer_number=layer_number, pg_collection=groups)
    return layer.self_attention.received["cp_comm_type"]


def test_per_layer_list_is_off_by_one():
    per_layer = ["p2p", "a2a+p2p"]
    assert comm_type_of_layer(per_layer, layer_number=1) == per_layer[1] != per_layer[0]
    with pytest.raises(IndexError):
        comm_type_of_layer(per_layer, layer_number=2)


@pytest.mark.parametrize("layer_number", [1, 2])
def test_one_string_reaches_every_layer(layer_number):
    assert comm_type_of_layer("a2a+p2p", layer_number) == "a2a+p2p"


def test_local_attention_refuses_context_parallelism():
    def build(context_parallel_size):
        config = TransformerConfig(**SMALL, context_parallel_size=context_parallel_size)
        groups = ProcessGroupCollection(tp=Group(1))
        return DotProductAttention(config, 1, AttnMaskType.causal, "self", pg_collection=groups)

    assert build(1) is not None
    with pytest.raises(AssertionError, match="only supported by TEDotProductAttention"):
        build(2)


def test_wrong_product_is_an_empty_assertion(found):
    assert found["wrong product"] == "AssertionError: "
    assert found["two"]["levels"] == LEVELS, "the right product is accepted"


def test_any_number_of_levels_is_built(found):
    assert found["three"]["levels"] == [*LEVELS, [LEVELS[0][0].replace("_L0", "_L2"), [1]]]


def test_three_levels_are_refused_by_attention(found):
    assert found["attend, three"]["of the state"], "Megatron hands them over"
    said = found["attend, three"]["raised"]
    assert "a2a+p2p requires cp_group = [a2a_cp_group, p2p_cp_group]!" in said
    assert found["attend, two"]["raised"] == ""


def test_an_engine_before_1_12_is_refused(found):
    assert "1.12.0" in found["attend, old engine"]
    assert found["attend, two"]["raised"] == "", "the installed one is not"


def test_the_optimizer_of_experts_has_levels_too(found):
    """Without any CP; the whole name tells them apart."""
    expert = [name for name in found["expert groups"] if "EXPERT" in name]
    assert {f"HIERARCHICAL_EXPERT_DATA_PARALLEL_GROUP_L{level}" for level in (0, 1)} <= set(expert)


def test_getter_is_a_start_up_guard(found):
    assert found["flat"] == {"levels": None, "guard": False, "after": None}
    assert found["two"]["guard"] is True


def test_destroyed_groups_stay_behind(found):
    assert found["flat"]["after"] is None, "a layout without sizes leaves none"
    assert found["three"]["after"] == found["three"]["levels"]
    assert found["flat again"]["levels"] == found["three"]["levels"], "inherited by a flat layout"


def test_missing_groups_are_handed_over_as_none(found):
    handed = found["attend, flat"]
    assert handed["comm"] == "a2a+p2p"
    assert handed["none"], "Transformer Engine gets no group at all"
    assert not handed["of the collection"], "although the collection carries two"


def test_without_groups_each_rank_attends_to_its_own_chunk(ranks, found):
    """No message, and a result that is wrong; with the sizes the same code is exact."""
    assert found["attend, flat"]["raised"] == ""
    assert found["attend, flat"]["error"] > 0.1
    assert found["attend, two"]["error"] < 1e-12
    assert all(rank.results["attend, flat"] == found["attend, flat"] for rank in ranks)


def test_level_zero_carries_the_all_to_all_and_level_one_the_ring(ranks):
    for rank in ranks:
        used = {
            (traffic.group, traffic.operation): traffic.ranks
            for traffic in rank.traffic
            if traffic.group.startswith("HIERARCHICAL") and traffic.bytes + traffic.calls
        }
        inner, outer = rank.rank // 2 * 2, rank.rank % 2
        assert used.pop((LEVELS[0][0], "all_to_all_single")) == (inner, inner + 1)
        assert used.pop((LEVELS[1][0], "batch_isend_irecv")) == (outer, outer + 2)
        assert {key for key in used if key[1] not in ("isend", "irecv")} == set()
        assert {group for group, _ in used} <= {LEVELS[1][0]}


def test_hand_off_ignores_the_collection(found):
    assert found["attend, two"]["of the state"]
    assert not found["attend, two"]["of the collection"]


def test_sizes_without_the_type_change_nothing(found):
    assert found["attend, two"]["p2p has the flat group"]
    assert found["attend, flat"]["p2p has the flat group"]


def test_marker_of_the_upstream_card_is_never_printed(package, record_property):
    calls = [(path, call) for path, tree in package for call in output_calls(tree)]
    record_property("files", len(package))
    record_property("output_calls", len(calls))
    assert [str(path) for path, tree in package if any(literals(tree, MARKER))] == []
    assert [ast.unparse(call) for _, call in calls if mentions(call, MARKER)] == []
    holders = [path.name for path, tree in package if mentions(tree, MARKER)]
    assert holders == ["parallel_state.py"], "it exists, as a global of one module"


def test_scan_finds_what_is_printed(package):
    calls = [call for _, tree in package for call in output_calls(tree)]
    assert any(mentions(call, "Error updating pg timeout") for call in calls)
    assert any(any(literals(tree, "HIERARCHICAL_")) for _, tree in package), "group_desc prefix"


@pytest.mark.parametrize(
    "source",
    [
        f'print("{MARKER} created")',
        f"logger.info(f'created {{_{MARKER}}}')",
        f"log_single_rank(logger, logging.INFO, str(parallel_state._{MARKER}))",
    ],
)
def test_scan_would_find_the_marker(source):
    assert any(mentions(call, MARKER) for call in output_calls(ast.parse(source)))


@pytest.fixture
def tokens_of(monkeypatch):
    """Upstream's slice of one rank, without a world: its group only has to look like one."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)

    def cut(rank, world_size, seq_len):
        batch = {"tokens": torch.arange(seq_len).unsqueeze(0)}
        shard = get_batch_on_this_cp_rank(batch, cp_group=Group(world_size, rank))
        return shard["tokens"].flatten().tolist()

    return cut


@pytest.mark.parametrize(("a2a", "p2p"), [(2, 2), (2, 4), (4, 2), (3, 2)])
def test_consecutive_level_zero_keeps_the_zigzag(tokens_of, a2a, p2p):
    world_size, seq_len = a2a * p2p, 4 * a2a * p2p
    shards = [tokens_of(rank, world_size, seq_len) for rank in range(world_size)]
    coarse = [tokens_of(rank, p2p, seq_len) for rank in range(p2p)]
    for block in range(p2p):
        consecutive = shards[block * a2a : (block + 1) * a2a]
        assert sorted(itertools.chain(*consecutive)) == coarse[block]
    strided = sorted(itertools.chain(*shards[0::p2p]))
    assert strided not in coarse, "level 0 over strided ranks would not"


def test_sequence_must_divide_by_twice_the_flat_size(tokens_of):
    assert len(tokens_of(0, 4, 16)) == 4
    with pytest.raises(RuntimeError, match="invalid for input of size 12"):
        tokens_of(0, 4, 12)
