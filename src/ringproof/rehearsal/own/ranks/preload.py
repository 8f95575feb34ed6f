"""What all ranks of a user's program import, once, before they are forked."""

import importlib

MODULES = (
    "megatron.core.distributed",
    "megatron.core.models.gpt.gpt_model",
    "megatron.core.models.gpt.gpt_layer_specs",
    "megatron.core.optimizer",
    "megatron.core.pipeline_parallel.schedules",
)

for name in MODULES:
    importlib.import_module(name)
