"""What all ranks of a rehearsal of verl import, once, before they are forked."""

import importlib

from ringproof.rehearsal.verl.ranks import doubles

MODULES = ("verl.trainer.sft_trainer", "verl.workers.engine.megatron.transformer_impl")

doubles.install()
for name in MODULES:
    importlib.import_module(name)
