"""What all ranks of a rehearsal of Megatron-Bridge import, once, before they are forked."""

import importlib
import importlib.util
from typing import Any

from ringproof.rehearsal.rank import doubles, recipes

doubles.install(doubles.OF_BRIDGE)
if importlib.util.find_spec("megatron.core.datasets.helpers_cpp") is not None:
    # Bridge lets Megatron run make in its own folder, though the helpers are compiled.
    utils: Any = importlib.import_module("megatron.core.datasets.utils")
    utils.compile_helpers = lambda: None
recipes.import_by_family()
for name in (
    "megatron.bridge.training.pretrain",
    "megatron.bridge.training.gpt_step",
    "ringproof.rehearsal.bridge.ranks.samples",
):
    importlib.import_module(name)
