"""Follow a training log while it grows."""
