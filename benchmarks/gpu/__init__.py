"""What needs a GPU, in one script, and the record of a run."""
