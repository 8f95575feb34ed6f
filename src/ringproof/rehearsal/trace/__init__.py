"""Recording, in a rank, of what crosses the borders of upstream's modules."""
