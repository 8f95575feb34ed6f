"""A microbatch of the program for wheels, cut for this rank by the wheel's own functions."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from megatron.core import parallel_state, utils
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.training import training
from megatron.training import utils as training_utils
from megatron.training.utils import is_first_or_last_pipeline_stage
from torch import Tensor

from ringproof.rehearsal.wheels.calls import called
from ringproof.rehearsal.wheels.data import predicts_ahead

Batch = dict[str, Any]
PACKED = ("cu_seqlens", "cu_seqlens_padded", "max_seqlen")
FIELDS = (
    "tokens", "labels", "loss_mask", "attention_mask", "position_ids", *PACKED, "local_cp_size",
    "hybrid_cp_group",
)  # fmt: skip


def microbatch(
    samples: Iterator[Batch], args: argparse.Namespace, config: Any, vp_stage: int | None
) -> tuple[Batch, PackedSeqParams | None]:
    """Return the next microbatch on this rank and the borders of its sequences.

    Args:
        samples: What the data set yields, read on the first rank of each TP group only.

    Returns:
        Tensors by name, ``None`` for those that this pipeline stage does not need, and the packed
        sequences, ``None`` without packing.
    """
    packed = bool(args.sft or getattr(args, "dataloader_inter_document_masking", False))
    ahead = predicts_ahead(config, vp_stage)
    at_end = is_first_or_last_pipeline_stage(vp_stage)
    if not (packed or ahead or at_end):
        return dict.fromkeys(FIELDS), None
    if hasattr(utils, "get_batch_on_this_tp_rank"):  # from 0.18 on
        return _by_values(samples, args, packed, whole=at_end or ahead, ahead=ahead)
    return _by_iterator(samples, packed and not at_end, ahead)


def _by_iterator(
    samples: Iterator[Batch], borders_only: bool, ahead: bool
) -> tuple[Batch, PackedSeqParams | None]:
    """Return the microbatch of 0.17, whose functions read the iterator themselves."""
    batch = training_utils.get_batch_on_this_tp_rank(samples, mtp_on_this_rank=ahead)
    borders, padded, longest, size = (batch.pop(name, None) for name in (*PACKED, "local_cp_size"))
    if borders is None and size is None:
        return training_utils.get_batch_on_this_cp_rank(batch), None
    if borders is not None:
        borders = _one_row(borders)
    if borders_only:
        return dict.fromkeys(FIELDS), _sequences(borders, None, longest)
    if size is None:
        return utils.get_thd_batch_on_this_cp_rank(batch, borders, padded, longest)
    return utils.get_batch_on_this_hybrid_cp_rank(batch, int(size.item()))


def _by_values(
    samples: Iterator[Batch], args: argparse.Namespace, packed: bool, *, whole: bool, ahead: bool
) -> tuple[Batch, PackedSeqParams | None]:
    """Return the microbatch of 0.18 and newer, whose functions take all that they depend on.

    Args:
        whole: Whether this stage needs more than the borders of sequences.
    """
    dynamic = args.hybrid_context_parallel
    rank = parallel_state.get_tensor_model_parallel_rank()
    batch = _on_device(next(samples)) if rank == 0 else {}
    batch = called(
        utils.get_batch_on_this_tp_rank,
        batch,
        is_sft=args.sft,
        has_cu_seqlens=packed,
        is_hybrid_cp=dynamic,
        create_attention_mask_in_dataloader=args.create_attention_mask_in_dataloader,
        broadcast_src_rank=parallel_state.get_tensor_model_parallel_src_rank(),
        broadcast_group=parallel_state.get_tensor_model_parallel_group(),
        cp_size=args.context_parallel_size,
        tp_rank=rank,
        micro_batch_size=args.micro_batch_size,
        seq_length=args.seq_length,
        mtp_on_this_rank=ahead,
        pipeline_model_parallel_size=args.pipeline_model_parallel_size,
        is_pipeline_first_stage=parallel_state.is_pipeline_first_stage(),
        is_pipeline_last_stage=parallel_state.is_pipeline_last_stage(),
    )
    if hasattr(utils, "flatten_batch_for_packed_sequences"):
        batch = utils.flatten_batch_for_packed_sequences(batch)
    if whole:
        batch = called(
            utils.get_batch_on_this_cp_rank,
            batch,
            is_hybrid_cp=dynamic,
            cp_group=parallel_state.get_context_parallel_group(),
            hybrid_cp_group_func=parallel_state.get_hybrid_data_context_parallel_groups,
            use_per_sequence_balancing=packed and not args.sft,
        )
    else:
        batch = {name: batch[name] for name in PACKED}
    batch = {name: batch.get(name) for name in FIELDS}
    return batch, _borders(batch, args)


def _on_device(sample: Batch) -> Batch:
    """Return the fields of a sample that a step uses, on the device."""
    given = {name: sample.get(name) for name in FIELDS}
    return {n: None if v is None else v.cuda(non_blocking=True) for n, v in given.items()}


def _borders(batch: Batch, args: argparse.Namespace) -> PackedSeqParams | None:
    """Return the sequences of a microbatch of 0.18 and newer."""
    if batch["cu_seqlens"] is None:
        return None
    borders = _one_row(batch["cu_seqlens"])
    padded = batch["cu_seqlens_padded"]
    training.update_seqlen_stats_from_cu_seqlens(borders)
    size = batch["local_cp_size"]
    return _sequences(
        borders,
        None if padded is None else _one_row(padded),
        batch["max_seqlen"],
        local_cp_size=None if size is None else int(size.item()),
        cp_group=batch["hybrid_cp_group"],
        tokens_per_sample=args.seq_length,
    )


def _sequences(
    borders: Tensor, padded: Tensor | None, longest: Tensor, **more: Any
) -> PackedSeqParams:
    """Return Megatron's record of packed sequences.

    As in upstream's programs, borders with padding stand for those without where both are known.
    """
    both = borders if padded is None else padded
    return called(
        PackedSeqParams,
        qkv_format="thd",
        cu_seqlens_q=both,
        cu_seqlens_kv=both,
        cu_seqlens_q_padded=padded,
        cu_seqlens_kv_padded=padded,
        max_seqlen_q=int(longest.reshape(-1)[0]),
        max_seqlen_kv=int(longest.reshape(-1)[0]),
        **more,
    )


def _one_row(borders: Tensor) -> Tensor:
    """Return the borders of the only sample [n] of a microbatch [1, n]."""
    if borders.dim() == 1:
        return borders
    assert borders.dim() == 2 and borders.shape[0] == 1, "packing needs a microbatch of one sample"
    return borders[0]
