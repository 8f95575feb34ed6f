"""A program that trains with Megatron-Bridge: a recipe, changed, with CP over two ranks.

``ringproof rehearse -- torchrun --nproc-per-node 2 train_mine.py`` runs it small on CPUs.
"""

from megatron.bridge.recipes.llama.llama3 import llama32_1b_pretrain_config as recipe
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.pretrain import pretrain

config = recipe()
config.model.context_parallel_size = 2
config.model.cp_comm_type = "a2a"
if __name__ == "__main__":
    pretrain(config, forward_step)
