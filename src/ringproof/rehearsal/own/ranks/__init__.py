"""What runs in the ranks of a user's own program: modules that import Megatron."""
