"""What the tape costs, on which captures are tested without a GPU."""
