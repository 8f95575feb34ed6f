"""The graph bank skill as a document: valid, within budget, and in step with its card."""

from __future__ import annotations

import re
import sys
import types

from checks.skills.shared import REPOSITORY, blocks, check_markers

SKILL = REPOSITORY / "skills" / "dynamic-cp-cuda-graphs"


def test_every_anchor_expects_something(card):
    """A bare field can only vanish; these are fields whose meaning is their name."""
    bare = {anchor.id for anchor in card.anchors if not anchor.expects}
    assert bare == {"pr-warmup", "pr-budget", "pr-append", "pr-sent", "te-transport"}


def test_options_of_the_command_are_those_of_the_card(card):
    command = next(command for command in card.commands if command.id == "pr6479-run")
    given = set(re.findall(r"--[a-z][a-z-]+", command.run))
    assert {option for option in card.recommended_path if option.startswith("--")} <= given


PRINTED = {
    "graphable-layers": "INFO:megatron: Rank 4: 36 graphable layers.",
    "no-layers": "TECudaGraphHelper: No graphable layers found. Skipping CUDA graph capture.",
    "capture-start": "Start CUDA Graphs capture...",
    "variants": (
        "Rank 0: capturing 4 dynamic-CP variants over 1 slot-aliased physical TE pool slots; "
        "one CP branch follows the canonical liveness schedule."
    ),
    "capture-time": "Time spent in CUDA Graphs capture on rank 0: 41.25390625s",
    "slots-line": (
        "Rank 0: dynamic CUDA graph slots enabled. runtime_num_microbatches=32, auto_num_slots=2, "
        "max_num_microbatches=64, capture_num_microbatches=2, "
        "capture_mode=dynamic_cp_scheduler_upper_bound_physical_slots"
    ),
    "slots-line-5618": (
        "Rank 0: dynamic CUDA graph slots enabled. runtime_num_microbatches=32, auto_num_slots=2, "
        "max_num_microbatches=64, capture_num_microbatches=64, "
        "capture_mode=dynamic_cp_global_subsample_upper_bound"
    ),
    "te-captured": (
        "[DEBUG | DotProductAttention]: Running with config={'max_seqlen_q': 16384, "
        "'context_parallel': True, 'cp_comm_type': 'p2p', 'cp_size': 4, 'cp_size_a2a': 1, "
        "'return_max_logit': False, 'cuda_graph': True, 'num_splits': 1}"
    ),
    "graphs-deleted": (
        "144 graphs deleted with explicit reset, 0 graphs deleted without explicit reset."
    ),
}
NEAR_MISSES = (
    "Rank 4: 0 graphable layers.",
    "Rank 4: 36 decoder layers and 0 MTP layers in model chunk 0.",
    "CUDA Graphs capture skipped",
    "Time spent in CUDA Graphs capture on rank 0",
    PRINTED["variants"].replace("capturing 4", "capturing 0"),
    PRINTED["slots-line"].replace("dynamic_cp_scheduler_upper_bound_physical_slots", "runtime"),
    PRINTED["slots-line-5618"].replace("dynamic_cp_global_subsample", "thd_varlen"),
    PRINTED["te-captured"].replace("'cuda_graph': True", "'cuda_graph': False"),
    PRINTED["te-captured"].replace("'max_seqlen_q': 16384, ", ""),
    "0 graphs deleted with explicit reset, 144 graphs deleted without explicit reset.",
)


def test_each_marker_matches_its_line_and_nothing_near(card):
    check_markers(card, PRINTED, NEAR_MISSES)


def snippet_of(text):
    return next(fence for fence in blocks(text, "python") if "replays = Counter()" in fence)


class BankLayer:
    """What the snippet touches of the pull request's layer."""

    def __init__(self, bank):
        self.cuda_graphs_by_dynamic_cp_size = bank
        self.cuda_graphs = []

    def _activate_dynamic_cp_cuda_graph(self, packed_seq_params):
        bank = self.cuda_graphs_by_dynamic_cp_size
        if bank:
            self.cuda_graphs = bank[packed_seq_params.local_cp_size]


def run_snippet(text, monkeypatch):
    class Layer(BankLayer):
        pass

    module = types.SimpleNamespace(TransformerLayer=Layer)
    monkeypatch.setitem(sys.modules, "megatron.core.transformer.transformer_layer", module)
    names = {}
    exec(compile(snippet_of(text), "SKILL.md", "exec"), names)
    return Layer, names


def test_snippet_counts_replays_and_entries(text, monkeypatch):
    layer_class, names = run_snippet(text, monkeypatch)
    bank = {4: ["g0", "g1"], 2: ["g2", "g3"]}
    layers = [layer_class(bank), layer_class({}), object()]
    for size in (4, 2, 4):
        for layer in layers[:2]:
            layer._activate_dynamic_cp_cuda_graph(types.SimpleNamespace(local_cp_size=size))
    assert names["replays"] == {4: 2, 2: 1}, "the layer without a bank is eager and not counted"
    assert layers[0].cuda_graphs == bank[4], "the layer still selects"
    model = types.SimpleNamespace(modules=lambda: layers)
    assert names["entries"](model) == [{4: 2, 2: 2}]
