"""Maps between rows of a pack and rows of a rank, as integers."""
