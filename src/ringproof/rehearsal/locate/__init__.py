"""Which tensor of a run is wrong first, from the traces of the run and of its reference."""
