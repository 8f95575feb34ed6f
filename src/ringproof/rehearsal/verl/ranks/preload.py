"""What all ranks of a rehearsal of verl import, once, before they are forked."""

import importlib

from ringproof.rehearsal.rank import doubles

MODULES = ("verl.trainer.sft_trainer", "verl.workers.engine.megatron.transformer_impl")

doubles.install(doubles.OF_VERL)
for name in MODULES:
    importlib.import_module(name)
