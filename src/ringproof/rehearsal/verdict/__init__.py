"""What a run shows: its path, its agreement with the reference, and the report on both."""
