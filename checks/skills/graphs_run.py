"""What is watched while Megatron's own program trains with a graph bank, in every rank.

`watch` is a planted function of a `Program` of the rehearsal: it is called before the
training program, counts replays by the snippet of SKILL.md, and looks at the bank after its
capture.
"""

from __future__ import annotations

import importlib
import types
from pathlib import Path
from typing import Any

import torch.distributed as dist

from checks.skills.core_cases import said
from checks.skills.shared import blocks
from ringproof.rehearsal.rank.probe import hand_over

SKILL = Path(__file__).resolve().parents[2] / "skills" / "dynamic-cp-cuda-graphs" / "SKILL.md"


def snippet() -> str:
    """The snippet of SKILL.md that counts replays."""
    fences = blocks(SKILL.read_text(encoding="utf-8"), "python")
    return next(fence for fence in fences if "Counter()" in fence)


def watch() -> None:
    """Count replays by the snippet, and hand the bank over after its capture."""
    from megatron.core.transformer.cuda_graphs import TECudaGraphHelper

    names: dict[str, Any] = {}
    exec(compile(snippet(), "SKILL.md", "exec"), names)
    found: dict[str, Any] = {}
    hand_over(found)
    capture, delete = TECudaGraphHelper.create_cudagraphs, TECudaGraphHelper.delete_cuda_graphs

    def captured(helper: Any) -> None:
        capture(helper)
        found["entries"] = [entry for chunk in helper.model for entry in names["entries"](chunk)]
        found["selected"] = [
            {size for size, graphs in layer.cuda_graphs_by_dynamic_cp_size.items()
             if layer.cuda_graphs is graphs}.pop()
            for layer in helper.flattened_callables
        ]  # fmt: skip
        found["slots"] = helper.num_microbatches
        found["limit"] = getattr(helper.config, "_cuda_graph_num_microbatches", None)
        found["refused"] = refusals(helper)
        names["replays"].clear()  # of what was tried here

    def deleted(helper: Any) -> None:
        found["replays"] = dict(names["replays"])
        delete(helper)

    TECudaGraphHelper.create_cudagraphs = captured
    TECudaGraphHelper.delete_cuda_graphs = deleted


def refusals(helper: Any) -> dict[str, str]:
    """What a captured layer says to metadata that no entry was captured for."""
    from megatron.core import parallel_state

    layer = helper.flattened_callables[0]
    # A key that is not a size is seen among the entries.
    sizes = sorted(size for size in layer.cuda_graphs_by_dynamic_cp_size if size > 0)
    groups = parallel_state.get_dynamic_data_context_parallel_groups
    full = groups(group_size=sizes[-1])
    twin = twin_of(full)

    def select(size: int | None, group: Any) -> str:
        metadata = types.SimpleNamespace(local_cp_size=size, cp_group=group)
        return said(lambda: layer._activate_dynamic_cp_cuda_graph(metadata))

    return {
        **{f"size {size}": select(size, groups(group_size=size)) for size in sizes},
        "no metadata": said(lambda: layer._activate_dynamic_cp_cuda_graph(None)),
        "no size": select(None, full),
        "size 64": select(64, full),
        "a twin of the group": select(sizes[-1], twin),
        "the group of another size": select(sizes[-1], groups(group_size=sizes[0])),
    }


def twin_of(group: Any) -> Any:
    """Another group of the same ranks; every rank of the world takes part."""
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, dist.get_process_group_ranks(group))
    mine = None
    for ranks in sorted(set(map(tuple, gathered))):
        made = dist.new_group(list(ranks))
        mine = made if dist.get_rank() in ranks else mine
    return mine


def log_engine() -> None:
    """Let Transformer Engine log as NVTE_DEBUG=1 NVTE_DEBUG_LEVEL=2 do when it is imported."""
    module = "transformer_engine.pytorch.attention.dot_product_attention.utils"
    importlib.import_module(module).AttentionLogging._log_level = 2


def allow_one_microbatch() -> None:
    """After the capture, let the scheduler believe that one microbatch was provided for."""
    from megatron.core.transformer.cuda_graphs import TECudaGraphHelper

    capture = TECudaGraphHelper.create_cudagraphs

    def captured(helper: Any) -> None:
        capture(helper)
        helper.config._cuda_graph_num_microbatches = 1

    TECudaGraphHelper.create_cudagraphs = captured
