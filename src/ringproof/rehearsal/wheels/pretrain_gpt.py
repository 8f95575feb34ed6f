"""A GPT pretraining in the place of Megatron-LM's ``pretrain_gpt.py``, which wheels do not hold.

The parser, the checks, the training loop, the data sets and the layers are the wheel's. This
program has what Megatron leaves to programs: which data set, how a microbatch reaches the model,
and the loss. It follows what upstream's programs of 0.17 to 0.19 do.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from megatron.core.enums import ModelType
from megatron.core.rerun_state_machine import get_rerun_state_machine
from megatron.core.transformer.multi_token_prediction import get_mtp_ranks
from megatron.core.utils import get_attr_wrapped_model
from megatron.training import argument_utils, arguments, get_args, pretrain, training
from megatron.training.arguments import core_transformer_config_from_args
from torch import Tensor

from ringproof.rehearsal.wheels.batches import microbatch
from ringproof.rehearsal.wheels.data import datasets
from ringproof.rehearsal.wheels.model import provide

DEFAULTS = types.MappingProxyType({"tokenizer_type": "GPT2BPETokenizer"})
MODEL_OPTIMIZER = "megatron.post_training"
INPUTS = ("tokens", "position_ids", "attention_mask")
Loss = tuple[Tensor, Tensor, dict[str, Tensor]]


def main() -> None:
    """Train as the command line says."""
    if importlib.util.find_spec(MODEL_OPTIMIZER) is None:  # imported where ModelOpt is installed
        training.has_nvidia_modelopt = False
    parameters = inspect.signature(pretrain).parameters
    if "cfg_container" not in parameters:  # 0.17 reads the command line itself
        pretrain(
            datasets, provide, ModelType.encoder_or_decoder, step, args_defaults=dict(DEFAULTS),
            get_embedding_ranks=embedding_ranks,
        )  # fmt: skip
        return
    args = arguments.parse_and_validate_args(args_defaults=dict(DEFAULTS))
    own: dict[str, Any] = {"model_provider": provide}
    made = []
    if hasattr(argument_utils, "gpt_config_from_args"):  # from 0.19 on a class builds the model
        own, made = {}, [argument_utils.gpt_config_from_args(args)]
    pretrain(
        argument_utils.pretrain_cfg_container_from_args(args, *made),
        train_valid_test_dataset_provider=datasets,
        model_type=ModelType.encoder_or_decoder,
        forward_step_func=step,
        get_embedding_ranks=embedding_ranks,
        **own,
    )


def step(
    samples: Iterator[Any], model: Any, return_schedule_plan: bool = False
) -> tuple[Any, Callable[[Tensor], Loss]]:
    """Run the model on the next microbatch.

    Returns:
        The losses of its tokens, or the plan of its layers, and the function of the loss.
    """
    args = get_args()
    stage = get_attr_wrapped_model(model, "vp_stage")
    config = core_transformer_config_from_args(args)
    batch, sequences = microbatch(samples, args, config, stage)
    inputs = [batch[name] for name in INPUTS]
    targets = {name: batch[name] for name in ("labels", "loss_mask")}
    loss_of = functools.partial(loss, batch["loss_mask"])
    if return_schedule_plan:
        return model.build_schedule_plan(*inputs, **targets), loss_of
    return model(*inputs, **targets, packed_seq_params=sequences), loss_of


def loss(mask: Tensor, output: Tensor) -> Loss:
    """Return the loss of a microbatch, the number of its tokens that count, and both to report.

    Args:
        mask: 1 for tokens that count [b, s].
        output: Loss of each token [b, s].
    """
    weights = mask.reshape(-1).float()
    found = torch.sum(output.reshape(-1).float() * weights)
    count = weights.sum().detach().to(torch.int)
    if get_args().check_for_nan_in_loss_and_grad:
        for wrong, name in ((torch.isnan, "NaN"), (torch.isinf, "Inf")):
            get_rerun_state_machine().validate_result(
                result=found,
                rejection_func=wrong,
                message=f"found {name} in local forward loss calculation",
                tolerance=0.0,
                fatal=True,
            )
    return found, count, {"lm loss": torch.stack([found.detach(), count.to(found.dtype)])}


def embedding_ranks(pipeline: list[int]) -> list[int]:
    """Return the ranks of a pipeline that hold embeddings."""
    args = get_args()
    ranks = {pipeline[0]}
    if len(pipeline) > 1:
        if not args.untie_embeddings_and_output_weights:
            ranks.add(pipeline[-1])
        ranks.update(get_mtp_ranks(pipeline, core_transformer_config_from_args(args)))
    return sorted(ranks)


if __name__ == "__main__":
    main()
