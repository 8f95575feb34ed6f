"""Data sets of the program for wheels, built by the wheel's own builder."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import types
from collections.abc import Sequence
from typing import Any

from megatron.core import parallel_state
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig, MockGPTDataset
from megatron.core.tokenizers.utils.build_tokenizer import build_tokenizer
from megatron.core.transformer import multi_token_prediction
from megatron.training import get_args
from megatron.training.arguments import core_transformer_config_from_args
from megatron.training.datasets.sft_dataset import SFTDataset
from megatron.training.utils import get_blend_and_blend_per_split, is_first_or_last_pipeline_stage

from ringproof.rehearsal.wheels.calls import called, refuse_left_out

OPTIONS = types.MappingProxyType({
    "random_seed": "seed",
    "sequence_length": "seq_length",
    "path_to_cache": "data_cache_path",
    "create_attention_mask": "create_attention_mask_in_dataloader",
    "fast_cache_load": "dataloader_fast_cache_load",
    "defer_npy_index_mmap": "dataloader_defer_npy_index_mmap",
    "inter_document_masking": "dataloader_inter_document_masking",
})  # fmt: skip
"""Options by the field of Megatron's configuration of data sets, where the names differ."""


def datasets(samples: Sequence[int], vp_stage: int | None = None) -> tuple[Any, Any, Any]:
    """Return the data sets for training, validation and test on this rank.

    Args:
        samples: Number of samples of each.
    """
    args = get_args()
    refuse_left_out(args)
    kind = SFTDataset if args.sft else MockGPTDataset if args.mock_data else GPTDataset
    built = functools.partial(_is_built_here, vp_stage, bool(args.sft))
    return BlendedMegatronDatasetBuilder(kind, samples, built, _configuration(args)).build()


datasets.is_distributed = True  # type: ignore[attr-defined]  # Megatron's mark of such a function


def predicts_ahead(config: Any, vp_stage: int | None) -> bool:
    """Whether layers of multi-token prediction are on this pipeline stage."""
    offered = {
        "config": config,
        "layout": config.pipeline_model_parallel_layout,
        "mtp_num_layers": config.mtp_num_layers,
        "ignore_virtual": False,
        "vp_stage": vp_stage,
    }
    return bool(called(multi_token_prediction.mtp_on_this_rank, **offered))


def _is_built_here(vp_stage: int | None, packed: bool) -> bool:
    """Whether this rank reads samples: the first of its TP group, on stages that need them."""
    if parallel_state.get_tensor_model_parallel_rank() != 0:
        return False
    if packed or is_first_or_last_pipeline_stage(vp_stage):
        return True
    return predicts_ahead(core_transformer_config_from_args(get_args()), vp_stage)


def _configuration(args: argparse.Namespace) -> GPTDatasetConfig:
    """Return Megatron's configuration of data sets, each field from the option of its name."""
    blend, blend_per_split = get_blend_and_blend_per_split(args)
    fields = [field.name for field in dataclasses.fields(GPTDatasetConfig) if field.init]
    values = {
        name: getattr(args, option)
        for name in fields
        if hasattr(args, option := OPTIONS.get(name, name))
    }
    values.update(
        tokenizer=build_tokenizer(args),
        blend=blend,
        blend_per_split=blend_per_split,
        sequence_parallel_size=args.tensor_model_parallel_size * args.sequence_parallel,
    )
    return GPTDatasetConfig(**values)
