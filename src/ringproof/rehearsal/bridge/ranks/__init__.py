"""What runs in the ranks beside Megatron-Bridge."""
